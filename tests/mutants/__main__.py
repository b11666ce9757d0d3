"""Mutation tests: each condition of the code is broken in turn, and an everyday test must fail.

`make mutants`.

The coverage of the everyday tests shows which of them reach the line of a defect, and how long each
takes. They are run with that defect, the quickest first, until one fails. Each defect has its own
process: its module is changed when it is imported, and no file is changed. A defect that survives
needs a reason in `tests/mutants/reasons.toml`; the outcome is written to .local/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import coverage
import pytest

from tests.mutants.defects import ROOT, Mutant, all_mutants, begin, cell, load_libraries, reasons
from tests.support.everyday_runs import DATA, SECONDS

OUTCOMES = ROOT / ".local/mutants.json"
DOCUMENT = ROOT / ".local/mutants.md"
TURNS = ((10.0, False), (60.0, True))
"""Seconds of tests that a defect gets at first, and if it survives them."""
HANGS_AFTER = 60
"""Seconds after which a test under a defect counts as failed."""
LINES_BACK = 12
"""How far back to look for a statement's first line."""


class Reach:
    """Which everyday tests reach a line, and how long each takes."""

    def __init__(self) -> None:
        self.data = coverage.CoverageData(basename=str(DATA))
        self.data.read()
        self.seconds: dict[str, float] = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
        self.lines: dict[Path, dict[int, list[str]]] = {}
        self.guards: dict[Path, dict[int, int]] = {}

    def tests(self, path: Path, line: int) -> list[str]:
        """The tests that reach a line, the most telling first.

        Those of the module, and the quickest.

        Those that reach what the line guards alternate with those that do not.
        """
        if path not in self.lines:
            self.lines[path] = self.data.contexts_by_lineno(str(path.relative_to(ROOT)))
        by_line = self.lines[path]
        for near in range(line, line - LINES_BACK, -1):
            if found := {one.rpartition("|")[0] for one in by_line.get(near, ()) if one}:
                break
        else:  # done once, at import: any test that uses the module may notice it
            found = {
                one.rpartition("|")[0] for contexts in by_line.values() for one in contexts if one
            }
            files = {one.partition("::")[0] for one in found}
            found |= {
                one
                for one in self.seconds
                if one.startswith("tests/unit") and one.partition("::")[0] in files
            }
        telling = {one.rpartition("|")[0] for one in by_line.get(self.guarded(path, line), ())}
        quickest = sorted(found & self.seconds.keys(), key=self.seconds.__getitem__)
        is_own = {one: f"test_{path.stem}" in one.partition("::")[0] for one in quickest}
        places, ranks = Counter[tuple[bool, bool]](), dict[str, int]()
        for one in quickest:
            group = is_own[one], one in telling
            ranks[one] = places[group]
            places[group] += 1
        return sorted(quickest, key=lambda one: (not is_own[one], ranks[one]))

    def guarded(self, path: Path, line: int) -> int:
        """The first line that runs only if the condition on this line is true.

        0 if no `if` has its condition here.

        The tests that reach it are the first that would notice if the condition were different.
        """
        if path not in self.guards:
            ifs = [
                node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.If)
            ]
            tests = [
                (range(one.test.lineno, (one.test.end_lineno or 0) + 1), one.body[0].lineno)
                for one in ifs
            ]
            self.guards[path] = {
                at: first for lines, first in tests for at in lines if first not in lines
            }
        return self.guards[path].get(line, 0)

    def within(self, tests: list[str], seconds: float, *, spread: bool) -> list[str]:
        """The first of these tests that take this many seconds together; at least one.

        Args:
            tests: the most telling first.
            seconds: how long they may take together.
            spread: whether to take the first of each file, then the second of each, and so on.
        """
        if spread:
            taken, ranks = Counter[str](), dict[str, int]()
            for test in tests:
                path = test.partition("::")[0]
                ranks[test] = taken[path]
                taken[path] += 1
            tests = sorted(tests, key=ranks.__getitem__)
        chosen = []
        for test in tests:
            chosen.append(test)
            seconds -= self.seconds.get(test, 0.0)
            if seconds < 0:
                break
        return chosen


def run_tests(tests: list[str], log: Path) -> int:
    """Run tests in this process, a new one; return pytest's status."""
    os.setsid()
    with log.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    chosen = log.with_suffix(".tests")
    chosen.write_text("".join(f"{test}\n" for test in tests))
    options = [
        "-o",
        "addopts=",
        "--import-mode=importlib",
        "--allow-hosts=127.0.0.1,::1",
        "--allow-unix-socket",
    ]
    quiet = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]
    return pytest.main([*options, *quiet, f"--timeout={HANGS_AFTER}", f"@{chosen}"])


