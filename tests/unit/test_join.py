"""The join: whatever the API answers, each record has one line, in order, with its own answer or the right error."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from functions.poll.batch.join import Failure, add_reply, join, sort_answers
from shared.models import Usage
from shared.staged_batch import RecordEntry, index_of
from shared.workers_ai.results import parse_answer
from tests.support.examples import examples

ENDING = ("expired", "Workers AI did not finish the batch in time.")

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
results = st.one_of(
    st.fixed_dictionaries({"data": st.lists(st.lists(st.floats(-1, 1), max_size=3), max_size=2)}),
    st.fixed_dictionaries({"response": texts, "usage": st.just({"prompt_tokens": 2, "total_tokens": 3})}),
    st.dictionaries(texts, st.one_of(st.none(), texts, st.integers(-(10**30), 10**30)), max_size=3),
    st.lists(st.integers(), max_size=3),
    texts,
    st.integers(),
    st.booleans(),
)
FAILURES = [
    ({"error": {"code": 5006, "message": "bad input"}}, "5006: bad input"),
    ({"error": {"code": "5006", "message": "bad input"}}, "5006: bad input"),
    ({"error": {"internalCode": 3030, "message": "failed"}}, "3030: failed"),
    ({"error": {"code": None, "internalCode": 3030, "message": "failed"}}, "3030: failed"),
    ({"errors": [{"code": 3040, "message": "no capacity"}]}, "3040: no capacity"),
    ({"error": "5021: too long"}, "5021: too long"),
    ({"error": "words alone"}, "words alone"),
    ({"message": "words alone"}, "words alone"),
    ({"error": {"description": "described"}}, "described"),
    ({"error": None, "message": "words"}, "words"),
    ({"error": {"code": "²", "message": "odd"}}, "odd"),
    ({"error": "²: odd"}, "²: odd"),
    ({"error": {"code": "9" * 5_000, "message": "odd"}}, "odd"),
    ({}, "Workers AI gave no reason."),
    ({"error": []}, "Workers AI gave no reason."),
    ({"errors": [[1]], "result": {"response": "ignored"}}, "Workers AI gave no reason."),
]


def raw(value):
    return msgspec.Raw(json.dumps(value).encode())


def request_of(index):
    return b'{"text": "request %d"}' % index


def row_of(number, reference, code):
    if code:
        return RecordEntry(number, 0, raw(None), code, f"Line {number}: wrong", raw("the text"))
    return RecordEntry(number, 20, raw(reference))


def lines_of(rows, answers, first_id=0, ending=None, request_of=request_of):
    """All lines, a good record's too as output, error and request."""
    lines = join(index_of(rows), first_id, answers, ending, request_of)
    return [Failure(line, b"", b"", "") if isinstance(line, bytes) else line for line in lines]


def answers_of(rows, reply):
    body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    return sort_answers(parse_answer(body), [row.reference for row in rows if row.length])


def items_reply(items):
    return {"responses": items}


def joined(rows, items, **more):
    return lines_of(rows, answers_of(rows, items_reply(items)), **more)


def good(number, **more):
    return {"id": number, "success": True, "result": {"response": f"answer {number}"}, **more}


def outcome(line):
    told = json.loads(line.output)
    return "" if told["success"] else told["error"]["code"]


# ── every mixture ────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def batches(draw):
    """A batch's rows, a reply to it, and what each row must come to: its result, or its error's code."""
    rows, items, expected = [], [], []
    name = draw(st.sampled_from(["id", "index"]))
    for number in range(draw(st.integers(1, 8))):
        code = draw(st.sampled_from(["", "", "", "invalid_json", "not_an_object"]))
        reference = draw(st.one_of(st.none(), st.just(f"row-{number}"), st.integers(0, 5)))
        place = sum(not row.code for row in rows)
        rows.append(row_of(number + 1, reference, code))
        told, wanted = ([], code) if code else draw(told_of(name, place, reference))
        items += told
        expected.append(wanted)
    items += draw(st.lists(st.sampled_from(FOREIGN), max_size=3))
    return rows, draw(written(items)), expected


