"""The join: whatever the API answers, each record has one line, with its answer or its error."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dropbatch.core.read.index import RecordEntry
from tests.support.examples import examples
from tests.support.joined import FAILURES, answers_of, lines_of, request_of, row_of

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
usage = st.just({"prompt_tokens": 2, "total_tokens": 3})
results = st.one_of(
    st.fixed_dictionaries({"data": st.lists(st.lists(st.floats(-1, 1), max_size=3), max_size=2)}),
    st.fixed_dictionaries({"response": texts, "usage": usage}),
    st.dictionaries(texts, st.one_of(st.none(), texts, st.integers(-(10**30), 10**30)), max_size=3),
    st.lists(st.integers(), max_size=3),
    texts,
    st.integers(),
    st.booleans(),
)


@st.composite
def batches(draw):
    """A batch's rows, a reply to it, and the result or the error's code of each row."""
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
    item = {name: draw(st.sampled_from([place, str(place)])), "result": result}
    item["success"] = draw(st.sampled_from([True, True, "true", 1, None]))
    if draw(st.booleans()):
        item["external_reference"] = draw(st.sampled_from([reference, None]))
    if draw(st.booleans()):
        del item["success"]
    failed = item | {"success": draw(st.sampled_from([False, "no", 0]))}
    failed |= draw(st.sampled_from(FAILURES))[0]
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
    indent, is_ascii = draw(st.sampled_from([None, 0, 2])), draw(st.booleans())
    text = json.dumps(reply, indent=indent, ensure_ascii=is_ascii)
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"]))).encode()


@given(batch=batches(), first_id=st.integers(0, 10**12))
@examples(300)
def test_each_record_has_one_line_in_order(batch, first_id):
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


ODD_RESULTS = [
    *(b'"\xe2\x80\xa8"', b'"\xc2\x85"', b'"\xff"', b'"\xc3\xa4"'),
    *(b"null", b'{"data":[[null]]}', b"[1,\r\n2]", b""),
]


@given(
    batch=batches(),
    together=st.tuples(st.integers(1, 5), st.sampled_from([0, 60, 1 << 17])),
    odd=st.sampled_from(ODD_RESULTS),
    vectors=st.booleans(),
)
@examples(200)
def test_lines_made_together_equal_those_made_alone(batch, together, odd, vectors):
    rows, body, _ = batch
    answers = answers_of(rows, body)
    if odd and 0 in answers.items:
        answers.items[0].result = msgspec.Raw(odd)
    written = []
    for limits in (together, (1, -1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("functions.poll.join.RUN_RECORDS", limits[0])
            patch.setattr("functions.poll.join.RUN_BYTES", limits[1])
            written.append(lines_of(rows, answers, vectors=vectors))
    assert written[0] == written[1]


@given(
    batch=batches(),
    at=st.floats(0, 1),
    junk=st.sampled_from([b"\xff", b"\xed\xa0\x80", b"0", b'"', b""]),
)
@example(
    batch=([RecordEntry(1, 9)], b'{"responses":[{"id":0,"success":true,"result":1,"x":"a"}]}', []),
    at=0.92,
    junk=b"\xff",
)
@examples(200)
def test_damaged_reply_is_refused_or_joined_validly(batch, at, junk):
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
