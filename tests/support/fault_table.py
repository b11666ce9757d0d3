"""What the fault tests observed: a row for each fault in `.local/faults.md`.

`python -m tests.support.fault_table` writes it, and the totals in docs/reliability.md. A test
records with `note` what it injected and what it observed, after its assertions.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

from bench.timing import written_by

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / ".local/faults"
"""One file of notes for each process: test workers run in parallel."""
COUNTS = ("injected", "lost lines", "duplicate lines")


def note(
    fault: str, where: str, injected: int, observed: str, *, lost: int = 0, twice: int = 0
) -> None:
    """Record what a run, on `moto` or the `stack`, observed of a fault; several runs add up."""
    NOTES.mkdir(parents=True, exist_ok=True)
    with (NOTES / f"{os.getpid()}.jsonl").open("a") as file:
        counts = dict(zip(COUNTS, (injected, lost, twice), strict=True))
        file.write(json.dumps([where, fault, observed, counts]) + "\n")


def table(name: str, counts: dict[str, Counter[str]]) -> str:
    """Counts as a Markdown table; `name` heads the first column."""
    rows = [
        (key.replace("|", "/"), *(f"{one[column]:,}" for column in one))
        for key, one in sorted(counts.items())
    ]
    columns = (name, *next(iter(counts.values())))
    lines = [" | ".join(cells) for cells in (columns, ["---"] * len(columns), *rows)]
    return "".join(f"| {line} |\n" for line in lines)


def main() -> None:
    """Write the table and its totals from all notes."""
    faults: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: dict[str, set[str]] = defaultdict(set)
    totals: dict[str, Counter[str]] = defaultdict(lambda: Counter({"kinds of fault": 0}))
    for file in sorted(NOTES.glob("*.jsonl")):
        for where, fault, observed, counts in map(json.loads, file.read_text().splitlines()):
            faults[f"{where}: {fault}: {observed}"].update(counts)
            kinds[where].add(fault)
            totals[where].update(counts)
            totals[where]["kinds of fault"] = len(kinds[where])
    if not faults:
        sys.exit("There are no notes; `make test-faults` runs the tests that write them.")
    (ROOT / ".local/faults.md").write_text(table("fault", faults))
    document = ROOT / "docs/reliability.md"
    marks = re.compile(r"(<!-- totals -->\n).*(<!-- end of totals -->)", re.DOTALL)
    written = f"{table('where', totals)}\n{written_by('make test-faults')}"
    text = marks.sub(lambda found: f"{found[1]}\n{written}\n\n{found[2]}", document.read_text())
    document.write_text(text)


if __name__ == "__main__":
    main()