@st.composite
def told_of(draw, name, place, reference):
    """What the API says of one record, in no, one or two items, and what that must come to."""
    result = draw(results)
    item = {name: draw(st.sampled_from([place, str(place)])), "success": True, "result": result}
    if draw(st.booleans()):
        item["external_reference"] = draw(st.sampled_from([reference, None]))
    if draw(st.booleans()):
        del item["success"]
    failed = {**item, "success": draw(st.sampled_from([False, None, "no", 0])), **draw(st.sampled_from(FAILURES))[0]}
    swapped = {**item, "external_reference": "of another row"}
    fates = [
        ([item], result),
        ([item], result),
        ([item, dict(item)], result),
        ([failed], "inference_failed"),
        ([], "missing_response"),
        ([item, {**item, "result": ["another", result]}], "missing_response"),
        ([swapped], "missing_response" if isinstance(reference, str) else result),
    ]
    return draw(st.sampled_from(fates))


FOREIGN = [
    *(None, 7, "x", [], {}),
    *({"id": number} for number in (None, -1, 999, 0.5, "row-0", True, "9" * 5_000)),
]
USAGES = [None, {}, "odd", {"total_tokens": 7}, {"prompt_tokens": "x", "total_tokens": 1.5}]


@st.composite
def written(draw, items):
    """A reply of either shape, with or without its envelope, pretty or not."""
    reply = {draw(st.sampled_from(["responses", "results"])): draw(st.permutations(items))}
    if draw(st.booleans()):
        reply["usage"] = draw(st.sampled_from(USAGES))
    if draw(st.booleans()):
        reply = {"result": reply, "success": True, "errors": [], "messages": []}
    return json.dumps(reply, indent=draw(st.sampled_from([None, 0, 2])), ensure_ascii=draw(st.booleans())).encode()


@given(batch=batches(), first_id=st.integers(0, 10**12))
@examples(300)
def test_each_record_has_exactly_one_line_in_order_with_its_answer_or_the_right_error(batch, first_id):
    rows, body, expected = batch
    lines = lines_of(rows, answers_of(rows, body), first_id)
    assert len(lines) == len(rows)
    for index, (row, line, wanted) in enumerate(zip(rows, lines, expected, strict=True)):
        assert line.output.count(b"\n") == 1
        assert line.output.endswith(b"\n")
        assert b"\r" not in line.output
        told = json.loads(line.output)
        assert list(told)[:3] == ["id", "external_reference", "success"]
        assert told["id"] == first_id + index
        assert told["external_reference"] == json.loads(bytes(row.reference))
        if told["success"]:
            assert told["result"] == wanted
            assert (line.error, line.retry) == (b"", b"")
        else:
            assert set(told) == {"id", "external_reference", "success", "error"}
            assert set(told["error"]) == {"code", "message"}
            assert told["error"]["code"] == wanted
            assert told["error"]["message"]
            check_error(row, index, line, told)


def check_error(row, index, line, told):
    assert line.error.count(b"\n") == 1
    error = json.loads(line.error)
    assert {name: error[name] for name in told} == told
    assert list(error)[-2:] == ["line", "request"]
    assert error["line"] == row.line
    if row.code:
        assert error["request"] == "the text"
        assert line.retry == b""
    else:
        assert line.retry == request_of(index) + b"\n"
        assert request_of(index) in line.error


@given(batch=batches())
def test_a_reply_is_joined_alike_whether_it_is_pretty_or_not(batch):
    rows, body, _ = batch
    compact = json.dumps(json.loads(body)).encode()
    pretty = json.dumps(json.loads(body), indent=3).replace("\n", "\r\n").encode()

    def told(reply):
        return [json.loads(line.output) for line in lines_of(rows, answers_of(rows, reply))]

    assert told(pretty) == told(compact)


