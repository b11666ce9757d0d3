"""What a batch that was accepted, polled or told of means for events, and events for its polls.

A model of which an event came within the last day waits for events: its batches are due as without
them, and a poll is put off while an event may come. The safety net is a poll at twice the time in
which 19 of 20 batches are over, at least 2 and at most 15 minutes after the acceptance, then one
each 15 minutes. If it finds an answer, the model waits for no events until one comes.
"""

from __future__ import annotations

from shared.errors import StorageError
from shared.events.messages import bare_id
from shared.events.state import NONE, Owner
from shared.models import Batch, Job, Submission
from shared.observability import logger
from shared.services import Services

FIRST_PULL = 2.0  # Seconds from an acceptance to the first pull, and between two pulls at least
SHARE_OF_AGE = 1 / 16  # The share of the age of the youngest batch that passes between two pulls
YOUNG, MOST_YOUNG, MOST_OLD = 600.0, 15.0, 30.0  # Between pulls at most, below this age and above
REFUSED_PULL, REFUSED_NEW_PULL, NEW_FOR = 60.0, 5.0, 60.0  # Seconds after a refusal; of a new queue
NET_QUANTILE, NET_TIMES, LEAST_NET, MOST_NET = 0.95, 2.0, 120.0, 900.0
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
    if late <= FIRST_PULL:  # A poll is as soon as an event.
        return 0.0
    net, age = _net(late), now - accepted
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
