"""Every address of the local Workers AI.

Its own routes, the Worker's, and the REST API's, through an AI Gateway or not.
"""

from collections.abc import Mapping

import msgspec

from local.workers_ai import worker
from local.workers_ai.api import WorkersAI
from local.workers_ai.behaviour import Behaviour, SwitchError
from local.workers_ai.codes import ApiError, error
from local.workers_ai.edge import PREFIX
from local.workers_ai.faults import Fault
from local.workers_ai.replies import JSON, Reply

_OWN = "/_local/"
_SERVER_ERROR = 500


class Routes:
    """One API and everything in front of it."""

    def __init__(self, api: WorkersAI) -> None:
        self._api = api
        self._gateway = _Gateway(api)

    def handle(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        """Answer one request; the arguments are those of `WorkersAI.handle`."""
        if path.startswith(_OWN):
            return _own(self._api, method, path, body)
        if path.startswith(worker.PREFIXES):
            return worker.handle(self._api, method, path, headers, body)
        if _has_gateway(headers) and path.startswith(f"{PREFIX}/accounts/") and "/ai/run/" in path:
            return self._gateway.handle(method, path, query, headers, body)
        return self._api.handle(method, path, query, headers, body)


def _has_gateway(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "cf-aig-gateway-id" for name in headers)


def _own(api: WorkersAI, method: str, path: str, body: bytes) -> Reply:
    """Answer one request about the bill, the switches, the faults or the counts."""
    try:
        match method, path.removeprefix(_OWN):
            case (
                "GET",
                "accepted" | "calls" | "struck" | "behaviour" | "faults" | "queues" as asked,
            ):
                return _reply(getattr(api, asked))
            case "PUT", "behaviour":
                api.switch(**msgspec.json.decode(body, type=dict[str, object]))
                return _reply(api.behaviour)
            case "POST", "faults":
                one_or_more = msgspec.json.decode(body, type=Fault | list[Fault])
                api.inject(*([one_or_more] if isinstance(one_or_more, Fault) else one_or_more))
                return _reply(api.faults)
            case "DELETE", "faults":
                api.clear_faults()
                return _reply(api.faults)
            case _:
                return _reply({"error": f"there is no {method} {path}"}, 404)
    except (SwitchError, msgspec.MsgspecError) as wrong:
        return _reply({"error": str(wrong)}, 400)


def _reply(value: object, status: int = 200) -> Reply:
    return Reply(status=status, headers=(JSON,), body=msgspec.json.encode(value))


class _Gateway:
    """AI Gateway in front of the API: its token, its cache and its retries."""

    def __init__(self, api: WorkersAI) -> None:
        self._api = api
        self._cache: dict[tuple[str, bytes], Reply] = {}

    def handle(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        """Answer one request, from the cache or from the REST API."""
        behaviour = self._api.behaviour
        given = {name.lower(): value for name, value in headers.items()}
        if (
            behaviour.gateway_token
            and given.get("cf-aig-authorization") != f"Bearer {behaviour.gateway_token}"
        ):
            return _refusal(error(2009))
        request = f"{path}?{query}", body
        caches = behaviour.gateway_cache and given.get("cf-aig-skip-cache") != "true"
        if caches and request in self._cache:
            return self._cache[request].with_headers(("cf-aig-cache-status", "HIT"))
        for _ in range(_attempts(given, behaviour)):
            reply = self._api.handle(method, path, query, headers, body)
            if reply.cut is None and reply.status < _SERVER_ERROR:
                break
        if caches and reply.status == 200 and reply.cut is None:
            self._cache[request] = reply
        return reply


def _attempts(headers: Mapping[str, str], behaviour: Behaviour) -> int:
    """How often the gateway tries a call that fails."""
    asked = headers.get("cf-aig-max-attempts", "")
    return int(asked) if asked.isdigit() and asked != "0" else behaviour.gateway_attempts


def _refusal(problem: ApiError) -> Reply:
    """An error of the gateway itself, in its own form: the array is `error`, not `errors`."""
    body = {
        "success": False,
        "result": [],
        "messages": [],
        "error": [{"code": problem.code, "message": problem.message}],
        "name": "AiGatewayError",
        "internalCode": problem.code,
        "message": problem.message,
    }
    return Reply(status=problem.status, headers=(JSON,), body=msgspec.json.encode(body))
