"""What calls of Queues answer with: the shapes of queues, consumers, subscriptions and messages."""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any

import msgspec

from local.workers_ai.account import count_in
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.queues.queue import Consumer, Message, Queue
from local.workers_ai.queues.requests import Asked


@dataclass(slots=True)
class Subscription:
    """Whose events go to which queue."""

    id: str
    account: str
    created_at: float
    modified_at: float
    name: str
    enabled: bool
    model: str
    queue_id: str
    events: list[str]


@dataclass(slots=True)
class Answer:
    """What a call answers with: a result, and for lists which page it is."""

    result: object
    info: dict[str, int] | None = None


def page_of(shown: list[Any], asked: Asked, size: int) -> Answer:
    """One page of a list, and which one it is."""
    number, size = count_in(asked.query, "page", 1), count_in(asked.query, "per_page", size)
    part = shown[(number - 1) * size : number * size]
    info = {"count": len(part), "page": number, "per_page": size, "total_count": len(shown)}
    return Answer(part, info | {"total_pages": ceil(len(shown) / size)})


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def shown_queue(queue: Queue) -> dict[str, Any]:
    """A queue."""
    consumers = [shown_consumer(queue, queue.consumer)] if queue.consumer else []
    return {
        "queue_id": queue.queue_id,
        "queue_name": queue.name,
        "created_on": _time(queue.created_at),
        "modified_on": _time(queue.created_at),
        "producers_total_count": 0,
        "producers": [],
        "consumers_total_count": len(consumers),
        "consumers": consumers,
        "settings": {**queue.settings, "delivery_paused": False},
    }


def shown_consumer(queue: Queue, consumer: Consumer) -> dict[str, Any]:
    """A consumer of a queue."""
    script = {"script": consumer.script, "script_name": consumer.script} if consumer.script else {}
    return {
        "consumer_id": consumer.consumer_id,
        "queue_id": queue.queue_id,
        "queue_name": queue.name,
        "created_on": _time(consumer.created_at),
        "type": consumer.type,
        **script,
        "settings": consumer.settings,
    }


def shown_subscription(one: Subscription) -> dict[str, Any]:
    """A subscription."""
    return {
        "id": one.id,
        "created_at": _time(one.created_at),
        "modified_at": _time(one.modified_at),
        "name": one.name,
        "enabled": one.enabled,
        "source": {"type": "workersAi.model", "model_name": one.model},
        "destination": {"type": "queues.queue", "queue_id": one.queue_id},
        "events": list(one.events),
    }


def shown_message(message: Message, behaviour: Behaviour) -> dict[str, Any]:
    """A message that was handed out."""
    return {
        "body": _shown_body(message, behaviour),
        "id": message.id,
        "timestamp_ms": int((message.stored_at + behaviour.clock_ahead) * 1000),
        "attempts": message.attempts,
        "metadata": {
            "CF-sourceMessageSource": "event-subscription",
            "CF-Content-Type": message.content_type,
        },
        "lease_id": message.lease_id,
    }


def _shown_body(message: Message, behaviour: Behaviour) -> object:
    if message.content_type == "text" or behaviour.event_bodies == "text":
        return message.body.decode(errors="replace")
    if behaviour.event_bodies == "object":
        try:
            return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(message.body)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return message.body.decode(errors="replace")
    return base64.b64encode(message.body).decode()
