"""Reasons are of defects that exist."""

from tests.mutants.defects import all_mutants, reasons


def test_reasons_name_defects_that_exist():
    names = {one.name for one in all_mutants()}

    assert [one for one in reasons() if one not in names] == []
