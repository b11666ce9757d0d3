"""Worlds as the only judge of defects.

`python -m tests.simulation.mutants shared/ledger` looks for each.

Each defect of `make mutants` whose name contains an argument gets SECONDS (300) of one processor. A
world that breaks a law, that fails or that does not end has found the defect. Before that the code
as it is gets TELLING (120) seconds, to find the schedules that are run first. LEFT=1 leaves out
what was found before or has a reason. Writes `.local/explored.md`, with the reasons of
`tests/mutants/reasons.toml` for what is not found; rows of defects that were not tried stay as they
were.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from local.template import powertools_variables
from tests.mutants.defects import ROOT, Mutant, all_mutants, begin, cell, load_libraries, reasons

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DOCUMENT = ROOT / ".local" / "explored.md"
SEARCH = "tests.simulation.explore.search"
CELL = re.compile(r"(?<!\\) ?\| ?")
"""Between two cells of the document."""
COLUMNS = ("in", "defect", "found in", "broken", "schedules", "seconds")
NOT_FOUND = ("not found", "not found yet")
"""In place of a world: there is a reason for it, or there is none."""
HANGS_AFTER = 30
"""Seconds of the processor after which a world counts as one that does not end."""


def in_a_process(mutant: Mutant | None, work: Callable[[Callable[[Any], None]], Any]) -> Any:
    """What work returns in a process of its own, with a defect.

    Which has imported nothing of what is judged.

    Work gets a function that ends the process at once with another result.
    """
    reader, writer = os.pipe()

    def tell(found: Any) -> None:
        with os.fdopen(writer, "w") as out:
            json.dump(found, out)
        os._exit(0)

    def run() -> int:
        os.close(reader)
        tell(work(tell))
        return 0

    process = begin(mutant, run)
    os.close(writer)
    with os.fdopen(reader) as found:
        text = found.read()
    os.waitpid(process, 0)
    return json.loads(text)


def judge(seconds: float, known: Sequence[Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Search for a defect; return what was found, and how far the search got."""
    search = importlib.import_module(SEARCH).Search(known=known)

    def outcome() -> dict[str, Any]:
        return {
            "world": search.name,
            "law": search.law,
            "schedules": search.worlds,
            "seconds": round(time.process_time(), 1),
        }

    def hangs(*_: object) -> None:
        search.law = "does not end"
        tell(outcome())

    signal.signal(signal.SIGVTALRM, hangs)
    search.run(seconds, lambda: signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_AFTER))
    return outcome()


def outcomes_of(document: str) -> dict[str, dict[str, Any]]:
    """What the document says of each defect that was tried, by its name."""
    outcomes: dict[str, dict[str, Any]] = {}
    module = ""
    for line in document.splitlines():
        if line.startswith("## "):
            module = line.strip("# `")
        cells = [one.replace("\\|", "|") for one in CELL.split(line)[1:-1]]
        if len(cells) == len(COLUMNS) and cells[-1][:1].isdigit():
            scope, what, world, law, schedules, seconds = cells
            told = {"world": world, "law": "" if world in NOT_FOUND else law}
            outcomes[f"{module} {scope}: {what}"] = {
                **told,
                "schedules": int(schedules),
                "seconds": float(seconds),
            }
    return outcomes


def table(
    mutants: list[Mutant], outcomes: dict[str, dict[str, Any]], known: dict[str, str]
) -> Iterator[str]:
    """The document's lines.

    Each defect of the ledger and of pacing, what found it, or why nothing does.
    """
    ran = [one for one in mutants if one.name in outcomes]
    found = [one for one in ran if outcomes[one.name]["law"]]
    explained = [one for one in ran if one not in found and one.name in known]
    yield "# Defects that exploration alone finds"
    yield ""
    yield (
        "Written by `python -m tests.simulation.mutants shared/ledger shared/pacing`; do not "
        "edit. One condition,"
    )
    yield (
        "bound or guard at a time is dropped or moved, as `make mutants` does, and simulated "
        "worlds look for it"
    )
    yield "without being told where; no other test helps:"
    yield "[docs/reliability.md](../docs/reliability.md#simulated-worlds) explains them."
    yield ""
    left = len(ran) - len(found) - len(explained)
    yield (
        f"{len(ran)} defects: {len(found)} found, {len(explained)} not found for the reason given,"
    )
    yield f"{left} not found yet."
    for module in dict.fromkeys(one.path for one in ran):
        yield from ("", f"## `{module.relative_to(ROOT)}`", "")
        yield from (f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}")
        for one in (one for one in ran if one.path == module):
            told = outcomes[one.name]
            law = told["law"] or known.get(one.name, "")
            world = told["world"] if told["law"] else NOT_FOUND[one.name not in known]
            cells = (
                one.mutation.scope,
                one.mutation.what,
                world,
                law,
                told["schedules"],
                told["seconds"],
            )
            yield f"| {' | '.join(map(cell, cells))} |"


def main(wanted: list[str]) -> int:
    """Try the defects one after the other; write the document."""
    os.environ |= powertools_variables()
    load_libraries()
    mutants = all_mutants()
    outcomes: dict[str, dict[str, Any]] = outcomes_of(
        DOCUMENT.read_text() if DOCUMENT.exists() else ""
    )
    chosen = [one for one in mutants if any(part in one.name for part in wanted)]
    explained = reasons("worlds")
    if os.environ.get("LEFT"):
        chosen = [
            one
            for one in chosen
            if one.name not in explained and not outcomes.get(one.name, {}).get("law")
        ]

    def write() -> None:
        DOCUMENT.write_text("\n".join([*table(mutants, outcomes, explained), ""]))

    telling = float(os.environ.get("TELLING", "120"))
    known = (
        in_a_process(None, lambda _: list(importlib.import_module(SEARCH).telling(telling)))
        if chosen
        else []
    )
    for mutant in chosen:
        seconds = float(os.environ.get("SECONDS", "300"))
        told = outcomes[mutant.name] = in_a_process(mutant, partial(judge, seconds, known))
        write()
        sys.stdout.write(f"{mutant.name}: {told['law'] or 'not found'}: {told['world']}\n")
        sys.stdout.flush()
    write()
    return int(any(not outcomes[one.name]["law"] for one in chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
