"""What the fault tests saw, and the tables of docs/reliability.md made of it: `python -m tests.support.fault_table`.

A test says what it injected and what came of it with `note`; nothing in those tables is written by hand. Asserting is
the test's own business: `note` comes after it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / ".local/faults"
"""One file of notes for each process, so that test workers do not meet."""
DOCUMENT = ROOT / "docs/reliability.md"
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
    """What one fault did to one run, or to all runs with it.

    Attributes:
        fault: what was injected, and how often if by chance: `S3 503 SlowDown, 10 %`.
        where: the surroundings: `moto`, `stack`, `soak`.
        injected: how often it struck.
        jobs: jobs that were under way, all of them verified at their end.
        records: records in those jobs, each compared with its expected line.
        lost: records without their line.
        twice: lines beyond one a record.
        extra_submits: batches that the API accepted beyond the first acceptance of each.
        why: the reason for those; empty without any.
        observed: what was seen, in one sentence.
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
        """Take in another run with the same fault: numbers add up, each different sentence is kept once."""
        for name in ("injected", "jobs", "records", "lost", "twice", "extra_submits"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("why", "observed"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if theirs and theirs not in mine:
                setattr(self, name, f"{mine}; {theirs}" if mine else theirs)

    def row(self) -> str:
        """Its line of the table."""
        extra = f"{self.extra_submits:,}" + (f": {self.why}" if self.why else "")
        numbers = (self.injected, self.jobs, self.records, self.lost, self.twice)
        cells = [self.fault, self.where, *(f"{number:,}" for number in numbers), extra, self.observed]
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
    """Keep what a run saw for the table; `Note` says what each argument means."""
    told = Note(fault, where, injected, jobs, records, lost, twice, extra_submits, why, observed)
    NOTES.mkdir(parents=True, exist_ok=True)
    with (NOTES / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(asdict(told)) + "\n")


def merged(lines: list[str]) -> list[Note]:
    """One note for each fault and place that some job met, in the alphabet's order."""
    notes: dict[tuple[str, str], Note] = {}
    for told in sorted(Note(**json.loads(line)) for line in lines):
        notes.setdefault((told.where, told.fault), told)
        if notes[told.where, told.fault] is not told:
            notes[told.where, told.fault].add(told)
    return [notes[key] for key in sorted(notes) if notes[key].jobs]


def write_between_marks(name: str, content: str, document: Path = DOCUMENT) -> None:
    """Put content in the place of a document that is kept for it.

    Args:
        name: the place: what stands between `<!-- name -->` and `<!-- end of name -->`.
        content: Markdown.
        document: the file.

    Raises:
        ValueError: the document has no such place.
    """
    before, begin, rest = document.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not end:
        raise ValueError(f"{document.name} has no place for {name}")
    document.write_text(f"{before}{begin}\n{content.strip()}\n\n{end}{after}")


def table(notes: list[Note]) -> str:
    """The notes as a Markdown table."""
    head = [f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS)]
    return "\n".join([*head, *(each.row() for each in notes)])


def main() -> None:
    """Make the table anew from all notes."""
    lines = [line for file in sorted(NOTES.glob("*.jsonl")) for line in file.read_text().splitlines()]
    if not lines:
        sys.exit("No fault test has noted anything; `make test-faults` runs them.")
    write_between_marks("faults", table(merged(lines)))


if __name__ == "__main__":
    main()
