"""What a terminal shows of text that others wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.cli.context import emit, note
from dropbatch.client.progress import columns_of, cut, describe, printable, shortened

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\n2026  completed\x9b2J\u202egpj.exe\u2028\ud800"
SHOWN = r"a\x1b[31mred\x1b]0;title\x07\n2026  completed\x9b2J\u202egpj.exe\u2028\ud800"


def test_what_would_command_a_terminal_is_written_out():
    assert printable(HOSTILE) == SHOWN


@pytest.mark.parametrize(
    "text", ["Résumés 100%.jsonl", "年度/レビュー", "👩‍👩‍👧 x", "foto 3", "क्\u200dष"]
)
def test_names_of_the_world_stay(text):
    assert printable(text) == text


@given(st.text(), st.integers(1, 100))
def test_cut_text_fits(text, width):
    for one in (cut(text, width), shortened(text, width)):
        assert columns_of(one) <= width
    assert text.startswith(cut(text, width))


def test_every_way_to_print_is_safe(monkeypatch, capsys):
    monkeypatch.setattr("dropbatch.cli.context.is_json", lambda: False)
    emit({}, HOSTILE)
    note(f"\n{HOSTILE}")
    waiting = {"state": HOSTILE, "waiting_for": {"code": "x", "message": HOSTILE}}

    for width in (None, 40):
        assert not any("\x1b" in line or "\n" in line for line in describe(HOSTILE, waiting, width))
    out, err = capsys.readouterr()
    assert (out, err) == (f"{SHOWN}\n", f"\n{SHOWN}\n")
