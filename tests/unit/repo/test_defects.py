"""Defects that the code is tried with.

Reasons are of defects that exist, and pages count those that were tried.
"""

import re

from tests.mutants.defects import all_mutants, reasons
from tests.support.shipped import ROOT


def test_reasons_name_defects_that_exist():
    names = {one.name for one in all_mutants()}

    assert [
        one for judge in ("tests", "worlds") for one in reasons(judge) if one not in names
    ] == []


def test_pages_count_defects_as_exploration_does():
    (counts,) = re.findall(
        r"^(\d+) defects: (\d+) found, (\d+)",
        (ROOT / "bench/explored.md").read_text(),
        re.MULTILINE,
    )
    pages = {
        "README.md": r"Of (\d+) conditions .*? noticed (\d+); the other (\d+)\s",
        "docs/reliability.md": r"\| (\d+) defects of the ledger .*?: (\d+) found, (\d+) that",
    }

    assert {
        page: re.findall(told, (ROOT / page).read_text(), re.DOTALL) for page, told in pages.items()
    } == {page: [counts] for page in pages}
