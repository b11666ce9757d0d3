"""Notes become the table, whichever process wrote them and in whatever order."""

import json
from dataclasses import asdict

import pytest

from tests.support import fault_table
from tests.support.fault_table import Note, merged, table, totals, write_between_marks


def told(fault, where="moto", **numbers):
    known = {"injected": 1, "jobs": 1, "records": 10, "lost": 0, "twice": 0, "extra_submits": 0}
    return Note(fault, where, **{**known, "why": "", "observed": "retried", **numbers})


def lines(*notes):
    return [json.dumps(asdict(note)) for note in notes]


def test_notes_of_one_fault_add_up():
    rows = merged(lines(told("reset"), told("reset", lost=2, records=5, observed="lost"), told("reset", where="stack")))

    assert [(row.where, row.injected, row.records, row.lost) for row in rows] == [
        ("moto", 2, 15, 2),
        ("stack", 1, 10, 0),
    ]
    assert rows[0].observed == "lost; retried"


def test_each_reason_stands_once():
    reset, late = "a reset after acceptance", "a lost id"
    notes = [
        told("reset", extra_submits=number, why=why) for number, why in ((1, reset), (2, reset), (1, late), (0, ""))
    ]

    (row,) = merged(lines(*notes))

    assert "| 4: a lost id; a reset after acceptance |" in row.row()


def test_order_of_processes_does_not_matter():
    notes = lines(told("reset"), told("html"), told("reset", why="x", extra_submits=1), told("html", where="stack"))

    assert table(merged(notes)) == table(merged(notes[::-1]))


def test_totals_are_sums_by_place():
    rows = totals(merged(lines(told("reset", lost=2), told("html", twice=3), told("reset", where="stack"))))

    assert "| moto | 2 | 2 | 2 | 3 |" in rows
    assert "| stack | 1 | 1 | 0 | 0 |" in rows


def test_only_text_between_marks_is_rewritten(tmp_path):
    document = tmp_path / "reliability.md"
    document.write_text("Before.\n\n<!-- faults -->\n| old |\n<!-- end of faults -->\n\nAfter.\n")

    write_between_marks("faults", "| new |", document)
    write_between_marks("faults", "| newer |", document)

    assert document.read_text() == "Before.\n\n<!-- faults -->\n\n| newer |\n\n<!-- end of faults -->\n\nAfter.\n"


def test_document_without_marked_part_is_error(tmp_path):
    document = tmp_path / "reliability.md"
    document.write_text("Nothing.\n")

    with pytest.raises(ValueError, match="no part named faults"):
        write_between_marks("faults", "", document)


def test_note_is_kept_for_table(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_table, "NOTES", tmp_path / "faults")
    for _ in range(2):
        fault_table.note(**asdict(told("reset")))

    (file,) = (tmp_path / "faults").iterdir()

    assert [row.jobs for row in merged(file.read_text().splitlines())] == [2]
