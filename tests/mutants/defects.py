"""Defects: each condition of the code broken, without a change of a file; why one survives."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

from tests.mutants.mutations import Mutation, mutations
from tests.support.shipped import ROOT, SHIPPED

REASONS = Path(__file__).with_name("reasons.toml")
DECIDING = (
    "shared/aws/dynamodb.py",
    "shared/ledger/jobs.py",
    "shared/ledger/batches.py",
    "shared/ledger/due.py",
    "shared/pacing/budget.py",
    "shared/pacing/breaker.py",
    "shared/aws/object_store.py",
    "shared/retry.py",
    "shared/services.py",
    "shared/workers_ai/error_codes.py",
    "functions/submit/upload.py",
    "functions/submit/stage.py",
    "functions/submit/read.py",
    "dropbatch/core/read/cut.py",
    "dropbatch/core/read/records.py",
    "dropbatch/core/read/attachments.py",
    "dropbatch/core/read/rows.py",
    "dropbatch/core/formats/rows.py",
    "dropbatch/core/formats/tables.py",
    "dropbatch/core/plan.py",
    "functions/submit/submit.py",
    "functions/poll/divide.py",
    "functions/poll/dispatch.py",
    "functions/poll/due_polls.py",
    "functions/poll/tick.py",
    "functions/poll/poll.py",
    "functions/poll/doubts.py",
    "functions/poll/commands.py",
    "shared/job_control.py",
    "functions/poll/sweep.py",
    "functions/poll/end.py",
    "functions/poll/visit.py",
)
"""Modules that decide what happens to a job or a batch: each guard, bound and wait is broken too.

In all other modules only conditions of writes and rows of tables are.
"""
HEAVY = (
    *("boto3", "hypothesis", "httpx", "msgspec", "time_machine", "werkzeug", "responses", "yaml"),
    *("xdist", "uvicorn", "aws_lambda_powertools.utilities.batch"),
    "aws_lambda_powertools.utilities.parameters",
    *(f"moto.{name}.responses" for name in ("s3", "sqs", "dynamodb", "events", "secretsmanager")),
)
"""What every test process needs; imported once, before the processes are forked."""


@dataclass
class Mutant:
    """One defect and its outcome."""

    path: Path
    mutation: Mutation
    tests: list[str] = field(default_factory=list)
    """Everyday tests that reach it, the quickest first."""
    outcome: str = ""
    """`noticed`, `survived` or `not reached`, by tests."""

    @property
    def name(self) -> str:
        """Its name, which the list of reasons uses too; without a line number."""
        return f"{self.path.relative_to(ROOT)} {self.mutation.scope}: {self.mutation.what}"

    @property
    def module(self) -> str:
        """Dotted name of its module."""
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)


class Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):  # type: ignore[misc] # typeshed: its bases differ
    """Imports one module with a defect in it."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        del path, target
        if fullname != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.mutant.path, loader=self)

    def get_filename(self, fullname: str) -> str:
        del fullname
        return str(self.mutant.path)

    def get_data(self, path: object) -> bytes:
        del path
        return self.mutant.mutation.applied_to(self.mutant.path.read_text()).encode()

    def path_stats(self, path: object) -> dict[str, object]:
        raise OSError(path)  # no byte code of it is read or kept


def all_mutants() -> list[Mutant]:
    """Every defect of every module that is shipped in the functions."""
    paths = [path for path in SHIPPED if path.suffix == ".py"]
    deciding = [ROOT / name for name in DECIDING]
    if missing := set(deciding) - set(paths):
        raise SystemExit(
            "Modules have moved: "
            f"{', '.join(str(one.relative_to(ROOT)) for one in sorted(missing))}"
        )
    return [
        Mutant(path, one)
        for path in paths
        for one in mutations(path.read_text(), guards=path in deciding)
    ]


def load_libraries() -> None:
    """Import what every process needs, once, before the processes are forked."""
    for name in HEAVY:
        importlib.import_module(name)


def begin(mutant: Mutant | None, work: Callable[[], int]) -> int:
    """Start a process that does work with a defect, which ends it with its status."""
    if process := os.fork():
        return process
    if mutant is not None:
        sys.meta_path.insert(0, Changed(mutant))
    os._exit(work())


def reasons() -> dict[str, str]:
    """Why no test notices a defect, by the defect's name."""
    found: dict[str, str] = tomllib.loads(REASONS.read_text())
    return found
