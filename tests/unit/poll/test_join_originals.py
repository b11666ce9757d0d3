"""Results that are converted, and those that would take too much memory."""

import json

import pytest

from dropbatch.core.read.index import RecordEntry, index_of
from functions.poll import join as module
from functions.poll.join import Answered, Failure, Originals, join_originals
from tests.support.joined import answers_of, items_reply, raw

ROWS = [RecordEntry(1, 20, raw("a"), original=2)]


def line_for(result):
    answers = answers_of(ROWS, items_reply([{"id": 0, "success": True, "result": result}]))
    originals = Originals(b"{}", lambda record: record)
    (line,) = join_originals(
        Answered(index_of(ROWS), 0, answers), originals, lambda outcome: bytes(outcome.record)
    )
    return line


@pytest.mark.parametrize("of_parts", [[], {}, 0], ids=["arrays", "objects", "numbers"])
def test_answer_of_too_many_parts_fails_alone(monkeypatch, of_parts):
    monkeypatch.setattr(module, "LARGE_RESULT_BYTES", 100)
    monkeypatch.setattr(module, "MAX_PARTS", 50)

    line = line_for({"choices": [of_parts] * 100})

    assert isinstance(line, Failure)
    assert (line.code, json.loads(line.error)["error"]["code"]) == ("rejected", "rejected")


@pytest.mark.parametrize("result", [{"choices": [1] * 40}, {"text": "x," * 20}, [[0] * 30]])
def test_other_answers_are_converted(monkeypatch, result):
    monkeypatch.setattr(module, "LARGE_RESULT_BYTES", 50)
    monkeypatch.setattr(module, "MAX_PARTS", 50)

    assert line_for(result) == b"{}"
