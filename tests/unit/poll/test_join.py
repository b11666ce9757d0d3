"""The join: lines, failed items, references, usage, several replies to the same records."""

import json

import msgspec
import pytest

from dropbatch.core.read.index import RecordEntry, index_of
from functions.poll import join as module
from shared.workers_ai.results import parse_answer
from shared.workers_ai.usage import Usage
from tests.support.joined import (
    FAILURES,
    answers_of,
    good,
    items_reply,
    joined,
    lines_of,
    outcome,
    raw,
    row_of,
)

ENDING = ("expired", "Workers AI did not finish the batch in time.")


# ── single rules ──────────────────────────────────────────────────────────────────────────────────
def test_good_line_is_the_apis_item():
    rows = [row_of(1, "row-17", "")]
    item = {"id": 0, "external_reference": "row-17", "success": True, "result": {"a": [1.50]}}
    (line,) = joined(rows, [item], first_id=17)
    output = b'{"id":17,"external_reference":"row-17","success":true,"result":{"a": [1.5]}}\n'
    assert line.output == output


def test_result_keeps_its_bytes():
    result = b'"result":{"n":1.50,"big":12345678901234567890123,"u":"\\u00fc","e":1e400}'
    rows = [row_of(1, None, "")]
    (line,) = lines_of(rows, answers_of(rows, b'{"responses":[{"id":0,%b}]}' % result))
    assert result + b"}\n" in line.output


def test_further_members_of_item_are_passed_on():
    (line,) = joined([row_of(1, None, "")], [good(0, latency=0.5, index=0, meta={"a": 1})])
    told = json.loads(line.output)
    assert (told["latency"], told["meta"]) == (0.5, {"a": 1})
    assert "index" not in told


def test_failed_item_has_message_from_anywhere(subtests):
    for failure, words in FAILURES:
        (line,) = joined([row_of(1, None, "")], [{"id": 0, "success": False, **failure}])
        with subtests.test(failure=str(failure)[:60]):
            told = {"code": "inference_failed", "message": words}
            assert json.loads(line.output)["error"] == told


def test_endless_words_are_cut():
    (line,) = joined([row_of(1, None, "")], [{"id": 0, "success": False, "error": "x" * 10_000}])
    assert len(line.output) < 1_200


RESULT = {"result": {"response": "x"}}


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ({}, "missing_response"),
        ({"success": None}, "missing_response"),
        ({"result": None, "status": "queued"}, "missing_response"),
        ({"error": None}, "missing_response"),
        ({"message": "in the queue"}, "missing_response"),
        (RESULT, ""),
        (RESULT | {"success": "true"}, ""),
        (RESULT | {"success": 1}, ""),
        (RESULT | {"success": None, "error": None}, ""),
        (RESULT | {"success": None, "error": "bad"}, "inference_failed"),
        (RESULT | {"success": "False"}, "inference_failed"),
        (RESULT | {"success": 0}, "inference_failed"),
    ],
)
def test_result_without_an_error_is_an_answer_and_a_placeholder_is_none(item, code):
    (line,) = joined([row_of(1, None, "")], [{"id": 0, **item}])
    assert outcome(line) == code


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("a", None), (None, "a"), (1, "1"), ("1", 1), (None, None), ({"a": 1}, "b"), ("ü", "ü")],
)
def test_only_string_references_are_compared(ours, theirs):
    (line,) = joined([row_of(1, ours, "")], [good(0, external_reference=theirs)])
    assert outcome(line) == ""


def test_odd_items_are_counted():
    rows = [row_of(number, None, "") for number in (1, 2, 3)]
    items = [good(0), good(0), good(1), {**good(1), "result": 2}, good(7), good(-1), "odd", good(2)]
    answers = answers_of(rows, items_reply(items))
    assert (answers.repeated, answers.contradicted, answers.foreign) == (1, {1}, 3)
    assert sorted(answers.items) == [0, 2]


def test_sent_records_get_batch_error():
    rows = [row_of(1, None, ""), row_of(2, None, "invalid_json"), row_of(3, None, "")]
    lines = lines_of(rows, None, ending=ENDING)
    assert [outcome(line) for line in lines] == ["expired", "invalid_json", "expired"]
    assert json.loads(lines[0].output)["error"]["message"] == ENDING[1]


