"""The routes under `/_local/`, beside the API's own: the bill, the switches, the faults and the counts, over HTTP."""

import msgspec

from local.workers_ai.api import WorkersAI
from local.workers_ai.behaviour import SwitchError
from local.workers_ai.faults import Fault
from local.workers_ai.reply import JSON, Reply

PREFIX = "/_local/"


def handle(api: WorkersAI, method: str, path: str, body: bytes) -> Reply:
    """Answer one request whose path begins with `PREFIX`."""
    try:
        match method, path.removeprefix(PREFIX):
            case "GET", "accepted" | "calls" | "struck" | "events" | "behaviour" | "faults" as asked:
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
    except (SwitchError, msgspec.MsgspecError) as error:
        return _reply({"error": str(error)}, 400)


def _reply(value: object, status: int = 200) -> Reply:
    return Reply(status=status, headers=(JSON,), body=msgspec.json.encode(value))