def run(mutants: list[Mutant], reach: Reach, seconds: float, *, spread: bool) -> None:
    """Run tests with each of these defects, on every processor; print the outcome of each."""
    left, at_work = list(reversed(mutants)), dict[int, tuple[Mutant, float]]()
    with tempfile.TemporaryDirectory() as folder:
        while left or at_work:
            while left and len(at_work) < (os.cpu_count() or 1):
                mutant = left.pop()
                if not mutant.tests:
                    mutant.outcome = "not reached"
                    continue
                tests = reach.within(mutant.tests, seconds, spread=spread)
                log = Path(folder) / f"{len(left)}.log"
                at_work[begin(mutant, partial(run_tests, tests, log))] = (
                    mutant,
                    time.monotonic() + 10 * seconds + 2 * HANGS_AFTER,
                )
            for process, (mutant, ends) in list(at_work.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                if not ended and time.monotonic() > ends:
                    os.killpg(process, signal.SIGKILL)
                    ended, status = os.waitpid(process, 0)
                if ended:
                    del at_work[process]
                    mutant.outcome = _outcome(mutant, status)
                    print(f"{mutant.outcome}: {mutant.name}", flush=True)
            time.sleep(0.05)


def _outcome(mutant: Mutant, status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code in {pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise SystemExit(
            f"The tests of {mutant.name} could not be run; is the coverage of "
            "this tree? `make mutants`"
        )
    return "survived" if code == pytest.ExitCode.OK else "noticed"


def _listed(paths: list[Path]) -> str:
    return ", ".join(f"`{path.relative_to(ROOT)}`" for path in paths)


def report(everything: list[Mutant], known: dict[str, str]) -> Iterator[str]:
    """The outcome: the modules whose defects were all tried."""
    unfinished = {one.path for one in everything if not one.outcome}
    mutants = [one for one in everything if one.path not in unfinished]
    left_out = [one for one in everything if one.path in unfinished]
    yield "| module | defects | noticed | survived |"
    yield "| --- | --- | --- | --- |"
    of = {
        path: [one for one in mutants if one.path == path]
        for path in dict.fromkeys(one.path for one in mutants)
    }
    for path, here in of.items():
        told = Counter(one.outcome for one in here)
        noticed = told["noticed"]
        yield f"| `{path.relative_to(ROOT)}` | {len(here)} | {noticed} | {len(here) - noticed} |"
    noticed = sum(one.outcome == "noticed" for one in mutants)
    yield f"| all | {len(mutants)} | {noticed} | {len(mutants) - noticed} |"
    if left_out:
        yield ""
        yield (
            f"Not run yet: the {len(left_out)} defects of "
            f"{_listed(sorted({one.path for one in left_out}))}."
        )
    yield ""
    yield "What survives, and why:"
    yield ""
    yield "| defect | why no test notices it |"
    yield "| --- | --- |"
    for one in mutants:
        if one.outcome != "noticed":
            yield f"| {cell(one.name)} | {known.get(one.name, '')} |"


def main() -> int:
    """Run the chosen defects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "only", nargs="*", help="parts of names of defects; all others are left as they were"
    )
    parser.add_argument("--list", action="store_true", help="only list the defects")
    parser.add_argument(
        "--survivors", action="store_true", help="only defects that were not noticed last time"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run only the quickest tests; other tests may notice more",
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        help="a file of tests that the coverage does not have",
    )
    parser.add_argument(
        "--alone", action="store_true", help="run only the tests of --also; needs no coverage"
    )
    wanted = parser.parse_args()
    mutants = all_mutants()
    before: dict[str, str] = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    chosen = [
        one for one in mutants if not wanted.only or any(part in one.name for part in wanted.only)
    ]
    if wanted.survivors:
        chosen = [one for one in chosen if before.get(one.name, "") != "noticed"]
    if wanted.list:
        print("\n".join(one.name for one in chosen))
        return 0
    load_libraries()
    reach = Reach()
    for one in chosen:
        one.tests = (
            wanted.also
            if wanted.alone
            else [*wanted.also, *reach.tests(one.path, one.mutation.line)]
        )
    began = time.monotonic()
    for seconds, spread in TURNS[:1] if wanted.quick or wanted.alone else TURNS:
        run(
            [one for one in chosen if one.outcome in {"", "survived"}],
            reach,
            seconds,
            spread=spread,
        )
    for one in mutants:
        one.outcome = one.outcome or before.get(one.name, "")
    OUTCOMES.write_text(json.dumps({one.name: one.outcome for one in mutants}, indent=0))
    known = reasons()
    lines = list(report(mutants, known))
    DOCUMENT.write_text("\n".join([*lines, ""]))
    unexplained = [
        one.name for one in mutants if one.outcome not in {"", "noticed"} and one.name not in known
    ]
    idle = sorted(set(known) - {one.name for one in mutants if one.outcome != "noticed"})
    print(
        f"{len(chosen)} defects in {time.monotonic() - began:.0f} s; without a reason "
        f"survive {len(unexplained)}:"
    )
    print("\n".join(unexplained))
    if idle:
        print("Reasons for what does not survive:", *idle, sep="\n")
    return 1 if unexplained or idle else 0


if __name__ == "__main__":
    sys.exit(main())
