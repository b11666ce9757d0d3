"""Whether an id that the API says it does not know is lost, or whether no id is found because the route fails.

Both look alike for one batch. So an id counts as lost only if the API knew another id after it said so: one of the same
job, or one that was accepted later. Where there is none, one batch of a model is submitted again as a probe. If the API
does not know that id either, no other batch of the model is, and all are polled until their deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import ConditionFailedError
from shared.models import BatchState
from shared.pacing.controls import control_key
from shared.workers_ai.other_account import other_account

if TYPE_CHECKING:
    from typing import Any

    from shared.bootstrap import Services
    from shared.models import Batch, Job, Submission

MISSES, LOST_SECONDS = 5, 900.0
"""Polls in a row for which the API must not know an id, and over how many seconds."""
PROBED_SECONDS = 3_600.0
"""Seconds for which no other batch of a model is submitted again once a probe was begun, or its id was not known."""
OTHER_BATCHES = 100
"""Batches of the job in which an id is looked for that the API knew."""


def is_lost_for_long(misses: int, since: float, now: float) -> bool:
    """Whether an id has been unknown often and long enough that it may be lost."""
    return misses >= MISSES and now - since >= LOST_SECONDS


def other_is_known(services: Services, job: Job, batch: Batch, since: float) -> bool:
    """Whether the API knew another id of the model after `since`, Unix seconds, when it did not know the batch's.

    Raises:
        StorageError: DynamoDB failed.
    """
    if batch.pending_at > since or _probe(services, job).get("known_at", 0.0) > since:
        return True
    others = services.ledger.batches(job.job_id, after=job.output.mark, limit=OTHER_BATCHES, unreadable=[])
    return any(_known_at(one) > since for one in others)


def _known_at(batch: Batch) -> float:
    """When the API last showed that it knows an id of a batch."""
    answered = batch.state is BatchState.DONE and bool(batch.submissions) and batch.ending is None
    return max(batch.pending_at, (batch.completed_at or 0.0) if answered else 0.0)


def begin_probe(services: Services, job: Job, batch: Batch) -> bool:
    """Whether a batch may be submitted again as the probe of its model: not while the API does not know the last one.

    Raises:
        StorageError: DynamoDB failed.
    """
    is_known = batch.pending_at > batch.submissions[-1].at
    if len(batch.of_round) > 1 and not is_known:
        _note(services, job, "tried_at")  # It is the probe.
        return False
    now, seen = services.now(), _probe(services, job)
    tried_at = seen.get("tried_at", 0.0)
    if tried_at > seen.get("known_at", 0.0) and now - tried_at < PROBED_SECONDS:
        return False
    return _note(services, job, "tried_at", unless_changed=tried_at)


def note_known(services: Services, job: Job, batch: Batch, submission: Submission) -> None:
    """Note that the API knows the id of a batch that was submitted again, the first time that it does.

    Raises:
        StorageError: DynamoDB failed.
    """
    if len(batch.of_round) > 1 and submission is batch.submissions[-1] and batch.pending_at < submission.at:
        _note(services, job, "known_at")


def _probe(services: Services, job: Job) -> dict[str, float]:
    """When the last probe of a job's model and account was tried, and known; Unix seconds, absent if never."""
    item = services.budget.get(_key(services, job)) or {}
    return {name: float(item[name]["N"]) for name in ("tried_at", "known_at") if "N" in item.get(name, {})}


def _note(services: Services, job: Job, name: str, unless_changed: float | None = None) -> bool:
    """Write one of these times; return False if it has changed since it was read (0: was absent)."""
    values, condition = {":now": attribute(services.now())}, {}
    if unless_changed is not None:
        values |= {":seen": attribute(unless_changed)} if unless_changed else {}
        same = f"{name} = :seen" if unless_changed else f"attribute_not_exists({name})"
        condition = {"ConditionExpression": same}
    try:
        services.budget.call(
            "update_item",
            Key=_key(services, job),
            UpdateExpression=f"SET {name} = :now",
            ExpressionAttributeValues=values,
            **condition,
        )
    except ConditionFailedError:
        return False
    return True


def _key(services: Services, job: Job) -> dict[str, Any]:
    return control_key(f"LOST#{other_account(services, job)}#{job.plan.model}")
