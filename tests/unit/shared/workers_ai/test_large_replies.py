"""Replies without end, halves of surrogate pairs, and tokens under every name."""

import json
import mmap
import tempfile
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.workers_ai.replies import flood
from shared.workers_ai import replies as module
from shared.workers_ai.usage import Usage, usage_of

MEGABYTES = 4
ITEM = {"id": 0, "success": True, "result": {"translated_text": "x"}}
TWO = {"responses": [ITEM, {**ITEM, "id": 1}]}


def mapped(content):
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def parsed(content, status=200, sent=5, *, submitting=False):
    content = content if isinstance(content, mmap.mmap) else json.dumps(content).encode()
    return module.parse_reply(status, None, content, submitting=submitting, sent=sent)


def peak_of(content, **more):
    """Megabytes that the reply takes while it is parsed, and the reply."""
    content = mapped(content)
    tracemalloc.start()
    try:
        reply = parsed(content, **more)
        return tracemalloc.get_traced_memory()[1] / 1_000_000, reply
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", ["items", "errors", "unknown", "deep", "page", "wide"])
def test_reply_without_end_takes_little_and_is_no_answer_but_for_a_wide_item(what):
    peak, reply = peak_of(flood(what, MEGABYTES))

    assert isinstance(reply, module.Answer if what == "wide" else module.OutcomeUnknown)
    assert peak < 2.5 * MEGABYTES, "the worst takes some 30 times its size, if it is decoded"


@pytest.mark.parametrize(
    "member", ["success", "status", "request_id", "usage", "errors", "messages", "code"]
)
def test_wide_member_beside_items_takes_little(member):
    wide = b"[" + b"[]," * (MEGABYTES * 333_333) + b"[]]"
    peak, _ = peak_of(b'{"result":{"responses":[{"id":0}],"%b":%b}}' % (member.encode(), wide))

    assert peak < 2.5 * MEGABYTES


@pytest.mark.parametrize(("items", "is_answer"), [(10, True), (11, False)])
@pytest.mark.parametrize("bytes_of_each", [1, 400_000])
def test_twice_the_items_sent_are_an_answer(items, is_answer, bytes_of_each):
    results = [{"index": 0, "result": "x" * bytes_of_each}] * items
    body = json.dumps({"result": {"results": results}})
    assert isinstance(parsed(mapped(body.encode())), module.Answer) == is_answer


@pytest.mark.parametrize("unusual", [{"latency": 1}, {"id": [1]}])
def test_large_reply_with_unusual_items_is_an_answer(unusual):
    items = [{"index": at, "result": "x" * 1_000_000} | unusual for at in range(5)]

    reply = parsed(mapped(json.dumps({"results": [*items, None]}).encode()))

    assert isinstance(reply, module.Answer)
    assert [item.index for item in reply.items] == [0, 1, 2, 3, 4, None]
    more = {bytes(item.extra_members().get("latency", b"")) for item in reply.items[:5]}
    assert more == {b"1" if "latency" in unusual else b""}


def test_large_reply_with_a_lone_surrogate_is_an_answer():
    body = b'{"results":[{"index":0,"\\ud800":1,"result":"%b"}]}' % (b"x" * 4_000_000)

    assert isinstance(parsed(mapped(body)), module.Answer)


@pytest.mark.parametrize(
    ("beside", "status", "unfinished"),
    [
        ({"status": "running"}, 200, True),
        ({"status": "Queued"}, 200, True),
        ({"status": "cooking"}, 200, True),
        ({"status": "completed"}, 200, False),
        ({"status": "completed"}, 202, False),
        ({"status": "failed"}, 200, False),
        ({"status": ["running"]}, 200, False),
        ({}, 200, False),
        ({}, 202, True),
        ({}, 206, True),
    ],
)
@pytest.mark.parametrize("enveloped", [True, False])
def test_status_beside_items_says_whether_more_come(beside, status, unfinished, enveloped):
    reply = parsed({"result": TWO | beside, "success": True} if enveloped else TWO | beside, status)

    assert isinstance(reply, module.Answer)
    assert reply.unfinished is unfinished


@pytest.mark.parametrize(
    ("status", "reply"), [("running", module.Accepted("id-1")), ("completed", module.Answer)]
)
def test_submit_that_shows_some_items_and_an_id_is_accepted(status, reply):
    result = {**TWO, "status": status, "request_id": "id-1"}
    found = parsed({"result": result, "success": True}, submitting=True)

    assert found == reply or isinstance(found, reply if isinstance(reply, type) else ())


CACHED, NONE, THOUGHT = {"cached_tokens": 2}, {"cached_tokens": 0}, {"reasoning_tokens": 7}
OF_THOUGHTS = Usage(None, 9, reasoning_tokens=7)


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, Usage(3, 4, 7)),
        ({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}, Usage(3, 4, 7)),
        ({"prompt_tokens": 3, "input_tokens": 9, "output_tokens": 4}, Usage(3, 4)),
        ({"prompt_tokens": None, "input_tokens": 9}, Usage(9)),
        ({"prompt_tokens": 3, "prompt_tokens_details": CACHED}, Usage(3, cached_tokens=2)),
        ({"input_tokens": 3, "input_tokens_details": CACHED}, Usage(3, cached_tokens=2)),
        ({"prompt_tokens": 3, "prompt_tokens_details": NONE}, Usage(3, cached_tokens=0)),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": -1}}, Usage(3)),
        ({"output_tokens": 9, "output_tokens_details": THOUGHT}, OF_THOUGHTS),
        ({"completion_tokens": 9, "completion_tokens_details": THOUGHT}, OF_THOUGHTS),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, Usage(3)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, Usage()),
        ({"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}, Usage(5, 0, 5)),
        ({"prompt_tokens": 5, "total_tokens": 12}, Usage(5, 7, 12)),
        ({"completion_tokens": 5, "total_tokens": 12}, Usage(7, 5, 12)),
        ({"prompt_tokens": 12, "total_tokens": 12}, Usage(12, None, 12)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 12}, Usage()),
        ({"prompt_tokens": 10.5, "completion_tokens": 1}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": 2**53, "total_tokens": "7"}, Usage()),
        *((odd, Usage()) for odd in ([], {}, None, "odd")),
    ],
)
def test_usage_is_read(told, read):
    assert usage_of(msgspec.Raw(msgspec.json.encode(told))) == read


written = st.lists(
    st.sampled_from([rb"\ud83d", rb"\uDE00", rb"\\", rb"\n", rb"\u00e9", b"x", rb"\\ud83d"]),
    max_size=30,
)


@pytest.mark.parametrize("kept", [bytes, mapped])
@given(text=written.map(b"".join))
def test_text_equals_pythons_with_replacements(kept, text):
    content = b'["' + text + b'"]'
    (read,) = json.loads(content)
    expected = read.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    assert json.loads(module.without_lone_surrogates(kept(content))[:]) == [expected]


def test_large_reply_takes_pieces_worth_of_memory():
    content = mapped(b'["' + b"a" * (8 * module.CHUNK_BYTES) + rb"\ud83d" + b'"]')
    tracemalloc.start()
    try:
        repaired = module.without_lone_surrogates(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(repaired, mmap.mmap)
    assert repaired[-10:] == rb"aa\ufffd" + b'"]'
    assert peak < 3 * module.CHUNK_BYTES
