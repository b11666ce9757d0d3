"""What an answer says about the events of its model, and what that means for the polls of others.

Polls of a model whose events come are a safety net. A batch is due when it would be without events;
a poll that is not needed is put off then, as long as it is certain that events came since the batch
was accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import StorageError
from shared.events.coming import IN_TIME_SECONDS, NEW_SECONDS
from shared.events.pulling import MIN_PULL_SECONDS, pull_interval
from shared.events.subscribed import subscribed_if_known
from shared.models import BatchState
from shared.observability import logger

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.events.set_up import Events
    from shared.models import Batch, Job

NET_SECONDS = 60.0
"""Seconds by which a poll that was put off is looked at later than the next one would be without events."""
QUICK_SECONDS, EVENT_SECONDS = 1.0, 5.0
"""Median of a model's times below which no event is sooner than a poll.

And seconds after which one is late.
"""
NET_PERCENTILE, NET_MEDIANS = 0.99, 3.0
"""No poll is put off when nearly all batches of the model are over.

Or beyond so many times their median.
"""


def waits_for_event(services: Services, job: Job, batch: Batch, now: float) -> float:
    """Seconds for which a batch that is due is not polled.

    Because its event will tell when it is over; 0 if it is.

    An event of its model has come since it was accepted; where the queue was not read since, it is
    read first.
    """
    if (
        batch.told_at
        or len(batch.submissions) != 1
        or (known := subscribed_if_known(services, job)) is None
    ):
        return 0.0
    model, accepted, pulled_at = job.plan.model, batch.submissions[0].at, known.state.pulled_at
    age = now - accepted
    left = _net_age(services, model, now) - age
    if left <= 0 or known.state.aside_step or not known.state.can_pull(now):
        return 0.0
    if age < EVENT_SECONDS and known.events.coming.come(model, pulled_at, now):
        return EVENT_SECONDS - age
    if known.events.coming.comes(model, accepted, pulled_at, now):
        return min(left, services.times.next_poll(model, age, now) + NET_SECONDS)
    is_unread = pulled_at < accepted and known.state.pull_at > now
    return MIN_PULL_SECONDS if is_unread and _pulls_now(known.events, now) else 0.0


def _pulls_now(events: Events, now: float) -> bool:
    """Have the queue pulled, so that a poll that is due may be saved; False if DynamoDB failed."""
    try:
        events.item.pull_now(now)
    except StorageError as error:
        logger.warning("events not pulled", reason=str(error))
        return False
    return True


def _net_age(services: Services, model: str, now: float) -> float:
    """The age, in seconds, from which on a batch is polled whose event has not come."""
    median = services.times.quantile(model, 0.5, now)
    if median < QUICK_SECONDS:
        return 0.0
    late = services.times.quantile(model, NET_PERCENTILE, now)
    return max(min(late, median * NET_MEDIANS), median + EVENT_SECONDS)


def pending_until(told: float) -> float:
    """The age at which a batch was pending that was told of at this age, seconds.

    It takes a pull, and its delay.
    """
    return told - pull_interval(told) - IN_TIME_SECONDS


def note_answer(services: Services, job: Job, batch: Batch, now: float) -> None:
    """Note, before a batch that was polled is `done`, whether an event told of its answer."""
    if (events := _judged(services, job, batch)) is not None:
        events.coming.note(
            job.plan.model, batch.submissions[-1].request_id, now, told=batch.told_at > 0
        )


def note_told_meanwhile(services: Services, job: Job, batch: Batch, now: float) -> None:
    """Note, once a batch is `done`.

    An event that came while it was polled and its answer collected.
    """
    if batch.told_at or (events := _judged(services, job, batch)) is None:
        return
    try:
        known = services.ledger.batch(batch.job_id, batch.number)
    except StorageError as error:
        logger.warning("event of an answer not remembered", reason=str(error))
        return
    if known and known.told_at:
        events.coming.note(job.plan.model, batch.submissions[-1].request_id, now, told=True)


def note_late(
    events: Events | None, model: str, request_id: str, batch: Batch | None, at: float
) -> None:
    """Note an event, sent at a time, Unix seconds, of a batch whose answer was found without it."""
    if (
        events
        and batch
        and batch.state is BatchState.DONE
        and not batch.told_at
        and batch.completed_at is not None
    ):
        in_time = at <= batch.completed_at + IN_TIME_SECONDS
        if in_time and model:
            events.coming.note(model, request_id, batch.completed_at, told=True)


def _judged(services: Services, job: Job, batch: Batch) -> Events | None:
    """The events, if a batch's answer says anything about those of its model."""
    if len(batch.submissions) != 1 or (known := subscribed_if_known(services, job)) is None:
        return None
    accepted = batch.submissions[-1]
    if not accepted.request_id:
        return None
    # An event that came counts; one that did not, only if it had to come.
    return (
        known.events
        if batch.told_at or accepted.at >= known.subscription.at + NEW_SECONDS
        else None
    )
