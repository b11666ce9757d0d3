"""Replies of the API: as data, wrapped as results or errors, and as a fault changes them.

No state.
"""

import gzip
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec

from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import (
    CODES_WHEN_ACCEPTED,
    GATEWAYS_OWN,
    STATUS_WHEN_ACCEPTED,
    ApiError,
    error,
)
from local.workers_ai.faults import Fault, chance

JSON = ("content-type", "application/json")
HTML = ("content-type", "text/html; charset=UTF-8")
FOREVER = float("inf")
_WORTH_COMPRESSING = 1024

_HTML_PAGE = (
    "<!DOCTYPE html>\n<html>\n<head><title>api.cloudflare.com | {status}: Bad "
    "gateway</title></head>\n"
    "<body><h1>Bad gateway</h1><p>Error code {status}</p></body>\n</html>\n"
)
_WITHOUT = {"accept_no_request_id": {}, "no_answers": {"status": "completed"}}
"""Results that lack what they should hold."""


class Cut(StrEnum):
    """How a connection ends instead of delivering a whole reply."""

    REFUSE = "refuse"
    """No connection is made."""
    RESET = "reset"
    """The connection is reset before a byte of the reply."""
    CLOSE = "close"
    """The connection is closed normally, but too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply; the server, or the mock transport, carries out `delay`, `cut` and `pace`."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    delay: float = 0.0
    """Seconds before the first byte; infinity hangs."""
    cut: Cut | None = None
    cut_after: int | None = None
    """Bytes of the body that still arrive before `cut`; None cuts before the status line."""
    pace: tuple[int, float] | None = None
    """The body arrives in chunks of this many bytes, with this many seconds before each."""

    def with_headers(self, *headers: tuple[str, str]) -> "Reply":
        return replace(self, headers=(*self.headers, *headers))


def page(status: int) -> Reply:
    """The HTML page that a gateway sends in place of an answer."""
    return Reply(status=status, headers=(HTML,), body=_HTML_PAGE.format(status=status).encode())


def success(result: object, behaviour: Behaviour, status: int = 200, **beside: object) -> Reply:
    result = [result] if behaviour.result_list else result
    whole = {"result": result, "success": True, "errors": [], "messages": [], **beside}
    body = msgspec.json.encode(whole if behaviour.envelope else result)
    return Reply(status=status, headers=(JSON,), body=body)


def listed(found: list[Any], asked: Mapping[str, list[str]], behaviour: Behaviour) -> Reply:
    """One page of a list, and which one it is."""
    number, size = int(asked.get("page", ["1"])[0]), int(asked.get("per_page", ["20"])[0])
    page = found[(number - 1) * size : number * size]
    info = {"count": len(page), "page": number, "per_page": size, "total_count": len(found)}
    return success(page, behaviour, result_info=info)


def failure(problem: ApiError, behaviour: Behaviour, retry_after: int = -1) -> Reply:
    """A reply that holds errors, with `retry-after` unless that is negative."""
    told = {"code": problem.code, "message": problem.message}
    inner = {"internalCode": problem.code, "message": problem.message}
    if problem.code in GATEWAYS_OWN:
        body: dict[str, Any] = {"success": False, "error": [told], "httpCode": problem.status}
        body |= inner | {"name": "AiGatewayError"}
    elif behaviour.envelope:
        forms: dict[str, dict[str, Any]] = {
            "null": {"result": None},
            "empty": {"result": {}},
            "absent": {},
        }
        body = forms[behaviour.error_result]
        body |= {"success": False, "errors": [told], "messages": []}
    else:
        body = inner | {"name": "InferenceUpstreamError", "description": problem.message}
    headers = (JSON, ("retry-after", str(retry_after))) if retry_after >= 0 else (JSON,)
    return Reply(status=problem.status, headers=headers, body=msgspec.json.encode(body))


def compressed(reply: Reply) -> Reply:
    """The same reply with its body in gzip, where that is worth it."""
    if len(reply.body) < _WORTH_COMPRESSING:
        return reply
    small = replace(reply, body=gzip.compress(reply.body, compresslevel=1, mtime=0))
    return small.with_headers(("content-encoding", "gzip"))


def struck(faults: Iterable[Fault], act: Callable[[], Reply], behaviour: Behaviour) -> Reply:
    """The reply to a call that these faults strike, and that `act` carries out."""
    strike = next((fault for fault in faults if fault.nature.stage != "batch"), None)
    if strike is None:
        return act()
    if strike.nature.stage == "instead":
        return _instead(strike, behaviour)
    return _after(act(), strike, behaviour)


def _instead(fault: Fault, behaviour: Behaviour) -> Reply:  # One for each kind.
    """The reply of a fault that keeps a call from being carried out."""
    match fault.kind:
        case "bare":
            retry = (("retry-after", str(fault.retry_after)),) if fault.retry_after >= 0 else ()
            return Reply(status=fault.status or 429, headers=retry)
        case "html":
            return page(fault.status or 502)
        case "json_500":
            return failure(error(10013), behaviour)
        case "refuse":
            return Reply(status=0, cut=Cut.REFUSE)
        case "reset":
            return Reply(status=0, cut=Cut.RESET)
        case "hang":
            return replace(page(504), delay=fault.seconds if fault.seconds >= 0 else FOREVER)
        case "flood":
            return Reply(
                status=fault.status or 200, headers=(JSON,), body=flood(fault.message, fault.factor)
            )
        case _:
            refusal = error(fault.error_code, fault.message, fault.status)
            retry_after = fault.retry_after
            if retry_after < 0 and fault.kind == "971":
                retry_after = 60
            return failure(refusal, behaviour, retry_after)


_FLOODS = {
    "items": (b'{"result":{"responses":[', b"{},", b'{}]},"success":true,"errors":[]}'),
    "errors": (b'{"result":null,"success":false,"errors":[', b"[],", b"[]]}"),
    "unknown": (b'{"result":{"responses":[', b'{"a":1},', b'{}]},"success":true}'),
    "wide": (b'{"result":{"responses":[{"id":0,"result":{},', b"", b'"z":1}]},"success":true}'),
    "deep": (b'{"result":{"responses":[{"id":0,"result":', b"[", b""),
    "page": (b"<html>", b"<p>", b"</html>"),
}
"""Replies without end: beginning, what is repeated, end."""


def flood(what: str, megabytes: int) -> bytes:
    """A body of so many megabytes that holds nothing of use."""
    head, one, tail = _FLOODS[what]
    size = megabytes * 1_000_000
    if what == "wide":
        return head + b"".join(b'"%07x":1,' % number for number in range(size // 12)) + tail
    return head + one * (size // len(one)) + tail


def _after(reply: Reply, fault: Fault, behaviour: Behaviour) -> Reply:  # One for each kind.
    """The reply to a call that was carried out, after a fault on its way back."""
    at = fault.at if fault.at >= 0 else len(reply.body) // 2
    match fault.kind:
        case "accept_then_reset":
            return replace(reply, cut=Cut.RESET)
        case "accept_then_close":
            return replace(reply, cut=Cut.CLOSE)
        case "accept_then_hang":
            return replace(reply, delay=fault.seconds if fault.seconds >= 0 else FOREVER)
        case "accept_then_truncate" | "truncated_body":
            return replace(reply, cut=Cut.CLOSE, cut_after=at)
        case "truncated_json":
            return replace(reply, body=reply.body[:at])
        case "accept_then_html":
            return page(fault.status or 502)
        case "accept_then_error":
            return failure(_error_when_accepted(reply, fault, behaviour), behaviour)
        case "accept_no_request_id" | "no_answers":
            return success(_WITHOUT[fault.kind], behaviour)
        case "slow_body":
            return replace(
                reply, pace=(1024, fault.seconds if fault.seconds >= 0 else behaviour.pace)
            )
        case _:
            return reply


def _error_when_accepted(reply: Reply, fault: Fault, behaviour: Behaviour) -> ApiError:
    draw = int(chance(fault.kind, behaviour.seed, reply.body) * len(CODES_WHEN_ACCEPTED))
    code = fault.code or CODES_WHEN_ACCEPTED[draw]
    return error(code, fault.message, fault.status or STATUS_WHEN_ACCEPTED.get(code, 0))