@given(batch=batches(), at=st.floats(0, 1), junk=st.sampled_from([b"\xff", b"\xed\xa0\x80", b"0", b'"', b""]))
@example(
    batch=([RecordEntry(1, 9)], b'{"responses":[{"id":0,"success":true,"result":1,"x":"a"}]}', []),
    at=0.92,
    junk=b"\xff",
)
@examples(200)
def test_a_damaged_reply_is_refused_as_a_whole_or_joined_to_valid_lines(batch, at, junk):
    rows, body, _ = batch
    place = int(at * len(body))
    damaged = body[:place] + junk + body[place + 1 :]
    try:
        answers = answers_of(rows, damaged)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    lines = lines_of(rows, answers)
    assert [json.loads(line.output)["id"] for line in lines] == list(range(len(rows)))
    assert all(json.loads(line.error) for line in lines if line.error)


# ── single rules ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_good_line_is_the_apis_own_item_under_the_records_id_and_reference():
    rows = [row_of(1, "row-17", "")]
    (line,) = joined(
        rows, [{"id": 0, "external_reference": "row-17", "success": True, "result": {"a": [1.50]}}], first_id=17
    )
    assert line.output == b'{"id":17,"external_reference":"row-17","success":true,"result":{"a": [1.5]}}\n'


def test_the_members_of_a_failed_line_are_in_the_documented_order():
    (line,) = joined(
        [row_of(18, None, "")], [{"id": 0, "success": False, "error": {"code": 1, "message": "m"}}], first_id=18
    )
    assert (
        line.output
        == b'{"id":18,"external_reference":null,"success":false,"error":{"code":"inference_failed","message":"1: m"}}\n'
    )
    assert line.error == line.output[:-2] + b',"line":18,"request":{"text": "request 0"}}\n'
    assert line.retry == b'{"text": "request 0"}\n'


def test_a_documents_record_has_no_line():
    (line,) = joined([RecordEntry(None, 20)], [])
    assert json.loads(line.error)["line"] is None


def test_a_result_keeps_its_bytes():
    body = b'{"responses":[{"id":0,"result":{"n":1.50,"big":12345678901234567890123,"u":"\\u00fc","e":1e400}}]}'
    (line,) = lines_of([row_of(1, None, "")], answers_of([row_of(1, None, "")], body))
    assert b'"result":{"n":1.50,"big":12345678901234567890123,"u":"\\u00fc","e":1e400}}\n' in line.output


def test_further_members_of_an_item_are_passed_on():
    (line,) = joined([row_of(1, None, "")], [good(0, latency=0.5, index=0, meta={"a": 1})])
    told = json.loads(line.output)
    assert (told["latency"], told["meta"]) == (0.5, {"a": 1})
    assert "index" not in told


@pytest.mark.parametrize(("failure", "words"), FAILURES)
def test_a_failed_item_has_the_apis_message_wherever_the_reply_has_it(failure, words):
    (line,) = joined([row_of(1, None, "")], [{"id": 0, "success": False, **failure}])
    assert json.loads(line.output)["error"] == {"code": "inference_failed", "message": words}


def test_endless_words_are_cut():
    (line,) = joined([row_of(1, None, "")], [{"id": 0, "success": False, "error": "x" * 10_000}])
    assert len(line.output) < 1_200


@pytest.mark.parametrize("item", [{"id": 0, "success": True}, {"id": 0, "success": True, "result": None}, {"id": 0}])
def test_an_item_without_a_result_is_not_a_success(item):
    (line,) = joined([row_of(1, None, "")], [item])
    assert outcome(line) == "inference_failed"


def test_answers_are_counted_from_the_records_that_were_sent():
    rows = [row_of(1, None, "invalid_json"), row_of(2, None, ""), row_of(3, None, "too_large"), row_of(4, None, "")]
    lines = joined(rows, [good(1), good(0)], first_id=100)
    assert [outcome(line) for line in lines] == ["invalid_json", "", "too_large", ""]
    assert [json.loads(lines[index].output)["result"]["response"] for index in (1, 3)] == ["answer 0", "answer 1"]


