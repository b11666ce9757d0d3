"""Makes the queue and subscribes models, at the submit that finds none; says what waits for events.

Everything is found by its name, so doing it twice, or by two functions at once, leaves one queue,
and a function that dies leaves something that the next one finds. What fails costs a submit at most
`SET_UP_SECONDS`: its batch is polled as without events. Where another stack of the account has the
events of a model, this one has none of it, and asks again after an hour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from shared.errors import StorageError
from shared.events.messages import bare_id
from shared.events.queues_api import CONSUMER, QueuesApi, QueuesRefusedError
from shared.events.state import NONE, EventsItem, EventsState, Ids, ModelEvents, Owner
from shared.models import Batch, Job, Submission
from shared.observability import logger
from shared.services import Services

SET_UP_SECONDS = 5.0  # That a submit waits for a set-up, its own or another's
LOOK_EVERY = 0.5
BUSY_FOR = 15.0  # Seconds after which a set-up that was begun is begun again
UNCHANGED_FOR = 60.0  # Seconds for which a process does not look at a subscription again
TAKEN = "another subscription has the events of this model"
OF_WORKER = "the queue is read by a Worker, which Dropbatch does not replace"


@dataclass(frozen=True, slots=True)
class Events:
    """The events of the stack's account."""

    item: EventsItem  # what is known of them
    ids: Ids  # whose each id is
    api: QueuesApi  # the Queues API
    name: str  # of the queue
    looked: dict[str, float] = field(default_factory=dict)  # until when, by model


def events_of(services: Services) -> Events | None:
    """The events of the stack's account, used or not; None if its transport cannot read a queue."""
    settings, client = services.settings, services.ledger.client
    if services.events or not services.api.transport.account_url:
        return services.events
    item = EventsItem(client, settings.table_name, settings.cloudflare_account_id)
    ids = Ids(client, settings.table_name)
    api = QueuesApi(services.api, services.now)
    return Events(item, ids, api, settings.events_queue_name)


def subscribe(services: Services, model: str) -> None:
    """Have the events of a model's batches sent to the queue, before a submit is claimed."""
    events, now = services.events, services.now()
    if events is None or events.looked.get(model, 0.0) > now:
        return
    until = now + SET_UP_SECONDS
    try:
        while not _is_set_up(services, events, model, until) and services.now() < until:
            # Another function is at it. A batch that is submitted meanwhile would have no events.
            services.sleep(LOOK_EVERY)
    except StorageError as error:
        logger.warning("events not set up", reason=str(error))


def _is_set_up(services: Services, events: Events, model: str, until: float) -> bool:
    """Set up what a model needs now; False while another function sets something up."""
    state, now = events.item.state(), services.now()
    if not state.needs_set_up(model, now):
        events.looked[model] = now + UNCHANGED_FOR
        return True
    if services.budget.free_calls(now).paused:  # What refuses models may refuse queues for an hour
        return True
    if not events.item.claim_set_up(now, now + BUSY_FOR):
        return False
    api = replace(events.api, until=until)
    try:
        queue_id = _look_after_queue(events, api, state, now)
    except QueuesRefusedError as refused:
        logger.warning("events not set up", reason=str(refused))
        refusal = {"refusal": str(refused), "again_at": now + refused.again_in}
        events.item.change({**refusal, "busy_until": 0.0})
        return True
    try:
        known = ModelEvents(_subscription(api, events.name, model, queue_id))
    except QueuesRefusedError as refused:
        known = ModelEvents(again_at=now + refused.again_in, problem=str(refused))
    logger.info("events of a model", model=model, problem=known.problem)
    events.item.note_model(model, known)
    return True


def _look_after_queue(events: Events, api: QueuesApi, state: EventsState, now: float) -> str:
    """The id of the queue; made or corrected if it is due, and noted then."""
    if not state.needs_queue(now):
        return state.queue_id
    queue_id = _queue(api, events.name)
    _let_read(api, queue_id)
    forgotten = state.models if queue_id != state.queue_id else ()
    events.item.note_queue(queue_id, now, forgotten)
    return queue_id


def _queue(api: QueuesApi, name: str) -> str:
    """The id of the queue of this name; made if it does not exist."""
    try:
        return api.make_queue(name)
    except QueuesRefusedError as refused:
        found = api.queue(name) if refused.may_exist else None
        if found is None:
            raise
    return str(found.get("queue_id", ""))


def _let_read(api: QueuesApi, queue_id: str) -> None:
    """Have HTTP clients read the queue, unless a Worker does."""
    try:
        api.make_consumer(queue_id)
    except QueuesRefusedError as refused:
        found = api.consumers(queue_id) if refused.may_exist else []
        if not found:
            raise
        if any(one.get("type") != CONSUMER["type"] for one in found):
            raise QueuesRefusedError(HTTPStatus.CONFLICT, OF_WORKER) from None


def _subscription(api: QueuesApi, queue_name: str, model: str, queue_id: str) -> str:
    """The id of the model's subscription to the queue; made, or corrected if it is ours."""
    name = subscription_name(queue_name, model)
    try:
        return api.subscribe(name, model, queue_id)
    except QueuesRefusedError as refused:
        if not refused.may_exist:
            raise
        said = refused
    of_model = [one for one in api.subscriptions() if _member(one, "source", "model_name") == model]
    for one in of_model:
        if one.get("name") == name or _leads_to(one, queue_id):
            subscription_id = str(one.get("id", ""))
            api.correct_subscription(subscription_id, queue_id)
            return subscription_id
    raise QueuesRefusedError(said.status, TAKEN) if of_model else said


