"""Queues and event subscriptions of every account: what each call does, and what it answers.

The calls that Dropbatch makes, and those of a person in the dashboard. A queue's own bookkeeping
and what events say are elsewhere.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from local.workers_ai import edge, replies
from local.workers_ai.batches import Batch
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import error
from local.workers_ai.queues.events import FULL, Events
from local.workers_ai.queues.queue import Consumer, Message, Queue, drawn_id
from local.workers_ai.replies import Reply

_QUEUE_SETTINGS = {"message_retention_period": 345_600}
_CONSUMER_SETTINGS = {"max_retries": 3, "visibility_timeout_ms": 30_000}
PULLED = 5
EVENTS = ("batch.queued", "batch.succeeded", "batch.failed")


class Call(NamedTuple):
    account: str
    parts: list[str]
    """What follows `queues/`, or `subscriptions/`, in the path."""
    query: Mapping[str, list[str]]
    sent: dict[str, Any]
    behaviour: Behaviour
    now: float


@dataclass(slots=True)
class Subscription:
    """Whose events go to which queue."""

    id: str
    account: str
    created_at: float
    name: str
    enabled: bool
    model: str
    queue_id: str
    events: list[str]


class RefusedError(Exception):
    """An error to answer with."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.problem = error(code, message)


def _refusal(asked: edge.Asked, behaviour: Behaviour) -> Reply | None:
    """The answer to a caller that may not use this account's queues; None if it may."""
    if behaviour.queues_refused == "page":
        return replies.page(403)
    if behaviour.queues_refused:
        status, code = behaviour.queues_refused.split("/")
        return replies.failure(error(int(code), status=int(status)), behaviour)
    refused = edge.refusal(asked, behaviour)
    return None if refused is None else replies.failure(refused, behaviour)


