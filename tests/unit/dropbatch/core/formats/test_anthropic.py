"""Anthropic's batch files: what is sent for a record, and the line that answers it."""

import pytest

from dropbatch.core.formats.base import RecordFault, member_of
from tests.support.converted import HELLO, KIMI, LLAMA, convert, line_of, sent, written
from tests.support.vendors import vendors_read

TEXT = {"response": "Hi", "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
CALL = {"response": None, "tool_calls": [{"id": "c", "name": "f", "arguments": {"x": 1}}]}
MESSAGE = {"content": "Hi", "reasoning_content": "hm"}
THOUGHT = {"choices": [{"message": MESSAGE, "finish_reason": "length"}]}
CUT_OFF = {"output": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}]}
DOCUMENT = {"role": "user", "content": [{"type": "document"}]}


def result_of(result=None, record=None, **failure):
    return line_of(
        record or written({"messages": [HELLO]}, "anthropic"), result, "anthropic", **failure
    )


@pytest.mark.parametrize(
    ("params", "custom_id", "code", "member"),
    [
        ({"messages": [HELLO]}, 5, "bad_record", "custom_id"),
        ("Hello", "a", "bad_record", "params"),
        ({"max_tokens": 5}, "a", "bad_record", "params.messages"),
        ({"messages": [HELLO], "stream": True}, "a", "bad_record", "params.stream"),
        ({"messages": [HELLO], "model": KIMI}, "a", "mismatched_model", "params.model"),
        ({"messages": [HELLO], "top_k": 400}, "a", "bad_record", "params.top_k"),
        ({"messages": [DOCUMENT]}, "a", "bad_record", "params.messages[0].content[0]"),
    ],
)
def test_record_that_does_not_fit_is_bad(params, custom_id, code, member):
    one = convert(LLAMA, params, "anthropic", custom_id=custom_id)
    assert isinstance(one, RecordFault)
    assert (one.code, member_of(one.message)) == (code, member)


PLAIN = {"type": "text", "media_type": "text/plain", "data": "Low at 9."}
PARTS = {"type": "content", "content": [{"type": "text", "text": "Low at 9."}]}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"type": "document", "source": PLAIN}, "Low at 9."),
        ({"type": "document", "source": PARTS}, "Low at 9."),
        ({"type": "document", "source": PLAIN, "title": "Tides"}, "Tides\nLow at 9."),
        ({"document": {"format": "txt", "name": "a", "source": {"text": "Low."}}}, "Low."),
    ],
)
def test_document_of_text_is_text(document, text):
    question = {"type": "text", "text": "When?"}
    messages = [{"role": "user", "content": [document, question]}]
    assert sent(LLAMA, {"messages": messages}, "anthropic")["messages"] == [
        {"role": "user", "content": f"{text}\nWhen?"}
    ]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [document]}
    returned = sent(LLAMA, {"messages": [{"role": "user", "content": [result]}]}, "anthropic")
    assert returned["messages"][0]["content"] == text


@pytest.mark.parametrize("source", [{"type": "base64", "data": "QQ=="}, {"bytes": "QQ=="}])
def test_document_of_bytes_is_bad(source):
    messages = [{"role": "user", "content": [{"type": "document", "source": source}]}]
    assert convert(LLAMA, {"messages": messages}, "anthropic").code == "bad_record"


def test_what_never_ran_is_expired_or_canceled():
    assert result_of(code="expired")["result"] == {"type": "expired"}
    assert result_of(code="cancelled")["result"] == {"type": "canceled"}


def test_answer_of_unknown_shape_is_the_messages_text():
    message = result_of({"data": [[1, 2]]})["result"]["message"]
    assert message["content"] == [{"type": "text", "text": '{"data":[[1,2]]}'}]


RESULTS = [TEXT, CALL, THOUGHT, CUT_OFF, {"data": [[1, 2]]}, "Hi"]
FAILURES = [
    *("bad_record", "rejected", "inference_failed", "internal", "expired", "cancelled"),
    "invalid_json",
]


@pytest.mark.slow
def test_each_line_is_valid_for_anthropics_own_types():
    lines = [*map(result_of, RESULTS), *(result_of(code=code, message="why") for code in FAILURES)]
    read = vendors_read("anthropic", lines)
    assert read == {"anthropic MessageBatchIndividualResponse": len(lines)}
