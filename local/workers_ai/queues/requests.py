"""What a call of Queues asks for.

Read from its path, query and body, and refused where it is wrong.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from local.workers_ai import edge, replies
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import error
from local.workers_ai.queues.events import wrong_names
from local.workers_ai.queues.queue import Consumer
from local.workers_ai.replies import Reply

QUEUE_SETTINGS = {
    "delivery_delay": (0, 0, 86_400),
    "message_retention_period": (345_600, 60, 1_209_600),
}
_CONSUMER_SETTINGS = {
    "batch_size": (10, 1, 100),
    "max_retries": (3, 0, 100),
    "visibility_timeout_ms": (30_000, 0, 43_200_000),
    "retry_delay": (0, 0, 86_400),
}
"""Default, least and most of each setting."""
MOST_PULLED, PULLED = 100, 5
MAX_MESSAGE_BYTES = 128_000


class Asked(NamedTuple):
    """One call."""

    account: str
    parts: list[str]
    """What follows `queues/`, or `subscriptions/`, in the path."""
    query: Mapping[str, list[str]]
    sent: dict[str, Any]
    behaviour: Behaviour
    now: float


class RefusedError(Exception):
    """An error to answer with."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.problem = error(code, message)


def read_call(
    account: str, path: str, query: str, body: bytes, behaviour: Behaviour, now: float
) -> Asked:
    """A call as data; a body that is no JSON object counts as an empty one."""
    try:
        sent = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        sent = {}
    parts = [part for part in path.split("/") if part]
    return Asked(
        account, parts, parse_qs(query), sent if isinstance(sent, dict) else {}, behaviour, now
    )


def refusal(authorization: str | None, account: str, behaviour: Behaviour) -> Reply | None:
    """The answer to a caller that may not use this account's queues; None if it may."""
    if behaviour.queues_refused == "page":
        return replies.page(403)
    if behaviour.queues_refused:
        status, code = behaviour.queues_refused.split("/")
        return replies.failure(error(int(code), status=int(status)), behaviour)
    known = replace(behaviour, tokens=(*behaviour.tokens, *behaviour.queues_tokens))
    refused = edge.refusal(authorization, account, known)
    token = (authorization or "").removeprefix("Bearer ")
    if refused is None and behaviour.queues_tokens and token not in behaviour.queues_tokens:
        refused = error(10000, status=403)
    return None if refused is None else replies.failure(refused, behaviour)


def object_in(sent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object of this name; an empty one if there is none."""
    inner = sent.get(name)
    return inner if isinstance(inner, dict) else {}


def number_in(sent: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """The number of this name, within its bounds."""
    value = sent.get(name, default)
    if not isinstance(value, int) or not least <= value <= most:
        raise RefusedError(10207, f"{name}: a number from {least} to {most} is expected")
    return value


def settings_in(
    sent: object, known: Mapping[str, tuple[int, int, int]], now: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Every known setting: as given, else as it is now, else its default."""
    given = sent if isinstance(sent, dict) else {}
    defaults = {name: default for name, (default, _, _) in known.items()} | dict(now or {})
    return {
        name: number_in(given, name, defaults[name], least, most)
        for name, (_, least, most) in known.items()
    }


def check_names(names: object) -> None:
    """Refuse names of events that there are not."""
    wrong = wrong_names(names)
    if wrong is not None:
        raise RefusedError(wrong.code, wrong.message)


def entries_in(sent: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The array of this name, whose elements name a lease each."""
    entries = sent.get(name) or []
    if not isinstance(entries, list) or not all(
        isinstance(one, dict) and "lease_id" in one for one in entries
    ):
        raise RefusedError(10207, f"{name}: an array of objects with lease_id is expected")
    return entries


def consumer_in(consumer_id: str, asked: Asked) -> Consumer:
    """The consumer that a call describes."""
    kind, script = asked.sent.get("type"), str(asked.sent.get("script_name", ""))
    if kind not in ("http_pull", "worker") or (kind == "worker" and not script):
        raise RefusedError(10207, "type: http_pull, or worker with script_name, is expected")
    settings = settings_in(asked.sent.get("settings"), _CONSUMER_SETTINGS)
    return Consumer(consumer_id, asked.now, kind, script, settings)