class QueueService:
    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._events = Events(self._subscribed, self._deliver)
        self._made = 0

    def accepted(self, batch: Batch, now: float, behaviour: Behaviour) -> None:
        self._events.advance(now, behaviour)
        self._events.accepted(batch, batch.accepted_at)

    def state(self, now: float, behaviour: Behaviour) -> list[dict[str, Any]]:
        self._events.advance(now, behaviour)
        names = "name", "pulled", "acked"
        return [{name: getattr(one, name) for name in names} for one in self._queues.values()]

    def handle(self, asked: edge.Asked, behaviour: Behaviour) -> Reply:
        if (refused := _refusal(asked, behaviour)) is not None:
            return refused
        self._events.advance(asked.now, behaviour)
        route, sent = asked.route, edge.decoded(asked.body)
        members, parts = sent if isinstance(sent, dict) else {}, route.rest.split("/")[1:]
        call = Call(route.account, parts, asked.query, members, behaviour, asked.now)
        table = _QUEUE_CALLS if route.resource == "queues" else _SUBSCRIPTION_CALLS
        pattern = " ".join([asked.method, *(part if part in _WORDS else "*" for part in parts)])
        act = table.get(pattern)
        if act is None:
            known = any(one.partition(" ")[2] == pattern.partition(" ")[2] for one in table)
            return replies.failure(error(7001 if known else 7000), behaviour)
        try:
            answer = act(self, call)
        except RefusedError as refusal:
            return replies.failure(refusal.problem, behaviour)
        return answer if isinstance(answer, Reply) else replies.success(answer, behaviour)

    # --- Queues and consumers

    def list_queues(self, call: Call) -> Reply:
        names = call.query.get("name", [])
        found = [one for one in self._of(call.account) if not names or one.name in names]
        return replies.listed([_shown_queue(one) for one in found], call.query, call.behaviour)

    def create_queue(self, call: Call) -> object:
        name = call.sent.get("queue_name")
        if not isinstance(name, str):
            raise RefusedError(10207, "queue_name: a string is expected")
        if any(one.name == name for one in self._of(call.account)):
            raise RefusedError(11009)
        settings = _QUEUE_SETTINGS | _object_in(call.sent, "settings")
        queue = Queue(self._new_id("queue", call), name, call.account, call.now, settings)
        self._queues[queue.queue_id] = queue
        return _shown_queue(queue)

    def delete_queue(self, call: Call) -> object:
        del self._queues[self._queue(call).queue_id]
        return None

    def list_consumers(self, call: Call) -> object:
        queue = self._queue(call)
        return [_shown_consumer(queue, queue.consumer)] if queue.consumer else []

    def create_consumer(self, call: Call) -> object:
        queue = self._queue(call)
        if queue.consumer is not None:
            raise RefusedError(11004)
        queue.consumer = _consumer_in(self._new_id("consumer", call), call)
        return _shown_consumer(queue, queue.consumer)

    def change_consumer(self, call: Call) -> object:
        queue = self._queue(call)
        if queue.consumer is None or queue.consumer.consumer_id != call.parts[2]:
            raise RefusedError(11003)
        queue.consumer = _consumer_in(queue.consumer.consumer_id, call)
        return _shown_consumer(queue, queue.consumer)

    # --- Messages

    def push_many(self, call: Call) -> object:
        queue, messages = self._queue(call), call.sent.get("messages")
        for message in messages or []:
            body, kind = message["body"], message.get("content_type", "json")
            content = body.encode() if kind == "text" else msgspec.json.encode(body)
            queue.put(content, kind, call.now)
        return None

    def pull(self, call: Call) -> object:
        """Messages with a lease each; an empty answer at once where there are none."""
        queue = self._queue(call)
        if queue.consumer is None or queue.consumer.type != "http_pull":
            raise RefusedError(11015)
        most = call.sent.get("batch_size", PULLED)
        timeout = queue.consumer.settings["visibility_timeout_ms"]
        seconds = call.sent.get("visibility_timeout_ms", timeout) / 1000
        pulled = queue.pull(most, seconds, call.now, call.behaviour.seed)
        messages = [_shown_message(message, call.behaviour) for message in pulled]
        return {"message_backlog_count": queue.backlog(call.now), "messages": messages}

    def ack(self, call: Call) -> object:
        queue, acks = self._queue(call), call.sent.get("acks")
        if not isinstance(acks, list) or any("lease_id" not in one for one in acks):
            raise RefusedError(10207, "acks: an array of objects with lease_id is expected")
        done = {one["lease_id"]: queue.ack(one["lease_id"], call.now) for one in acks}
        late = [lease for lease, is_good in done.items() if not is_good]
        warnings = dict.fromkeys(late, "the lease has ended")
        return {"ackCount": sum(done.values()), "retryCount": 0, "warnings": warnings}

    # --- Subscriptions

    def list_subscriptions(self, call: Call) -> Reply:
        queues = call.query.get("queue_id", [])
        of_account = self._subscribers(call.account)
        found = [one for one in of_account if not queues or one.queue_id in queues]
        shown = [_shown_subscription(one) for one in found]
        return replies.listed(shown, call.query, call.behaviour)

    def create_subscription(self, call: Call) -> object:
        sent, source = call.sent, _object_in(call.sent, "source")
        name, model = sent.get("name"), source.get("model_name")
        is_named = isinstance(model, str) and isinstance(name, str)
        if source.get("type") != "workersAi.model" or not is_named:
            raise RefusedError(10207, "name, source.type and source.model_name are expected")
        subscription = Subscription(
            self._new_id("subscription", call),
            call.account,
            call.now,
            str(name),
            sent.get("enabled") is not False,
            str(model),
            self._destination_in(call, ""),
            _events_in(sent),
        )
        per = call.behaviour.subscriptions_per
        for other in self._subscribers(call.account):
            if other.name == name or per == "source" or (per == "model" and other.model == model):
                raise RefusedError(11902)
        self._subscriptions[subscription.id] = subscription
        return _shown_subscription(subscription)

    def change_subscription(self, call: Call) -> object:
        one, sent = self._subscription(call), call.sent
        one.events = _events_in(sent) if "events" in sent else one.events
        one.queue_id = self._destination_in(call, one.queue_id)
        one.name = str(sent.get("name", one.name))
        one.enabled = bool(sent.get("enabled", one.enabled))
        return _shown_subscription(one)

    def delete_subscription(self, call: Call) -> object:
        subscription = self._subscriptions.pop(self._subscription(call).id)
        return _shown_subscription(subscription)

    # --- What events need

    def _subscribed(self, account: str, model: str, name: str) -> list[str]:
        wanted = (one for one in self._subscribers(account) if one.enabled and one.model == model)
        return [one.id for one in wanted if name in one.events and one.queue_id in self._queues]

    def _deliver(self, subscription: str, body: bytes, at: float) -> None:
        heard = self._subscriptions.get(subscription)
        queue = self._queues.get(heard.queue_id) if heard is not None else None
        if queue is not None:
            queue.put(body, "json", at)

    # --- Finding

    def _of(self, account: str) -> Iterator[Queue]:
        return (queue for queue in self._queues.values() if queue.account == account)

    def _subscribers(self, account: str) -> Iterator[Subscription]:
        return (one for one in self._subscriptions.values() if one.account == account)

    def _queue(self, call: Call) -> Queue:
        queue = self._queues.get(call.parts[0])
        if queue is None or queue.account != call.account:
            # The gateway of messages has codes of its own.
            raise RefusedError(10104 if call.parts[1:2] == ["messages"] else 11000)
        return queue

    def _destination_in(self, call: Call, now: str) -> str:
        queue_id = _object_in(call.sent, "destination").get("queue_id", now)
        if queue_id not in {one.queue_id for one in self._of(call.account)}:
            raise RefusedError(11000)
        return str(queue_id)

    def _subscription(self, call: Call) -> Subscription:
        subscription = self._subscriptions.get(call.parts[0])
        if subscription is None or subscription.account != call.account:
            raise RefusedError(11901)
        return subscription

    def _new_id(self, what: str, call: Call) -> str:
        self._made += 1
        return drawn_id(what, call.behaviour.seed, call.account, self._made)


