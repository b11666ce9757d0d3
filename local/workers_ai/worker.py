"""What the Worker of `worker/` answers, without Node.js; a test compares it with the real one.

The API itself replaces the AI binding. Its replies pass as they are; with the switch
`raw_response=false`, bodies lose the REST envelope, and errors their HTTP status.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from local.workers_ai.api import WorkersAI
from local.workers_ai.codes import ApiError, error
from local.workers_ai.edge import PREFIX
from local.workers_ai.replies import JSON, Reply

PREFIXES = ("/run/", "/check")
MAX_BODY_BYTES = 10_000_000
MAX_REPLY_CHARACTERS = 20_000_000
_MODEL = re.compile(r"/run/(@(?:cf|hf)/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+)")
_ACCOUNT = "0" * 32
_MAX_MESSAGE_CHARACTERS = 500
_OK, _REDIRECT = 200, 300
_WITHOUT_CODE = Reply(status=502, body=b"The AI binding failed without a code.\n")
_TABLE = Path(__file__).parents[2] / "worker/src/errors.ts"
STATUSES = {
    int(code): int(status)
    for code, status in re.findall(r"^  (\d+): (\d+),$", _TABLE.read_text(), re.MULTILINE)
}
"""The Worker's own table; a code that is not in it gets HTTP 500."""


class _Envelope(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    success: Any = None
    errors: list[dict[str, Any]] = []
    internalCode: int = 0  # noqa: N815 - the API's own name
    description: str = ""


_decode = msgspec.json.Decoder(_Envelope).decode


def handle(
    api: WorkersAI, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> Reply:
    """Answer one request whose path begins with one of `PREFIXES`."""
    given = {name.lower(): value for name, value in headers.items()}
    if given.get("authorization", "").removeprefix("Bearer ") not in api.behaviour.tokens:
        return _failure(error(10000, "The shared secret is wrong."))
    if method == "GET" and path == "/check":
        return Reply(status=_OK, headers=(JSON,), body=b'{"success":true}')
    model = _MODEL.fullmatch(path)
    if method != "POST" or model is None:
        return _failure(error(7000, "No route for that URI"))
    if len(body) >= MAX_BODY_BYTES:
        return _failure(
            error(3006, "The request body must be under 10,000,000 bytes and state its length.")
        )
    try:
        inputs = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _failure(error(3003, "The request body is not JSON."))
    members = inputs if isinstance(inputs, dict) else {}
    polling = isinstance(members.get("request_id"), str)
    if not polling and not isinstance(members.get("requests"), list):
        return _failure(
            error(5006, "The body needs `requests`, an array, or `request_id`, a string.")
        )
    sent = {"request_id": members["request_id"]} if polling else {"requests": members["requests"]}
    query = "" if polling else "queueRequest=true"
    token = {
        "authorization": f"Bearer {api.behaviour.tokens[0]}",
        "cf-worker": "dropbatch.example.workers.dev",
    }
    upstream = f"{PREFIX}/accounts/{(*api.behaviour.accounts, _ACCOUNT)[0]}/ai/run/{model[1]}"
    reply = api.handle("POST", upstream, query, token, msgspec.json.encode(sent))
    return reply if api.behaviour.raw_response else _passed_on(reply)


def _passed_on(reply: Reply) -> Reply:
    """What the Worker makes of an object or an error."""
    if not reply.status or (reply.cut is not None and reply.cut_after is None):
        return reply
    passed = _translated(reply)
    at = None if reply.cut_after is None else min(reply.cut_after, len(passed.body) // 2)
    return replace(passed, delay=reply.delay, pace=reply.pace, cut=reply.cut, cut_after=at)


def _translated(reply: Reply) -> Reply:
    try:
        outer = _decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _WITHOUT_CODE
    if outer.internalCode:
        return _failure(error(outer.internalCode)._replace(message=outer.description))
    if outer.errors:
        return _failure(error(int(outer.errors[0]["code"]), str(outer.errors[0]["message"])))
    if not _OK <= reply.status < _REDIRECT:
        return _WITHOUT_CODE
    bare = reply.body if outer.success is None else bytes(outer.result)
    if len(bare) > MAX_REPLY_CHARACTERS:
        return _failure(error(3006, "The reply is larger than this Worker can pass on."))
    return Reply(status=_OK, headers=(JSON,), body=bare)


def _failure(problem: ApiError) -> Reply:
    told = {"code": problem.code, "message": problem.message[:_MAX_MESSAGE_CHARACTERS]}
    body = msgspec.json.encode({"success": False, "errors": [told]})
    return Reply(status=STATUSES.get(problem.code, 500), headers=(JSON,), body=body)