def test_request_is_read_only_when_its_record_failed():
    asked = []

    def reader(index):
        asked.append(index)
        return b"{}"

    rows = [row_of(number, None, code) for number, code in ((1, ""), (2, ""), (3, "invalid_json"))]
    lines_of(rows, answers_of(rows, items_reply([good(0)])), request_of=reader)
    assert asked == [1]


def test_result_without_text_is_failed_item():
    rows = [row_of(1, None, ""), row_of(2, None, "")]
    body = b'{"responses":[{"id":0,"result":"\xff"},{"id":1,"result":"fine"}]}'
    assert [outcome(line) for line in lines_of(rows, answers_of(rows, body))] == [
        "inference_failed",
        "",
    ]


@pytest.mark.parametrize(
    "item",
    [
        b'{"id":0,"result":"fine","more":"\xff"}',
        b'{"id":0,"result":"fine","usage":"\xff"}',
        b'{"id":0,"success":false,"error":"\xff"}',
        b'{"id":0,"success":false,"error":1e400}',
        b'{"id":0,"external_reference":"\xff","result":1}',
        b'{"id":0,"\xff":1,"result":1}',
        b'{"id":0,"result":{"usage":"\xff"}}',
        b'{"id":0,"result":{"usage":{"total_tokens":1e400}}}',
    ],
)
def test_item_with_odd_bytes_spoils_no_other(item):
    rows = [row_of(1, "row-1", ""), row_of(2, None, "")]
    lines = lines_of(rows, answers_of(rows, b'{"responses":[%b,{"id":1,"result":"fine"}]}' % item))
    assert outcome(lines[1]) == ""
    assert json.loads(lines[0].output)["id"] == 0


@pytest.mark.parametrize("depth", [500, 900])
def test_deep_result_is_put_on_one_line(depth):
    rows = [row_of(1, None, "")]
    body = b'{"responses":[{"id":0,"result":' + b"[\n" * depth + b"]" * depth + b"}]}"
    (line,) = lines_of(rows, answers_of(rows, body))
    assert line.output.count(b"\n") == 1


@pytest.mark.parametrize("wrapped", [True, False])
def test_usage_is_what_reply_reports(wrapped):
    for told, usage in (({"prompt_tokens": 12, "neurons": 1.5}, Usage(12)), (None, Usage())):
        reply = {"responses": [], "usage": told}
        assert answers_of([], {"result": reply} if wrapped else reply).usage == usage


def used(prompt, completion=None, **more):
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return {"result": {"usage": usage}}


def usage_of(items, whole=None):
    rows = [row_of(number, None, "") for number in (1, 2)]
    numbered = [{**item, "id": number} for number, item in enumerate(items)]
    return answers_of(rows, {"result": {"responses": numbered, "usage": whole}}).usage


@pytest.mark.parametrize(
    "case",
    [
        ([used(2, 3), used(2, 5)], Usage(4, 8)),
        ([used(2), used(3)], Usage(5)),
        ([used(2, 3), {"success": False, "error": "busy"}], Usage(2, 3)),
        ([used(2, 3), good(1)], Usage()),
        ([used(2, 3), used(2)], Usage()),
        ([used(2, 3), used(2) | {"success": False}], Usage(4, 3)),
        ([used(2, 3), used(2, total_tokens=2)], Usage(4, 3, 2)),
        ([used(None, 3)] * 2, Usage()),
        # With that of the reply: it counts unless it lacks a part.
        ([used(2, 3), used(2, 5)], Usage(4, 8), {"prompt_tokens": 9}),
        ([used(2), used(3)], Usage(9), {"prompt_tokens": 9}),
        ([used(2, 3), used(2, 5)], Usage(9, 1), {"prompt_tokens": 9, "completion_tokens": 1}),
        ([used(2, 3), used(2, 5)], Usage(4, 8), {"total_tokens": 9}),
    ],
)
def test_usage_of_items_is_summed_if_every_good_one_has_reported_it(case):
    items, usage, *whole = case
    assert usage_of(items, *whole) == usage


def sorted_reply(items, **more):
    reply = json.dumps({"responses": items, **more}).encode()
    return module.sort_answers(parse_answer(reply), [raw(None)] * 4)


def item_of(place, result="r", **more):
    return {"id": place, "success": True, "result": {"text": result, **more}}


