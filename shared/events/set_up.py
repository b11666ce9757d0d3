"""Makes the queue and subscribes models, at the submit that first needs it.

Removes both when events are switched off.

Everything is found by its name and corrected, so doing it twice, or by two functions at once,
leaves one queue. A function that dies at any point leaves something that the next one finds.
Whatever fails costs a submit at most `SET_UP_SECONDS` and stops nothing: the batch is polled as
without events.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from shared.errors import StorageError
from shared.events.coming import Coming
from shared.events.control_item import EventsItem, EventsState, Subscription
from shared.events.ids import Ids
from shared.observability import logger
from shared.workers_ai.client import WorkersAI
from shared.workers_ai.queues_api import (
    CONSUMER,
    QUEUE_SETTINGS,
    NoCallLeftError,
    QueuesApi,
    QueuesRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.bootstrap import Services

SET_UP_SECONDS = 5.0
"""Seconds that a submit waits at most for the set-up."""
REMOVE_SECONDS = 30.0
OTHER_SECONDS = 0.5
"""Seconds between two looks at what another function sets up, or for a call of the rate budget."""
BUSY_SECONDS = 15.0
"""Seconds after which a set-up that was begun is begun again."""
UNCHANGED_SECONDS = 60.0
"""Seconds for which a process does not look again whether a model is subscribed."""
REFUSED_SET_UP_SECONDS, FAILED_SECONDS = 86_400.0, 3_600.0
"""Seconds until a set-up is tried again.

After a refusal that lasts, and after any other failure.
"""
MAX_MODELS = 200
"""Models that the control item lists: its size is bounded."""
SET_UP_CALLS, SUBSCRIBE_CALLS = 6, 2
"""Calls of a whole set-up, and of one more model's, as a rule.

They are taken at once, so that none stops half-way.
"""
TAKEN = "another subscription has the events of this model"
OF_WORKER = "the queue is read by a Worker, which Dropbatch does not replace"


@dataclass(frozen=True, slots=True)
class Events:
    """The events of the stack's account.

    Attributes:
        item: its control item.
        ids: whose each id is.
        coming: whether the events of each model come.
        api: the Queues API.
        name: of the queue.
        looked: by model, until when this process need not look whether it is subscribed, Unix
            seconds.
    """

    item: EventsItem
    ids: Ids
    coming: Coming
    api: QueuesApi
    name: str
    looked: dict[str, float] = field(default_factory=dict)


def events_of(services: Services) -> Events | None:
    """The events of the stack's account, used or not; None if its transport cannot read a queue."""
    settings = services.settings
    if services.events or not services.api.transport.account_url:
        return services.events
    item = EventsItem(services.ledger.client, settings.table_name, settings.cloudflare_account_id)
    ids = Ids(services.ledger.client, settings.table_name)
    queues = WorkersAI(
        services.api.http, services.api.transport, services.tokens.queues_credentials
    )
    coming = Coming(services.ledger.client, settings.table_name, settings.cloudflare_account_id)
    api = QueuesApi(queues, services.now, pass_on=services.tokens.pass_queues_on)
    return Events(item, ids, coming, api, settings.events_queue_name)


def subscribe(services: Services, model: str) -> None:
    """Have the events of a model's batches sent to the stack's queue.

    Before its first submit is claimed.
    """
    events, now = services.events, services.now()
    if events is None or events.looked.get(model, 0.0) > now:
        return
    events.looked[model] = now + UNCHANGED_SECONDS
    try:
        is_over = _set_up(services, events, model)
        while not is_over and services.now() < now + SET_UP_SECONDS:
            # A batch that is submitted meanwhile would have no events.
            services.sleep(OTHER_SECONDS)
            is_over = _set_up(services, events, model)
    except StorageError as error:
        logger.warning("events not set up", reason=str(error))
        return
    if not is_over:
        events.looked.pop(model, None)


def _set_up(services: Services, events: Events, model: str) -> bool:
    """Set up what a model needs now; False while another function sets something up."""
    state, now = events.item.state(), services.now()
    is_beyond = model not in state.subscriptions and len(state.subscriptions) >= MAX_MODELS
    if is_beyond or not state.needs_set_up(model, now):
        events.item.cached = now, state
        return True
    if state.busy_until > now:
        return False
    calls = SUBSCRIBE_CALLS if state.queue_id else SET_UP_CALLS
    if services.budget.free(now).paused or not services.budget.permit_check(now, calls):
        # The next submit tries again. What refuses models may refuse queues for a day.
        events.looked.pop(model, None)
        return True
    if not events.item.claim(now, now + BUSY_SECONDS):
        return False
    permit = partial(_has_call, services, iter(range(calls)))
    api = replace(events.api, now=services.now, until=now + SET_UP_SECONDS, permit=permit)
    _SetUp(events, api, services.now).run(state, model)
    return True


def _has_call(services: Services, taken: Iterator[int]) -> bool:
    """Whether one more call may be made: one of those that were taken before, or another."""
    return next(taken, None) is not None or services.budget.permit_check(services.now())


