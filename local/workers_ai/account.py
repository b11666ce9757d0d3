"""What an account may ask besides runs of models: whether its token is good, which models are."""

from collections.abc import Mapping
from urllib.parse import parse_qs

from local.workers_ai import edge, replies
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import error
from local.workers_ai.models.catalogue import listing
from local.workers_ai.replies import Reply


def answer(route: edge.Route, authorization: str | None, query: str, behaviour: Behaviour) -> Reply:
    """Answer one such call."""
    refused = edge.refusal(authorization, route.account, behaviour)
    if route.resource == "verify" and refused is not None and refused.code == 10000:
        refused = error(1000, "Invalid API Token", 401)
    if refused is not None:
        return replies.failure(refused, behaviour)
    if route.resource == "verify":
        message = {"code": 10000, "message": "This API Token is valid and active", "type": None}
        token = {"id": "0123456789abcdef0123456789abcdef", "status": "active"}
        return replies.success(token, behaviour, messages=[message])
    asked, found = parse_qs(query), list(listing())
    number, size = count_in(asked, "page", 1), count_in(asked, "per_page", 50)
    shown = found[(number - 1) * size : number * size]
    info = {"count": len(shown), "page": number, "per_page": size, "total_count": len(found)}
    return replies.success(shown, behaviour, result_info=info)


def count_in(asked: Mapping[str, list[str]], name: str, default: int) -> int:
    """A positive number among the query's parameters."""
    text = asked.get(name, [""])[0]
    return max(1, int(text)) if text.isdigit() else default
