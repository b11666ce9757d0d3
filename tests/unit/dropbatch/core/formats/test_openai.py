"""OpenAI's batch files: what is sent for a record."""

import json

import pytest

from dropbatch.core.formats.base import member_of
from dropbatch.core.formats.table import Form, reader_of
from tests.support.converted import (
    GPT,
    HELLO,
    KIMI,
    LLAMA,
    M3,
    convert,
    fault,
    sent,
    target_of,
)

FORM = Form("openai")

# ── what is sent ──────────────────────────────────────────────────────────────────────────────────


def test_members_that_are_not_for_model_are_left_out():
    extra = {
        "model": "gpt-4o",
        "user": "u",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "n": 1,
    }
    assert sent(LLAMA, {"messages": [HELLO], **extra, "stream": False}) == {"messages": [HELLO]}


def test_unknown_members_are_sent_as_written():
    raw = (
        b'{"custom_id":"a","body":{"messages":[{"role":"user","content":"\\u00e9"}],"odd" : '
        b'{"x" : 1.50}}}'
    )
    (converted,) = reader_of(FORM, target_of(LLAMA)).convert([raw])
    request = (
        b'{"messages":[{"role":"user","content":"\\u00e9"}],"odd":{"x" : '
        b'1.50},"external_reference":"a"}'
    )
    assert sorted(converted.request.strip(b"{}")) == sorted(request.strip(b"{}"))
    assert b'"\\u00e9"' in converted.request
    assert b'{"x" : 1.50}' in converted.request


def test_content_of_another_kind_is_sent_as_written():
    messages = [{"role": "user", "content": [{"type": "new"}]}]
    assert json.loads(convert(LLAMA, {"messages": messages}).request)["messages"] == messages


@pytest.mark.parametrize(
    ("body", "member"),
    [
        ({"messages": [HELLO], "stream": True}, "body.stream"),
        ({"messages": [HELLO], "stream": 0}, "body.stream"),
        ({"messages": [HELLO], "n": 2}, "body.n"),
        ({"messages": [HELLO], "n": True}, "body.n"),
        ({"messages": [HELLO], "dimensions": 64}, "body.dimensions"),
        ({"messages": [HELLO], "modalities": ["text", "audio"]}, "body.audio"),
        ({"messages": [HELLO], "audio": {"voice": "x"}}, "body.audio"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "body.messages[0].content[0]",
        ),
        ({"messages": "Hello"}, "body.messages"),
        ({"messages": [1]}, "body.messages[0]"),
        ({"prompt": [1, 2, 3]}, "body.prompt"),
        ({"prompt": ["a", "b"]}, "body.prompt"),
        ({"model": 5, "messages": [HELLO]}, "body.model"),
        ({"input": 5}, "body.input"),
    ],
)
def test_what_workers_ai_does_not_do_makes_record_bad(body, member):
    assert fault(LLAMA, body)[0] == member


@pytest.mark.parametrize(
    "url",
    [
        None,
        *(
            "/v1/chat/completions",
            "/chat/completions",
            "v1/chat/completions/",
            "/v4/chat/completions",
        ),
        "/openai/v1/chat/completions",
        "https://api.example.com/v1/chat/completions?api-version=1",
    ],
)
def test_end_of_url_decides(url):
    assert sent(LLAMA, {"messages": [HELLO]}, url=url) == {"messages": [HELLO]}


@pytest.mark.parametrize(
    "members", [{"url": "/v1/moderations"}, {"url": 5}, {"method": "GET"}, {"custom_id": 5}]
)
def test_line_without_request_is_bad(members):
    assert fault(LLAMA, {"messages": [HELLO]}, **members)[0] == next(iter(members))


def test_line_without_body_keeps_custom_id():
    converted = convert(LLAMA, "Hello")
    assert (converted.code, member_of(converted.message), bytes(converted.reference)) == (
        "bad_record",
        "body",
        b'"a"',
    )


@pytest.mark.parametrize("tokens", [[1, 2], [[1], [2]], ["one", 2], 5, None])
def test_embeddings_of_tokens_are_bad(tokens):
    assert fault(M3, {"input": tokens}, url="/v1/embeddings")[0] == "body.input"


def test_prompt_becomes_message_if_needed():
    assert sent(LLAMA, {"prompt": "x"}) == {"prompt": "x"}
    assert sent(LLAMA, {"prompt": ["x"]}) == {"prompt": "x"}
    assert sent(KIMI, {"prompt": "x"}) == {"messages": [{"role": "user", "content": "x"}]}
    assert sent(GPT, {"prompt": "x"}) == {"input": "x"}


@pytest.mark.parametrize(("model", "is_plain"), [(LLAMA, True), (KIMI, False)])
def test_schema_is_given_to_each_model_as_it_takes_it(model, is_plain):
    wrapped = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    plain = {"type": "json_schema", "json_schema": {"type": "object"}}
    assert sent(model, {"messages": [HELLO], "response_format": wrapped})["response_format"] == (
        plain if is_plain else wrapped
    )
    named = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    assert sent(model, {"messages": [HELLO], "response_format": plain})["response_format"] == (
        plain if is_plain else named
    )