@dataclass(frozen=True, slots=True)
class _SetUp:
    """One set-up, by the function that claimed it."""

    events: Events
    api: QueuesApi
    now: Callable[[], float]

    def run(self, state: EventsState, model: str) -> None:
        """Make what lacks, and note it."""
        item = self.events.item
        try:
            queue_id = state.queue_id or self._queue()
        except QueuesRefusedError as refused:
            self._note_refusal(refused)
            return
        try:
            made = Subscription(self._subscription(model, queue_id), self.now())
        except QueuesRefusedError as refused:
            if refused.lasting or isinstance(refused, NoCallLeftError):
                self._note_refusal(refused)
                return
            made = Subscription(again_at=self.now() + FAILED_SECONDS, problem=str(refused))
        logger.info(
            "events of a model", model=model, subscribed=bool(made.id), problem=made.problem
        )
        item.note_subscription(model, made)

    def _note_refusal(self, refused: QueuesRefusedError) -> None:
        now = self.now()
        if isinstance(refused, NoCallLeftError):  # Cloudflare refused nothing.
            self.events.item.change({"busy_until": 0.0})
            return
        until = now + (REFUSED_SET_UP_SECONDS if refused.lasting else FAILED_SECONDS)
        logger.warning("events not set up", reason=str(refused))
        said = {
            "refused_at": now,
            "refusal": str(refused),
            "refused_until": until,
            "busy_until": 0.0,
        }
        self.events.item.change(said)

    def _queue(self) -> str:
        """The stack's queue, with an HTTP consumer.

        Made if it does not exist, corrected if it differs.
        """
        api, name = self.api, self.events.name
        found = api.queue(name)
        if found is None:
            try:
                found = api.make_queue(name)
            except QueuesRefusedError as refused:
                # Another function may have made it meanwhile.
                if not refused.may_exist or (found := api.queue(name)) is None:
                    raise
        queue_id = str(found.get("queue_id", ""))
        if not queue_id:
            raise QueuesRefusedError(HTTPStatus.OK, "a queue without an id")
        if not _has(found.get("settings"), QUEUE_SETTINGS):
            api.correct_queue(queue_id)
        self._consumer(queue_id)
        made = {
            "queue_id": queue_id,
            "queue_name": name,
            "made_at": self.now(),
            "refusal": "",
            "refused_until": 0.0,
        }
        self.events.item.change(made)
        return queue_id

    def _consumer(self, queue_id: str) -> None:
        found = self.api.consumers(queue_id)
        if not found:
            try:
                self.api.make_consumer(queue_id)
            except QueuesRefusedError as refused:
                if not refused.may_exist or not (found := self.api.consumers(queue_id)):
                    raise
        if any(one.get("type") != CONSUMER["type"] for one in found):
            raise QueuesRefusedError(HTTPStatus.OK, OF_WORKER, lasting=True)
        for one in found:
            if not _has(one.get("settings"), CONSUMER["settings"]):
                self.api.correct_consumer(queue_id, str(one.get("consumer_id", "")))

    def _subscription(self, model: str, queue_id: str) -> str:
        """The id of the model's subscription to the queue; made if it does not exist."""
        name = subscription_name(self.events.name, model)
        try:
            return self.api.subscribe(name, model, queue_id)
        except QueuesRefusedError as refused:
            if not refused.may_exist:
                raise
            said = refused
        of_model = [
            one for one in self.api.subscriptions() if _member(one, "source", "model_name") == model
        ]
        for one in of_model:
            if _member(one, "destination", "queue_id") == queue_id:
                return str(one.get("id", ""))
        for one in of_model:
            if one.get("name") == name:  # Ours, to a queue that somebody deleted.
                self.api.unsubscribe(str(one.get("id", "")))
                return self.api.subscribe(name, model, queue_id)
        raise QueuesRefusedError(said.status, TAKEN) if of_model else said


def remove(services: Services, events: Events) -> None:
    """Delete the subscriptions of the stack's queue, then the queue, whatever of them is left.

    Raises:
        QueuesRefusedError: the API did not do it.
        StorageError: DynamoDB failed.
    """
    until = services.now() + REMOVE_SECONDS
    api = replace(
        events.api, now=services.now, until=until, permit=partial(_wait_for_call, services, until)
    )
    found = api.queue(events.name)
    if found is not None:
        queue_id = str(found.get("queue_id", ""))
        for one in list(api.subscriptions()):
            if _member(one, "destination", "queue_id") == queue_id:
                api.unsubscribe(str(one.get("id", "")))
        api.delete_queue(queue_id)


def _wait_for_call(services: Services, until: float) -> bool:
    """Whether one more call may be made before a time, Unix seconds; waits for it."""
    while not services.budget.permit_check(services.now()):
        if services.now() + OTHER_SECONDS > until:
            return False
        services.sleep(OTHER_SECONDS)
    return True


def subscription_name(queue_name: str, model: str) -> str:
    """Name of a model's subscription."""
    return f"{queue_name}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def _has(settings: object, wanted: dict[str, Any] | Any) -> bool:  # noqa: ANN401 - the API's own JSON
    """Whether settings hold the wanted ones; those that the API does not show are not corrected."""
    return not isinstance(settings, dict) or all(
        settings.get(name, value) == value for name, value in wanted.items()
    )


def _member(found: dict[str, Any], outer: str, name: str) -> object:
    inner = found.get(outer)
    return inner.get(name) if isinstance(inner, dict) else None
