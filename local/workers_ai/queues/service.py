"""Queues and event subscriptions of every account: what each call does, and what it answers.

A queue's own bookkeeping and what events say are elsewhere.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from local.workers_ai import replies
from local.workers_ai.batches import Batch
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import error
from local.workers_ai.queues.events import Events, short_name
from local.workers_ai.queues.queue import Consumer, Queue, drawn_id
from local.workers_ai.queues.requests import (
    MAX_MESSAGE_BYTES,
    MOST_PULLED,
    PULLED,
    QUEUE_SETTINGS,
    Asked,
    RefusedError,
    check_names,
    consumer_in,
    entries_in,
    number_in,
    object_in,
    settings_in,
)
from local.workers_ai.queues.shapes import (
    Answer,
    Subscription,
    page_of,
    shown_consumer,
    shown_message,
    shown_queue,
    shown_subscription,
)
from local.workers_ai.replies import Reply

_PER_PAGE = 20


class QueueService:
    """Queues, their consumers and the subscriptions."""

    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._events = Events(self._subscribed, self._deliver)
        self._made = 0

    def accepted(self, batch: Batch, now: float, behaviour: Behaviour) -> None:
        """A batch was accepted and queued."""
        self._events.advance(now, behaviour)
        self._events.accepted(batch, batch.accepted_at)

    def state(self, now: float, behaviour: Behaviour) -> list[dict[str, Any]]:
        """Every queue with its counts."""
        self._events.advance(now, behaviour)
        return [
            {"name": one.name, "backlog": one.backlog(now), **one.counts}
            for one in self._queues.values()
        ]

    def handle(self, method: str, asked: Asked, resource: str) -> Reply:
        """Answer one call of a caller that may make it."""
        self._events.advance(asked.now, asked.behaviour)
        table = _QUEUE_CALLS if resource == "queues" else _SUBSCRIPTION_CALLS
        pattern = " ".join([method, *(part if part in _WORDS else "*" for part in asked.parts)])
        act = table.get(pattern)
        if act is None:
            known = any(one.partition(" ")[2] == pattern.partition(" ")[2] for one in table)
            return replies.failure(error(7001 if known else 7000), asked.behaviour)
        try:
            answer = act(self, asked)
        except RefusedError as refused:
            return replies.failure(refused.problem, asked.behaviour)
        info: dict[str, Any] = {} if answer.info is None else {"result_info": answer.info}
        return replies.success(answer.result, asked.behaviour, **info)

    # --- Queues

    def list_queues(self, asked: Asked) -> Answer:
        """Queues, by name if one is asked for."""
        names = asked.query.get("name", [])
        found = [one for one in self._of(asked.account) if not names or one.name in names]
        return page_of([shown_queue(one) for one in found], asked, MOST_PULLED)

    def create_queue(self, asked: Asked) -> Answer:
        """A new queue."""
        name = asked.sent.get("queue_name")
        if (
            not isinstance(name, str)
            or not 1 <= len(name) <= 63
            or not name.replace("-", "").isalnum()
        ):
            raise RefusedError(
                10207, "queue_name: 1 to 63 letters, digits and hyphens are expected"
            )
        if any(one.name == name for one in self._of(asked.account)):
            raise RefusedError(11009)
        settings = settings_in(asked.sent.get("settings"), QUEUE_SETTINGS)
        queue = Queue(self._new_id("queue", asked), name, asked.account, asked.now, settings)
        self._queues[queue.queue_id] = queue
        return Answer(shown_queue(queue))

    def get_queue(self, asked: Asked) -> Answer:
        """One queue."""
        return Answer(shown_queue(self._queue(asked)))

    def change_queue(self, asked: Asked) -> Answer:
        """Other settings."""
        queue = self._queue(asked)
        queue.settings |= settings_in(asked.sent.get("settings"), QUEUE_SETTINGS, queue.settings)
        return Answer(shown_queue(queue))

    def delete_queue(self, asked: Asked) -> Answer:
        """A queue with its messages and its consumer."""
        del self._queues[self._queue(asked).queue_id]
        return Answer(None)

    # --- Consumers

    def list_consumers(self, asked: Asked) -> Answer:
        """The consumer of a queue, if it has one."""
        queue = self._queue(asked)
        return Answer([shown_consumer(queue, queue.consumer)] if queue.consumer else [])

    def create_consumer(self, asked: Asked) -> Answer:
        """A consumer for a queue that has none."""
        queue = self._queue(asked)
        if queue.consumer is not None:
            raise RefusedError(11004)
        queue.consumer = consumer_in(self._new_id("consumer", asked), asked)
        return Answer(shown_consumer(queue, queue.consumer))

    def change_consumer(self, asked: Asked) -> Answer:
        """Another type or other settings for a consumer."""
        queue = self._queue(asked)
        queue.consumer = consumer_in(self._consumer_of(queue, asked).consumer_id, asked)
        return Answer(shown_consumer(queue, queue.consumer))

    def delete_consumer(self, asked: Asked) -> Answer:
        """From here on nobody reads the queue."""
        queue = self._queue(asked)
        self._consumer_of(queue, asked)
        queue.consumer = None
        return Answer(None)

    # --- Messages

    def push(self, asked: Asked) -> Answer:
        """One message."""
        self._put(self._queue(asked), asked.sent, asked.now)
        return Answer(None)

    def push_many(self, asked: Asked) -> Answer:
        """Up to 100 messages."""
        queue, messages = self._queue(asked), asked.sent.get("messages")
        if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_PULLED:
            raise RefusedError(10207)
        for message in messages:
            self._put(queue, message if isinstance(message, dict) else {}, asked.now)
        return Answer(None)

    def pull(self, asked: Asked) -> Answer:
        """Messages with a lease each; an empty answer at once where there are none."""
        queue = self._queue(asked)
        if queue.consumer is None or queue.consumer.type != "http_pull":
            raise RefusedError(11015)
        timeout = queue.consumer.settings["visibility_timeout_ms"]
        most = number_in(asked.sent, "batch_size", PULLED, 1, MOST_PULLED)
        seconds = number_in(asked.sent, "visibility_timeout_ms", timeout, 0, 43_200_000) / 1000
        pulled = queue.pull(most, seconds, asked.now, asked.behaviour.seed)
        messages = [shown_message(message, asked.behaviour) for message in pulled]
        return Answer({"message_backlog_count": queue.backlog(asked.now), "messages": messages})

    def ack(self, asked: Asked) -> Answer:
        """Messages that are done with, and some to be handed out again."""
        queue = self._queue(asked)
        acks, retries = entries_in(asked.sent, "acks"), entries_in(asked.sent, "retries")
        done = [queue.ack(one["lease_id"], asked.now) for one in acks]
        again = [
            queue.retry(one["lease_id"], asked.now, number_in(one, "delay_seconds", 0, 0, 43_200))
            for one in retries
        ]
        late = [
            one["lease_id"]
            for one, good in zip(acks + retries, done + again, strict=True)
            if not good
        ]
        warnings = dict.fromkeys(late, "the lease has ended")
        return Answer({"ackCount": sum(done), "retryCount": sum(again), "warnings": warnings})

    # --- Subscriptions

    def list_subscriptions(self, asked: Asked) -> Answer:
        """Subscriptions, by queue if one is asked for."""
        queues = asked.query.get("queue_id", [])
        found = [
            one for one in self._subscribers(asked.account) if not queues or one.queue_id in queues
        ]
        return page_of([shown_subscription(one) for one in found], asked, _PER_PAGE)

    def create_subscription(self, asked: Asked) -> Answer:
        """A model's events go to a queue from now on."""
        sent, source = asked.sent, object_in(asked.sent, "source")
        name, model, queue_id = (
            sent.get("name"),
            source.get("model_name"),
            object_in(sent, "destination").get("queue_id"),
        )
        if (
            source.get("type") != "workersAi.model"
            or not isinstance(model, str)
            or not isinstance(name, str)
        ):
            raise RefusedError(10207, "name, source.type and source.model_name are expected")
        check_names(sent.get("events"))
        if queue_id not in {one.queue_id for one in self._of(asked.account)}:
            raise RefusedError(11000)
        for other in self._subscribers(asked.account):
            per = asked.behaviour.subscriptions_per
            if other.name == name or per == "source" or (per == "model" and other.model == model):
                raise RefusedError(11902)
        subscription = Subscription(
            id=self._new_id("subscription", asked),
            account=asked.account,
            created_at=asked.now,
            modified_at=asked.now,
            name=name,
            enabled=sent.get("enabled") is not False,
            model=model,
            queue_id=str(queue_id),
            events=[short_name(one) for one in sent["events"]],
        )
        self._subscriptions[subscription.id] = subscription
        return Answer(shown_subscription(subscription))

    def get_subscription(self, asked: Asked) -> Answer:
        """One subscription."""
        return Answer(shown_subscription(self._subscription(asked)))

    def change_subscription(self, asked: Asked) -> Answer:
        """Another name, other events, on or off."""
        subscription, sent = self._subscription(asked), asked.sent
        if "events" in sent:
            check_names(sent["events"])
            subscription.events = [short_name(one) for one in sent["events"]]
        queue_id = object_in(sent, "destination").get("queue_id", subscription.queue_id)
        if queue_id not in {one.queue_id for one in self._of(asked.account)}:
            raise RefusedError(11000)
        subscription.queue_id = str(queue_id)
        subscription.name = str(sent.get("name", subscription.name))
        subscription.enabled = bool(sent.get("enabled", subscription.enabled))
        subscription.modified_at = asked.now
        return Answer(shown_subscription(subscription))

    def delete_subscription(self, asked: Asked) -> Answer:
        """Nobody hears of these events any more."""
        subscription = self._subscriptions.pop(self._subscription(asked).id)
        return Answer(shown_subscription(subscription))

    # --- What events need

    def _subscribed(self, account: str, model: str, name: str) -> list[str]:
        return [
            one.id
            for one in self._subscribers(account)
            if one.enabled
            and one.model == model
            and name in one.events
            and one.queue_id in self._queues
        ]

    def _deliver(self, subscription: str, body: bytes, at: float) -> None:
        heard = self._subscriptions.get(subscription)
        queue = self._queues.get(heard.queue_id) if heard is not None else None
        if queue is not None:
            queue.put(body, "json", at, float(queue.settings["delivery_delay"]))

    # --- Finding

    def _of(self, account: str) -> Iterator[Queue]:
        return (queue for queue in self._queues.values() if queue.account == account)

    def _subscribers(self, account: str) -> Iterator[Subscription]:
        return (one for one in self._subscriptions.values() if one.account == account)

    def _queue(self, asked: Asked) -> Queue:
        queue = self._queues.get(asked.parts[0])
        if queue is None or queue.account != asked.account:
            # The gateway of messages has codes of its own.
            raise RefusedError(10104 if asked.parts[1:2] == ["messages"] else 11000)
        return queue

    def _consumer_of(self, queue: Queue, asked: Asked) -> Consumer:
        if queue.consumer is None or queue.consumer.consumer_id != asked.parts[2]:
            raise RefusedError(11003)
        return queue.consumer

    def _subscription(self, asked: Asked) -> Subscription:
        subscription = self._subscriptions.get(asked.parts[0])
        if subscription is None or subscription.account != asked.account:
            raise RefusedError(11901)
        return subscription

    def _put(self, queue: Queue, sent: Mapping[str, Any], now: float) -> None:
        body, kind = sent.get("body"), sent.get("content_type", "json")
        content = (
            body.encode() if kind == "text" and isinstance(body, str) else msgspec.json.encode(body)
        )
        if len(content) > MAX_MESSAGE_BYTES:
            raise RefusedError(10204)
        queue.put(
            content,
            str(kind),
            now,
            float(sent.get("delay_seconds", queue.settings["delivery_delay"])),
        )

    def _new_id(self, what: str, asked: Asked) -> str:
        self._made += 1
        return drawn_id(what, asked.behaviour.seed, asked.account, self._made)


_Act = Callable[[QueueService, Asked], Answer]
_WORDS = ("consumers", "messages", "pull", "ack", "batch")
_QUEUE_CALLS: dict[str, _Act] = {
    "GET": QueueService.list_queues,
    "POST": QueueService.create_queue,
    "GET *": QueueService.get_queue,
    "PATCH *": QueueService.change_queue,
    "PUT *": QueueService.change_queue,
    "DELETE *": QueueService.delete_queue,
    "GET * consumers": QueueService.list_consumers,
    "POST * consumers": QueueService.create_consumer,
    "PUT * consumers *": QueueService.change_consumer,
    "DELETE * consumers *": QueueService.delete_consumer,
    "POST * messages": QueueService.push,
    "POST * messages batch": QueueService.push_many,
    "POST * messages pull": QueueService.pull,
    "POST * messages ack": QueueService.ack,
}
_SUBSCRIPTION_CALLS: dict[str, _Act] = {
    "GET": QueueService.list_subscriptions,
    "POST": QueueService.create_subscription,
    "GET *": QueueService.get_subscription,
    "PATCH *": QueueService.change_subscription,
    "DELETE *": QueueService.delete_subscription,
}
