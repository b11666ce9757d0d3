"""What records in other vendors' formats become, for tests."""

from __future__ import annotations

import json
from typing import Any

from dropbatch.formats.base import BatchFacts, Converted, Outcome, RecordFault, member_of
from dropbatch.formats.registry import Form, reader_of, target_of, writer_of
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
CALL = {"id": "call_1", "type": "function", "function": {"name": "tide", "arguments": '{"at":"noon"}'}}
CALLED = [
    HELLO,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "low"}]},
]
LENGTH = "embeddingConfig.outputEmbeddingLength"
TOOL = {"type": "function", "function": {"name": "tide"}}


def convert(
    model: str,
    body: Any,
    format_: str = "openai",
    defaults: dict[str, Any] | None = None,
    **members: Any,
) -> Converted | RecordFault:
    """What a record with a body becomes."""
    record = {"custom_id": "a", **members, "body": body} if format_ == "openai" else {"modelInput": body}
    target = target_of(model, defaults={name: json.dumps(value).encode() for name, value in (defaults or {}).items()})
    (one,) = reader_of(Form(format_), target).convert([json.dumps(record).encode()])
    return one


def sent(model: str, body: Any, format_: str = "openai", **members: Any) -> dict[str, Any]:
    """The request that a body becomes; the published schema accepts it."""
    one = convert(model, body, format_, **members)
    assert isinstance(one, Converted), one
    request: dict[str, Any] = json.loads(one.request)
    request.pop("external_reference", None)
    assert problem(model, request, "", Behaviour()) is None
    return request


def fault(model: str, body: Any, format_: str = "openai", **members: Any) -> tuple[str | None, str]:
    """The member at fault, and the message."""
    one = convert(model, body, format_, **members)
    assert isinstance(one, RecordFault), one
    assert one.code == "bad_record"
    return member_of(one.message), one.message


def body_of(model: str, body: Any, result: Any, url: str | None = None) -> Any:
    """The body of the line that answers a record."""
    record = json.dumps({"custom_id": "a", "url": url, "body": body}).encode()
    writer = writer_of(Form("openai"), target_of(model))
    assert writer
    line = writer.line(BatchFacts("j", model, "r", 1), Outcome(0, b'"a"', record, json.dumps(result).encode()))
    return json.loads(line)["response"]["body"]
