"""Tables about jobs: whole in a pipe.

On a narrow terminal less important columns go first, and no line breaks.
"""

import pytest

from dropbatch.cli.rows import Cell, job_lines
from dropbatch.client.progress import columns_of

CELLS = (
    Cell("20261122T093000Z-1c2d3e4f", 25, rank=1, right=False),
    Cell("completed", 9, right=False),
    Cell("1,234", 9, rank=2),
    Cell("7 failed", 14),
    Cell("$0.00000202", 12, rank=3),
)
PATH = "reviews/年度レビュー/七月-a-name-that-is-much-longer-than-most.jsonl"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("path", ["a.jsonl", PATH])
def test_lines_fit_and_say_state_failures_and_path(width, path):
    (line,) = job_lines(CELLS, path, "", width)

    assert columns_of(line) <= width
    assert "completed" in line
    assert "7 failed" in line
    assert line.endswith(path[-7:])


@pytest.mark.parametrize(("width", "shown"), [(200, 5), (90, 4), (80, 3), (70, 3), (40, 2)])
def test_cost_goes_first_then_records_then_id(width, shown):
    (line,) = job_lines(CELLS, "a.jsonl", "", width)

    kept = sorted(CELLS, key=lambda cell: cell.rank)[:shown]
    assert [cell.text for cell in CELLS if cell.text in line] == [
        cell.text for cell in CELLS if cell in kept
    ]


def test_what_does_not_fit_beside_it_is_below():
    assert job_lines(CELLS, "a.jsonl", "no_model: Name a model for it.", 80)[1:] == [
        "  no_model: Name a model for it."
    ]


def test_pipe_has_all_in_one_line():
    (line,) = job_lines(CELLS, PATH, "no_model: Name one.", None)

    assert line.split() == [
        *" ".join(cell.text for cell in CELLS).split(),
        PATH,
        "no_model:",
        "Name",
        "one.",
    ]
