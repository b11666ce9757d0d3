"""Half of a surrogate pair fails its record alone, in every format of JSON.

With its reference, and its retry line.
"""

import json

import pytest

from dropbatch.core.formats.table import FORMATS
from tests.support.converted import LLAMA
from tests.support.doubles.collected import result_files

HALF = "cut \ud83d"
MESSAGE = {
    "native": "Line 2: messages[0].content: ",
    "objects": "Line 2: messages[0].content: ",
    "openai": "Line 2: body.messages[0].content: ",
    "anthropic": "Line 2: params.messages[0].content: ",
    "bedrock": "Line 2: modelInput.messages[0].content: ",
}


def record_of(format_, name, text):
    messages = [{"role": "user", "content": text}]
    return {
        "native": {"messages": messages, "external_reference": name},
        "objects": {"messages": messages, "external_reference": name},
        "openai": {
            "custom_id": name,
            "url": "/v1/chat/completions",
            "body": {"messages": messages},
        },
        "anthropic": {"custom_id": name, "params": {"messages": messages, "max_tokens": 9}},
        "bedrock": {"recordId": name, "modelInput": {"messages": messages, "max_tokens": 9}},
    }[format_]


def files_of(format_, *records):
    content = b"".join(json.dumps(one).encode() + b"\r\n" for one in records)
    return result_files(
        format_, b"", content, LLAMA, lambda _: {"success": True, "result": {"response": "fine"}}
    )


def test_every_format_of_json_is_here():
    assert set(MESSAGE) == {name for name, known in FORMATS.items() if known.is_json}


@pytest.mark.parametrize("format_", MESSAGE)
@pytest.mark.parametrize(("name", "kept"), [("b", "b"), (HALF, "cut \ufffd")])
def test_record_fails_alone_with_reference_and_retry(format_, name, kept):
    whole = [record_of(format_, one, "fine") for one in "ac"]
    broken = record_of(format_, name, HALF)

    output, errors, retry = files_of(format_, whole[0], broken, whole[1])

    lines = [json.loads(line) for line in output.splitlines()]
    assert len(lines) == 3
    (failed,) = [json.loads(line) for line in errors.splitlines()]
    assert (failed["id"], failed["external_reference"], failed["line"]) == (1, kept, 2)
    assert failed["error"]["code"] == "bad_record"
    assert r"half of a surrogate pair (\ud83d)" in failed["error"]["message"]
    if name == "b":
        assert failed["error"]["message"].startswith(MESSAGE[format_])
    assert json.loads(failed["request"]) == broken
    assert retry == json.dumps(broken).encode() + b"\n"
    for member in ("external_reference", "custom_id", "key", "recordId"):
        assert lines[1].get(member, kept) == kept
    assert b"\\ud83d" not in output.replace(rb"(\\ud83d)", b"")


@pytest.mark.parametrize(
    "written", [rb'{"text":"\ud83d"', rb'["\ud83d"]', rb'{"a":"\ud83d","b":nan}']
)
def test_record_that_is_no_object_without_it_is_unreadable(written):
    _, errors, retry = result_files("native", b"", written, LLAMA, lambda _: {})

    assert (json.loads(errors)["error"]["code"], retry) == ("invalid_json", b"")


def test_long_record_is_retried_whole():
    broken = record_of("native", "b", HALF + "x" * 1_000_000)

    _, _, retry = files_of("native", broken)

    assert retry == json.dumps(broken).encode() + b"\n"
