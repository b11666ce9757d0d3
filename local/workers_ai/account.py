"""What an account may ask besides runs of models.

Whether its token is good, and which models there are.
"""

from collections.abc import Mapping
from urllib.parse import parse_qs

from local.workers_ai import edge, replies
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import error
from local.workers_ai.models.catalogue import MODELS, listing
from local.workers_ai.replies import Reply


def answer(
    route: edge.Route,
    authorization: str | None,
    query: str,
    batch_names: frozenset[str],
    behaviour: Behaviour,
) -> Reply:
    """Answer one such call; `batch_names` are the models that can be queued."""
    refused = edge.refusal(authorization, route.account, behaviour)
    if route.resource == "verify":
        if refused is not None:
            if refused.code == 10000:
                refused = error(1000, "Invalid API Token", 401)
            return replies.failure(refused, behaviour)
        message = {"code": 10000, "message": "This API Token is valid and active", "type": None}
        token = {"id": "0123456789abcdef0123456789abcdef", "status": "active"}
        return replies.success(token, behaviour, messages=[message])
    if refused is not None:
        return replies.failure(refused, behaviour)
    asked = parse_qs(query)
    wanted, task = asked.get("search", [""])[0], asked.get("task", [""])[0]
    found = [
        entry
        for entry, model in zip(listing(batch_names), MODELS.values(), strict=True)
        if wanted.lower() in model.name and task in ("", model.task)
    ]
    number, size = count_in(asked, "page", 1), count_in(asked, "per_page", 50)
    shown = found[(number - 1) * size : number * size]
    info = {"count": len(shown), "page": number, "per_page": size, "total_count": len(found)}
    return replies.success(shown, behaviour, result_info=info)


def count_in(asked: Mapping[str, list[str]], name: str, default: int) -> int:
    """A positive number among the query's parameters."""
    text = asked.get(name, [""])[0]
    return max(1, int(text)) if text.isdigit() else default