def test_swapped_references_are_detected_and_not_fixed_by_guessing():
    rows = [row_of(1, "a", ""), row_of(2, "b", "")]
    lines = joined(rows, [good(0, external_reference="b"), good(1, external_reference="a")])
    assert [outcome(line) for line in lines] == ["missing_response", "missing_response"]
    assert "contradict" in json.loads(lines[0].output)["error"]["message"]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("a", None), (None, "a"), (1, "1"), ("1", 1), (None, None), ({"a": 1}, "b"), ("ü", "ü")]
)
def test_references_are_compared_only_where_both_are_strings(ours, theirs):
    (line,) = joined([row_of(1, ours, "")], [good(0, external_reference=theirs)])
    assert outcome(line) == ""


def test_the_same_reference_may_be_escaped_otherwise():
    rows = [RecordEntry(1, 20, msgspec.Raw('"ü"'.encode()))]
    (line,) = lines_of(rows, answers_of(rows, b'{"responses":[{"id":0,"external_reference":"\\u00fc","result":1}]}'))
    assert outcome(line) == ""


def test_repeated_contradicting_and_foreign_items_are_counted():
    rows = [row_of(number, None, "") for number in (1, 2, 3)]
    items = [good(0), good(0), good(1), {**good(1), "result": 2}, good(7), good(-1), "odd", good(2)]
    answers = answers_of(rows, items_reply(items))
    assert (answers.repeated, answers.contradicted, answers.foreign) == (1, {1}, 3)
    assert sorted(answers.items) == [0, 2]


def test_a_third_answer_does_not_settle_a_contradiction():
    (line,) = joined([row_of(1, None, "")], [good(0), {**good(0), "result": 2}, good(0)])
    assert outcome(line) == "missing_response"


def test_without_an_answer_all_end_as_the_batch_does_but_what_was_never_sent():
    rows = [row_of(1, None, ""), row_of(2, None, "invalid_json"), row_of(3, None, "")]
    lines = lines_of(rows, None, ending=ENDING)
    assert [outcome(line) for line in lines] == ["expired", "invalid_json", "expired"]
    assert json.loads(lines[0].output)["error"]["message"] == ENDING[1]


def test_a_request_is_read_only_when_its_record_failed():
    asked = []

    def reader(index):
        asked.append(index)
        return b"{}"

    rows = [row_of(number, None, code) for number, code in ((1, ""), (2, ""), (3, "invalid_json"))]
    lines_of(rows, answers_of(rows, items_reply([good(0)])), request_of=reader)
    assert asked == [1]


def test_a_result_that_is_not_text_is_a_failed_item():
    rows = [row_of(1, None, ""), row_of(2, None, "")]
    body = b'{"responses":[{"id":0,"result":"\xff"},{"id":1,"result":"fine"}]}'
    assert [outcome(line) for line in lines_of(rows, answers_of(rows, body))] == ["inference_failed", ""]


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
def test_an_item_with_odd_bytes_spoils_no_other(item):
    rows = [row_of(1, "row-1", ""), row_of(2, None, "")]
    lines = lines_of(rows, answers_of(rows, b'{"responses":[%b,{"id":1,"result":"fine"}]}' % item))
    assert outcome(lines[1]) == ""
    assert json.loads(lines[0].output)["id"] == 0


@pytest.mark.parametrize("depth", [500, 900])
def test_a_deep_result_is_put_on_one_line(depth):
    rows = [row_of(1, None, "")]
    body = b'{"responses":[{"id":0,"result":' + b"[\n" * depth + b"]" * depth + b"}]}"
    (line,) = lines_of(rows, answers_of(rows, body))
    assert line.output.count(b"\n") == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"result":{}}',
        b'{"responses":null}',
        b'{"responses":{}}',
        b'{"result":{"status":"queued"}}',
        b"null",
    ],
)
def test_what_holds_no_results_is_refused(body):
    with pytest.raises(msgspec.MsgspecError):
        parse_answer(body)


