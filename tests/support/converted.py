"""What records in other vendors' formats become, for tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from dropbatch.core.formats import table
from dropbatch.core.formats.base import (
    BatchFacts,
    Converted,
    Outcome,
    RecordFault,
    Target,
    member_of,
)
from dropbatch.core.formats.table import Form, reader_of, writer_of
from dropbatch.core.models import find_model, with_task
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
SCOUT = "@cf/meta/llama-4-scout-17b-16e-instruct"
QWEN = "@cf/qwen/qwen3-30b-a3b-fp8"
KIMI = "@cf/moonshotai/kimi-k2.6"
DEEPSEEK = "@cf/deepseek-ai/deepseek-v4-flash-0731"
GPT = "@cf/openai/gpt-oss-20b"
BGE = "@cf/baai/bge-small-en-v1.5"
M3 = "@cf/baai/bge-m3"
CHAT = (LLAMA, SCOUT, QWEN, KIMI, DEEPSEEK, GPT)
HELLO = {"role": "user", "content": "Hello"}
DATA = "data:image/png;base64,AAAA"
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "tide", "arguments": '{"at":"noon"}'},
}
TOOL = {"type": "function", "function": {"name": "tide"}}


BODY = {"openai": "body", "anthropic": "params", "bedrock": "modelInput"}
"""The member of a record that holds the request, by format."""
NAMED = ("openai", "anthropic")
"""Formats whose records have a name of their own: here, "a"."""
FACTS = BatchFacts("20261121T093000Z-5f3a9c1e", LLAMA, "req-1", 1_795_253_400.5)


def target_of(model: str, *options: Any, task: str = "", **named: Any) -> Target:
    """What is known about a model, with a job's options."""
    return table.target_of(with_task(find_model(model), task), *options, **named)


def written(body: Any, format_: str = "openai", **members: Any) -> bytes:
    """A record with a body."""
    name = {"custom_id": "a"} if format_ in NAMED else {}
    return json.dumps({**name, **members, BODY[format_]: body}).encode()


def convert(
    model: str,
    body: Any,
    format_: str = "openai",
    defaults: dict[str, Any] | None = None,
    **members: Any,
) -> Converted | RecordFault:
    """What a record with a body becomes."""
    target = target_of(
        model,
        defaults={name: json.dumps(value).encode() for name, value in (defaults or {}).items()},
    )
    (one,) = reader_of(Form(format_), target).convert([written(body, format_, **members)])
    return one


def sent(model: str, body: Any, format_: str = "openai", **members: Any) -> dict[str, Any]:
    """The request that a body becomes; the published schema accepts it."""
    one = convert(model, body, format_, **members)
    assert isinstance(one, Converted), one
    request: dict[str, Any] = json.loads(one.request)
    assert request.pop("external_reference", None) == ("a" if format_ in NAMED else None)
    assert problem(model, request, "", Behaviour()) is None
    return request


def fault(model: str, body: Any, format_: str = "openai", **members: Any) -> tuple[str | None, str]:
    """The member at fault, and the message."""
    one = convert(model, body, format_, **members)
    assert isinstance(one, RecordFault), one
    assert one.code == "bad_record"
    return member_of(one.message), one.message


def line_of(
    record: bytes,
    result: Any = None,
    format_: str = "openai",
    *,
    code: str = "",
    message: str = "",
    facts: BatchFacts = FACTS,
    id_: int = 5,
) -> dict[str, Any]:
    """The line that answers a record, or says why it has no answer."""
    writer = writer_of(Form(format_), target_of(facts.model))
    assert writer
    answer = None if result is None else json.dumps(result, separators=(",", ":")).encode()
    line = writer.line(facts, Outcome(id_, b"null", record, answer, code, message))
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def body_of(model: str, body: Any, result: Any, url: str | None = None) -> Any:
    """The body of the line that answers a record of OpenAI's."""
    return line_of(written(body, url=url), result, facts=replace(FACTS, model=model))["response"][
        "body"
    ]


_MEMBERS = (
    *(
        "response",
        "choices",
        "message",
        "content",
        "text",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "output",
    ),
    *("type", "usage", "data", "finish_reason", "role", "refusal", "id", "prompt_tokens", "result"),
)
answers = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_MEMBERS), inner, max_size=5)
    ),
    max_leaves=20,
).filter(lambda one: one is not None)
"""Any answer of a model, even one that makes no sense."""