_Act = Callable[[QueueService, Call], object]
_WORDS = ("consumers", "messages", "pull", "ack", "batch")
_QUEUE_CALLS: dict[str, _Act] = {
    "GET": QueueService.list_queues,
    "POST": QueueService.create_queue,
    "DELETE *": QueueService.delete_queue,
    "GET * consumers": QueueService.list_consumers,
    "POST * consumers": QueueService.create_consumer,
    "PUT * consumers *": QueueService.change_consumer,
    "POST * messages batch": QueueService.push_many,
    "POST * messages pull": QueueService.pull,
    "POST * messages ack": QueueService.ack,
}
_SUBSCRIPTION_CALLS: dict[str, _Act] = {
    "GET": QueueService.list_subscriptions,
    "POST": QueueService.create_subscription,
    "PATCH *": QueueService.change_subscription,
    "DELETE *": QueueService.delete_subscription,
}


# --- What a call sends, and what it is answered with


def _object_in(sent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object of this name; an empty one if there is none."""
    inner = sent.get(name)
    return inner if isinstance(inner, dict) else {}


def _events_in(sent: Mapping[str, Any]) -> list[str]:
    """The events' names without the prefix that they may be given with."""
    given = sent.get("events")
    names = [str(one).removeprefix(FULL) for one in given] if isinstance(given, list) else []
    if not names or not set(names) <= set(EVENTS):
        raise RefusedError(10207, f"events: an array of {', '.join(EVENTS)} is expected")
    return names


def _consumer_in(consumer_id: str, call: Call) -> Consumer:
    kind = call.sent.get("type")
    if kind not in ("http_pull", "worker"):
        raise RefusedError(10207, "type: http_pull or worker is expected")
    settings = _CONSUMER_SETTINGS | _object_in(call.sent, "settings")
    return Consumer(consumer_id, call.now, kind, settings)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _shown_queue(queue: Queue) -> dict[str, Any]:
    consumers = [_shown_consumer(queue, queue.consumer)] if queue.consumer else []
    return {
        "queue_id": queue.queue_id,
        "queue_name": queue.name,
        "created_on": _time(queue.created_at),
        "consumers": consumers,
        "settings": queue.settings,
    }


def _shown_consumer(queue: Queue, consumer: Consumer) -> dict[str, Any]:
    return {
        "consumer_id": consumer.consumer_id,
        "queue_id": queue.queue_id,
        "queue_name": queue.name,
        "created_on": _time(consumer.created_at),
        "type": consumer.type,
        "settings": consumer.settings,
    }


def _shown_subscription(one: Subscription) -> dict[str, Any]:
    return {
        "id": one.id,
        "created_at": _time(one.created_at),
        "name": one.name,
        "enabled": one.enabled,
        "source": {"type": "workersAi.model", "model_name": one.model},
        "destination": {"type": "queues.queue", "queue_id": one.queue_id},
        "events": list(one.events),
    }


def _shown_message(message: Message, behaviour: Behaviour) -> dict[str, Any]:
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