@pytest.mark.parametrize(
    "reply",
    [
        {"responses": None, "result": {"responses": [good(0)]}},
        {"responses": None, "results": [good(0)]},
        {"responses": [good(0)], "results": None},
        {"responses": [good(0)], "result": None},
        {"result": {"responses": {}, "results": [good(0)]}},
        {"result": {"results": [good(0)], "usage": None}, "errors": None},
        {"result": [1], "responses": [good(0)]},
    ],
)
def test_members_of_another_type_beside_the_results_do_no_harm(reply):
    rows = [row_of(1, None, "")]
    (line,) = lines_of(rows, answers_of(rows, reply))
    assert outcome(line) == ""


# ── usage ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12}, Usage(12, 0, 12)),
        ({"prompt_tokens": 12, "neurons": 1.5}, Usage(12, None, None)),
        ({"prompt_tokens": "12", "total_tokens": True}, Usage()),
        ({}, Usage()),
        (None, Usage()),
        ([], Usage()),
        ("odd", Usage()),
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_usage_is_what_the_reply_reports(told, usage, wrapped):
    reply = {"responses": [], "usage": told}
    assert answers_of([], {"result": reply} if wrapped else reply).usage == usage


def test_usage_of_items_is_summed_where_the_reply_reports_none():
    rows = [row_of(number, None, "") for number in (1, 2, 3)]
    items = [{"id": number, "result": {"usage": {"prompt_tokens": 2, "total_tokens": 5 + number}}} for number in (0, 1)]
    assert answers_of(rows, items_reply([*items, good(2)])).usage == Usage(4, None, 11)


# ── several replies to the same records ──────────────────────────────────────────────────────────────────────────────


def sorted_reply(items, **more):
    return sort_answers(parse_answer(json.dumps({"responses": items, **more}).encode()), [raw(None)] * 4)


def item_of(place, result="r", **more):
    return {"id": place, "success": True, "result": {"text": result, **more}}


def texts_of(answers):
    return {place: json.loads(bytes(item.result))["text"] for place, item in answers.items.items()}


def test_a_later_reply_fills_what_the_first_lacked_and_changes_nothing_else():
    answers = sorted_reply([item_of(0, "first"), item_of(2, "first")])

    add_reply(answers, sorted_reply([item_of(0, "later"), item_of(1, "later"), item_of(2, "later"), {"id": 9}]))

    assert texts_of(answers) == {0: "first", 1: "later", 2: "first"}
    assert (answers.contradicted, answers.foreign) == (set(), 1)


def test_a_place_that_one_reply_contradicts_is_filled_by_the_other():
    answers = sorted_reply([item_of(0, "a"), item_of(0, "b"), item_of(1)])

    add_reply(
        answers, sorted_reply([item_of(0, "c"), item_of(1, "a"), item_of(1, "b"), item_of(2, "a"), item_of(2, "b")])
    )

    assert texts_of(answers) == {0: "c", 1: "r"}
    assert answers.contradicted == {2}


@pytest.mark.parametrize(
    ("first", "later", "total"),
    [
        ({"usage": {"total_tokens": 30}}, {"usage": {"total_tokens": 40}}, 40),
        ({"usage": {"total_tokens": 40}}, {"usage": {"total_tokens": 30}}, 40),
        ({"usage": {"total_tokens": 40}}, {}, 40),
        ({}, {"usage": {"total_tokens": 40}}, 40),
        ({}, {}, None),
    ],
)
def test_usage_of_one_batch_is_not_counted_twice(first, later, total):
    answers = sorted_reply([item_of(0)], **first)

    add_reply(answers, sorted_reply([item_of(0), item_of(1)], **later))

    assert answers.usage.total_tokens == total


def test_usage_that_each_item_reports_counts_for_the_items_taken():
    answers = sorted_reply([item_of(0, usage={"total_tokens": 5})])

    add_reply(answers, sorted_reply([item_of(0, usage={"total_tokens": 7}), item_of(1, usage={"total_tokens": 11})]))

    assert answers.usage.total_tokens == 16
