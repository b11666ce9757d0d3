"""AI Gateway in front of the API: its routes, its token, its cache and its retries."""

import re
from collections.abc import Mapping

import msgspec

from local.workers_ai.api import WorkersAI
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError, error
from local.workers_ai.edge import PREFIX
from local.workers_ai.reply import JSON, Reply

ROUTE = re.compile(r"/v1/([0-9a-f]{32})/([A-Za-z0-9_-]{1,64})/workers-ai/(@[A-Za-z0-9._/-]+)")
_SERVER_ERROR = 500


class Gateway:
    """All gateways of one API. Its cache never expires: a client must not depend on how long it lasts."""

    def __init__(self, api: WorkersAI) -> None:
        self._api = api
        self._cache: dict[tuple[str, bytes], Reply] = {}

    def handle(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer one request; the arguments are those of `WorkersAI.handle`, the path matches `ROUTE`."""
        behaviour = self._api.behaviour
        given = {name.lower(): value for name, value in headers.items()}
        route = ROUTE.fullmatch(path)
        if route is None or (behaviour.gateways and route[2] not in behaviour.gateways):
            return _refusal(error(2001))
        if behaviour.gateway_token and given.get("cf-aig-authorization") != f"Bearer {behaviour.gateway_token}":
            return _refusal(error(2009))
        request = f"{path}?{query}", body
        caches = behaviour.gateway_cache and given.get("cf-aig-skip-cache") != "true"
        if caches and request in self._cache:
            return self._cache[request].with_headers(("cf-aig-cache-status", "HIT"))
        upstream = f"{PREFIX}/accounts/{route[1]}/ai/run/{route[3]}"
        for _ in range(_attempts(given, behaviour)):
            reply = self._api.handle(method, upstream, query, headers, body)
            if reply.cut is None and reply.status < _SERVER_ERROR:
                break
        if caches and reply.status == 200 and reply.cut is None:
            self._cache[request] = reply
        return reply


def _attempts(headers: Mapping[str, str], behaviour: Behaviour) -> int:
    """How often the gateway tries a call that fails: the header decides, then the gateway's own settings."""
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
