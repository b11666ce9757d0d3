"""Every address of the local Workers AI: its own, the Worker's, the REST API's."""

from collections.abc import Mapping

import msgspec

from local.workers_ai import replies, worker
from local.workers_ai.api import WorkersAI
from local.workers_ai.behaviour import Behaviour, SwitchError
from local.workers_ai.codes import error
from local.workers_ai.faults import Fault
from local.workers_ai.replies import JSON, Reply

_OWN = "/_local/"


def handle(
    api: WorkersAI, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
) -> Reply:
    """Answer one request; the arguments are those of `WorkersAI.handle`."""
    if path.startswith(_OWN):
        return _own(api, method, path, body)
    if path.startswith(worker.PREFIXES):
        return worker.handle(api, method, path, headers, body)
    given = {name.lower(): value for name, value in headers.items()}
    refused = None
    if "cf-aig-gateway-id" in given and "/ai/run/" in path:
        refused = _gateways_refusal(given, api.behaviour)
    return refused or api.handle(method, path, query, headers, body)


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


def _gateways_refusal(headers: Mapping[str, str], behaviour: Behaviour) -> Reply | None:
    """AI Gateway's answer to a call without the token that it wants; None if it lets it pass."""
    token = behaviour.gateway_token
    is_right = not token or headers.get("cf-aig-authorization") == f"Bearer {token}"
    return None if is_right else replies.failure(error(2009), behaviour)
