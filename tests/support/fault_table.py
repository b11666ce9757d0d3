"""What the fault tests observed: a row for each fault in `.local/faults.md`.

`python -m tests.support.fault_table`.

A test records with `note` what it injected and what it observed, after its assertions. The totals
in docs/reliability.md are not edited by hand.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.timing import written_by

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / ".local/faults"
"""One file of notes for each process: test workers run in parallel."""
DOCUMENT = ROOT / "docs/reliability.md"
FAULTS = ROOT / ".local/faults.md"
COLUMNS = (
    "fault",
    "where",
    "injected",
    "jobs",
    "records",
    "lost",
    "answered twice",
    "submits beyond one per batch, and why",
    "what was observed",
)


@dataclass(order=True)
class Note:
    """The effect of one fault on one run, or on all runs with it.

    Attributes:
        fault: what was injected, and how often if by chance: `S3 503 SlowDown, 10 %`.
        where: `moto` or `stack`.
        injected: number of faults.
        jobs: jobs, all verified at their end.
        records: records in those jobs, each compared with its expected line.
        lost: records without a line.
        twice: lines beyond one per record.
        extra_submits: acceptances of a batch beyond its first.
        why: the reason for those; empty if there are none.
        observed: what was observed, in one sentence.
    """

    fault: str
    where: str
    injected: int
    jobs: int
    records: int
    lost: int
    twice: int
    extra_submits: int
    why: str
    observed: str

    def add(self, other: Note) -> None:
        """Add another run with the same fault."""
        for name in ("injected", "jobs", "records", "lost", "twice", "extra_submits"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("why", "observed"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if theirs and theirs not in mine:
                setattr(self, name, f"{mine}; {theirs}" if mine else theirs)

    def row(self) -> str:
        """Its row in the table."""
        extra = f"{self.extra_submits:,}" + (f": {self.why}" if self.why else "")
        numbers = (self.injected, self.jobs, self.records, self.lost, self.twice)
        return _row(
            self.fault, self.where, *(f"{number:,}" for number in numbers), extra, self.observed
        )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def note(
    fault: str,
    *,
    where: str,
    injected: int,
    jobs: int,
    records: int,
    lost: int,
    twice: int,
    extra_submits: int,
    why: str,
    observed: str,
) -> None:
    """Record what a run observed; `Note` describes the arguments."""
    one = Note(fault, where, injected, jobs, records, lost, twice, extra_submits, why, observed)
    NOTES.mkdir(parents=True, exist_ok=True)
    with (NOTES / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(asdict(one)) + "\n")


def merged(lines: list[str]) -> list[Note]:
    """One note for each fault and place, sorted; faults that affected no job are left out."""
    notes: dict[tuple[str, str], Note] = {}
    for one in sorted(Note(**json.loads(line)) for line in lines):
        notes.setdefault((one.where, one.fault), one)
        if notes[one.where, one.fault] is not one:
            notes[one.where, one.fault].add(one)
    return [notes[key] for key in sorted(notes) if notes[key].jobs]


def write_between_marks(name: str, content: str) -> None:
    """Replace a marked part of the document.

    Args:
        name: the part between `<!-- name -->` and `<!-- end of name -->`.
        content: Markdown.

    Raises:
        ValueError: the document has no such part.
    """
    before, begin, rest = DOCUMENT.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not end:
        raise ValueError(f"{DOCUMENT.name} has no part named {name}")
    DOCUMENT.write_text(f"{before}{begin}\n{content.strip()}\n\n{end}{after}")


def table(notes: list[Note]) -> str:
    """The notes as a Markdown table."""
    return _table(COLUMNS, [each.row() for each in notes])


def _table(columns: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join([_row(*columns), "|" + " --- |" * len(columns), *rows])


def totals(notes: list[Note]) -> str:
    """The sums of all notes, by place."""
    columns = ("where", "kinds of fault", "injected", "lost lines", "duplicate lines")
    rows = []
    for where in sorted({each.where for each in notes}):
        here = [each for each in notes if each.where == where]
        sums = (sum(getattr(each, name) for each in here) for name in ("injected", "lost", "twice"))
        rows.append(_row(where, *(f"{number:,}" for number in (len(here), *sums))))
    return _table(columns, rows)


def main() -> None:
    """Write the table and its totals from all notes."""
    lines = [
        line for file in sorted(NOTES.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]
    if not lines:
        sys.exit("There are no notes; `make test-faults` runs the tests that write them.")
    notes = merged(lines)
    FAULTS.write_text(table(notes) + "\n")
    write_between_marks("totals", f"{totals(notes)}\n\n{written_by('make test-faults')}")


if __name__ == "__main__":
    main()