def remove(api: QueuesApi, name: str) -> None:
    """Delete the subscriptions of the queue of this name, then the queue."""
    api = replace(api, until=api.now() + 30.0)
    found = api.queue(name)
    if found is None:
        return
    queue_id = str(found.get("queue_id", ""))
    for one in list(api.subscriptions()):
        if _leads_to(one, queue_id):
            api.unsubscribe(str(one.get("id", "")))
    api.delete_queue(queue_id)


def remove_unused(services: Services) -> None:
    """Remove what was made before events were switched off; what fails is tried by a later tick."""
    events, now = events_of(services), services.now()
    if services.events is not None or events is None:
        return
    state = events.item.state()
    if state == EventsState() or now < state.again_at:
        return
    try:
        remove(events.api, events.name)
    except QueuesRefusedError as refused:
        logger.warning("queue of events not removed", reason=str(refused))
        events.item.change({"refusal": str(refused), "again_at": now + refused.again_in})
    else:
        events.item.delete()


def subscription_name(queue_name: str, model: str) -> str:
    """Name of a model's subscription."""
    return f"{queue_name}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def _leads_to(found: Mapping[str, Any], queue_id: str) -> bool:
    return _member(found, "destination", "queue_id") == queue_id


def _member(found: Mapping[str, Any], outer: str, name: str) -> object:
    inner = found.get(outer)
    return inner.get(name) if isinstance(inner, dict) else None


# ── what waits for an event ───────────────────────────────────────────────────────────────────────
# A model of which an event came within the last day waits for events: a poll is put off while one
# may come. The safety net is a poll at twice the time in which 19 of 20 batches are over, 2 to 15
# minutes after the acceptance, then one each 15 minutes. If it finds an answer, the model waits for
# no events until one comes.

FIRST_PULL = 2.0  # Seconds from an acceptance to the first pull, and between two pulls at least
SHARE_OF_AGE = 1 / 16  # The share of the age of the youngest batch that passes between two pulls
YOUNG, MOST_YOUNG, MOST_OLD = 600.0, 15.0, 30.0  # Between pulls at most, below this age and above
REFUSED_PULL, REFUSED_NEW_PULL, NEW_FOR = 60.0, 5.0, 60.0  # Seconds after a refusal; of a new queue
NET_QUANTILE, NET_TIMES, LEAST_NET, MOST_NET = 0.95, 2.0, 120.0, 900.0
FIRST, FIRST_POLLED_UNTIL = "00000000", 10.0
"""A job's first batch, often its only one, and its age up to which polls do not wait for events."""
PUT_OFF_FOR = 60.0  # Seconds for which a poll is put off: then it is seen if events come


def pull_interval(age: float) -> float:
    """Seconds between two pulls while the youngest batch is so old, in seconds."""
    return min(max(age * SHARE_OF_AGE, FIRST_PULL), MOST_YOUNG if age < YOUNG else MOST_OLD)


def expect_events(services: Services, job: Job, number: str, submission: Submission) -> None:
    """Note whose the id of a `queued` batch is, and have the queue pulled, if nothing fails."""
    events, now, model = services.events, services.now(), job.plan.model
    if events is None or not submission.request_id:
        return
    try:
        state = events.item.recent(now)
        if not state.models.get(model, NONE).id:
            return
        owner = Owner(job.job_id, number, model)
        events.ids.assign(bare_id(submission.request_id), owner, now)
        pull_at = now + (REFUSED_PULL if state.refusal else FIRST_PULL)
        events.item.expect_pull(pull_at, now)
        services.left.look(pull_at)
    except StorageError as error:
        logger.warning("events not expected", job_id=job.job_id, number=number, reason=str(error))


def waits_for_event(services: Services, job: Job, batch: Batch, now: float) -> float:
    """Seconds for which a batch that is due is not polled, as its event will tell; 0 if it is."""
    accepted = batch.accepted_at
    if batch.told_at or accepted is None or not _come(services, job.plan.model, now):
        return 0.0
    late = services.times.quantile(job.plan.model, NET_QUANTILE, now)
    net, age = _net(late), now - accepted
    is_young = batch.number == FIRST and age < FIRST_POLLED_UNTIL
    if late <= FIRST_PULL or is_young:  # A poll is as soon as an event.
        return 0.0
    passed = net + (age - net) // MOST_NET * MOST_NET if age >= net else 0.0
    if passed > max(batch.pending_at - accepted, 0.0):
        return 0.0
    following = passed + MOST_NET if passed else net
    return min(following - age, PUT_OFF_FOR)


def note_answer(services: Services, job: Job, batch: Batch, now: float) -> bool:
    """Have a model wait for no events if one should have told of the answer that was found.

    Return whether none should: an answer that waited for its event says little of when it came.
    """
    accepted, model = batch.accepted_at, job.plan.model
    if services.events is None or batch.told_at or accepted is None:
        return True
    late = services.times.quantile(model, NET_QUANTILE, now)
    if now - accepted < _net(late) or not _come(services, model, now):
        return True
    logger.warning("event did not come", job_id=job.job_id, number=batch.number, model=model)
    try:
        services.events.item.note_told(services.events.item.state(), model, 0.0)
    except StorageError as error:
        logger.warning("missing event not noted", reason=str(error))
    return False


def pending_until(told: float) -> float:
    """The age at which a batch was pending that was told of at this age: a pull earlier."""
    return told - pull_interval(told)


def _net(late: float) -> float:
    return min(max(NET_TIMES * late, LEAST_NET), MOST_NET)


def _come(services: Services, model: str, now: float) -> bool:
    """Whether a model's batches wait for events; not if DynamoDB failed."""
    if services.events is None:
        return False
    try:
        return services.events.item.recent(now).come(model, now)
    except StorageError as error:
        logger.warning("events of a model not known", reason=str(error))
        return False
