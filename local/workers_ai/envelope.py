"""How results and errors are wrapped: the REST envelope, or the bare bodies of the runtime."""

import gzip
from dataclasses import replace
from typing import Any

import msgspec

from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError
from local.workers_ai.reply import JSON, Reply

_WORTH_COMPRESSING = 1024


def success(result: object, behaviour: Behaviour, status: int = 200, **beside: object) -> Reply:
    """A reply that holds a result; `beside` goes into the envelope next to it."""
    result = [result] if behaviour.result_list else result
    whole = {"result": result, "success": True, "errors": [], "messages": [], **beside}
    body = msgspec.json.encode(whole if behaviour.envelope else result)
    return Reply(status=status, headers=(JSON,), body=body)


def failure(error: ApiError, behaviour: Behaviour, retry_after: int = -1, *more: ApiError) -> Reply:
    """A reply that holds errors, with `retry-after` unless that is negative."""
    if behaviour.envelope:
        body: dict[str, Any] = {}
        if behaviour.error_result != "absent":
            body["result"] = None if behaviour.error_result == "null" else {}
        body["success"] = False
        body["errors"] = [
            {"code": str(one.code) if behaviour.error_code_text else one.code, "message": one.message}
            for one in (error, *more)
        ]
        body["messages"] = []
    else:
        body = {
            "internalCode": error.code,
            "name": "InferenceUpstreamError",
            "message": error.message,
            "description": error.message,
        }
    headers = [JSON]
    if retry_after >= 0:
        headers.append(("retry-after", str(retry_after)))
    return Reply(status=error.status, headers=tuple(headers), body=msgspec.json.encode(body))


def compressed(reply: Reply) -> Reply:
    """The same reply with its body in gzip, where that is worth it."""
    if len(reply.body) < _WORTH_COMPRESSING:
        return reply
    small = replace(reply, body=gzip.compress(reply.body, compresslevel=1, mtime=0))
    return small.with_headers(("content-encoding", "gzip"))
