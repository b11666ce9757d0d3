"""What a terminal shows of text that others wrote.

No character commands it, and no line is wider than it.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.cli.context import emit, note
from dropbatch.cli.operators import log_lines
from dropbatch.client.progress import columns_of, cut, describe, printable, shortened
from dropbatch.client.stack import Stack

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


class Logs:
    """Logs of both functions.

    Of each, streams one after the other, as CloudWatch may give a page.
    """

    def __call__(self, _service):
        return self

    def get_function_configuration(self, FunctionName):  # noqa: N803 - boto3's names
        return {"LoggingConfig": {"LogGroup": FunctionName}}

    def get_paginator(self, _name):
        return self

    def paginate(self, logGroupName, **_):  # noqa: N803
        found = {"submit": [3, 5, 1, 4], "poll": [2, 6]}[logGroupName]
        return [{"events": [{"timestamp": at, "message": f'{{"at":{at}}}'} for at in found]}]


@pytest.mark.parametrize("follow", [False, True])
def test_log_lines_are_in_order_of_time(monkeypatch, follow):
    monkeypatch.setattr("dropbatch.cli.operators.time.sleep", lambda _: None)
    stack = Stack("s", "b", {"SubmitFunctionName": "submit", "PollFunctionName": "poll"}, Logs())

    lines = log_lines(stack, "", 0.0, follow=follow)

    assert [next(lines)["at"] for _ in range(6)] == [1, 2, 3, 4, 5, 6]