@pytest.mark.parametrize(
    ("first", "later", "tokens"),
    [
        ({"usage": {"prompt_tokens": 30}}, {"usage": {"prompt_tokens": 40}}, 40),
        ({"usage": {"prompt_tokens": 40}}, {"usage": {"prompt_tokens": 30}}, 40),
        ({"usage": {"prompt_tokens": 40}}, {}, 40),
        ({}, {"usage": {"prompt_tokens": 40}}, 40),
        ({}, {}, None),
    ],
)
def test_usage_of_one_batch_is_not_counted_twice(first, later, tokens):
    answers = sorted_reply([item_of(0)], **first)

    module.add_reply(answers, sorted_reply([item_of(0), item_of(1)], **later))

    assert answers.usage.prompt_tokens == tokens


def test_usage_counts_items_taken():
    answers = sorted_reply([item_of(0, usage={"prompt_tokens": 5})])

    later = [item_of(0, usage={"prompt_tokens": 7}), item_of(1, usage={"prompt_tokens": 11})]
    module.add_reply(answers, sorted_reply(later))

    assert answers.usage.prompt_tokens == 16


ROWS = [RecordEntry(1, 20, raw("a"), original=2)]


def line_for(result):
    answers = answers_of(ROWS, items_reply([{"id": 0, "success": True, "result": result}]))
    originals = module.Originals(b"{}", lambda record: record)
    (line,) = module.join_originals(
        module.Answered(index_of(ROWS), 0, answers),
        originals,
        lambda outcome: bytes(outcome.record),
    )
    return line


@pytest.mark.parametrize("of_parts", [[], {}, 0])
def test_answer_of_too_many_parts_fails_alone(monkeypatch, of_parts):
    monkeypatch.setattr(module, "LARGE_RESULT_BYTES", 100)
    monkeypatch.setattr(module, "MAX_PARTS", 50)

    line = line_for({"choices": [of_parts] * 100})

    assert isinstance(line, module.Failure)
    assert (line.code, json.loads(line.error)["error"]["code"]) == ("rejected", "rejected")


@pytest.mark.parametrize("result", [{"choices": [1] * 40}, {"text": "x," * 20}, [[0] * 30]])
def test_other_answers_are_converted(monkeypatch, result):
    monkeypatch.setattr(module, "LARGE_RESULT_BYTES", 50)
    monkeypatch.setattr(module, "MAX_PARTS", 50)

    assert line_for(result) == b"{}"


# ── items with neither `id` nor `index` ───────────────────────────────────────────────────────────
def sorted_by(references, *items):
    """Place and result of each item that is placed, and how many are foreign."""
    sent = [
        msgspec.Raw(one if isinstance(one, bytes) else json.dumps(one).encode())
        for one in references
    ]
    body = json.dumps({"responses": [{"result": str(at), **item} for at, item in enumerate(items)]})
    answers = module.sort_answers(parse_answer(body.encode()), sent)
    placed = {at: json.loads(bytes(item.result)) for at, item in answers.items.items()}
    return placed, answers.foreign


def test_items_without_number_are_placed_by_reference():
    items = [{"external_reference": "b"}, {"external_reference": "a", "id": None, "index": None}]

    assert sorted_by(["a", "b"], *items) == ({1: "0", 0: "1"}, 0)


@pytest.mark.parametrize("reference", ["a", None, "c", 1, ["a"]])
def test_reference_that_names_no_single_record_is_foreign(reference):
    assert sorted_by(["a", "a", "b", None], {"external_reference": reference}) == ({}, 1)


def test_references_are_compared_as_texts():
    items = [{"external_reference": "a"}, {"external_reference": 7}]
    assert sorted_by([b'"\\u0061"', 7, {"x": 1}], *items) == ({0: "0", 1: "1"}, 0)


@pytest.mark.parametrize("number", [{"id": 9}, {"index": "9"}, {"id": 9.0}, {"id": 9, "index": 8}])
def test_a_number_is_never_overruled_by_a_reference(number):
    assert sorted_by(["a", "b"], {"external_reference": "a", **number}) == ({}, 1)


@pytest.mark.parametrize("opaque", ["x", "01a9-4f00", 1.5, "9" * 30, True, [1], ""])
def test_id_that_is_no_number_names_no_record(opaque):
    items = [{"id": opaque, "external_reference": "b"}, {"id": opaque, "index": 0}]

    assert sorted_by(["a", "b"], *items) == ({1: "0", 0: "1"}, 0)
