"""Batches whose ids return no answer.

They are submitted again, bad records in them are isolated, or they end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.poll.batch.collect import MAX_SUBMITS, collect, submits
from shared.api_messages import attach_api_message
from shared.aws.queues import SubmitMessage
from shared.models import PAST_DEADLINE, Batch, ErrorDetail, Job, cause_of
from shared.observability import batch_log_fields, logger
from shared.pacing import cost

if TYPE_CHECKING:
    from shared.services import Services

LATE = ErrorDetail("expired", "Workers AI did not finish the batch in time.")
MISSING = ErrorDetail("missing_response", "Workers AI sent no answer for this record.")


def is_overdue(services: Services, batch: Batch, now: float) -> bool:
    """Whether a batch has been pending for longer than the stack's deadline.

    Not counting pauses.
    """
    return now > overdue_at(services, batch)


def overdue_at(services: Services, batch: Batch) -> float:
    """When a batch will have been pending for longer than the stack's deadline, Unix seconds.

    One that could not be submitted again, because it was refused, or it is unknown whether it was,
    gets as long as if it had been.
    """
    since, last_word = batch.submissions[-1].at, batch.ending_if_unanswered
    if last_word and last_word.code in {"submit_unknown", "rejected", "inference_failed"}:
        since = max(since, batch.ready_at)
    return since + batch.paused + services.settings.batch_deadline_hours * 3_600


def submit_again(
    services: Services, job: Job, batch: Batch, error: ErrorDetail, updates: dict[str, object]
) -> bool:
    """Submit an overdue or lost batch again if that is allowed, else end its records.

    Return whether it is done.

    One that was refused or failed while another id was polled is divided instead, now that none
    returns its answer. While no submit can be sent, its ids are still polled, and `updates` are
    written.
    """
    now = services.now()
    is_past = job.is_past_deadline(now)
    if is_past:
        return end(services, job, batch, PAST_DEADLINE)
    if batch.partial_replies:
        return end(services, job, batch, error)
    if batch.submissions[-1].given_up:
        isolate_or_end(services, job, batch, batch.failing_code or None, "")
        return False
    refused = batch.ending_if_unanswered
    is_divisible = batch.sendable > 1 and not job.ending(now)
    if refused and refused.code == "rejected" and is_divisible:
        _begin_isolation(services, batch, refused, cause_of(None, accepted=True))
        return False
    if not _is_allowed(services, job, batch):
        return end(services, job, batch, batch.ending_if_unanswered or error)
    if not _can_send(services, job, batch):
        services.ledger.schedule_poll(batch, now + next_poll(services, job, batch), **updates)
    elif services.ledger.resubmit(batch, now, now):
        logger.warning("batch submitted again", **batch_log_fields(batch), reason=error.message)
        services.queues.send(SubmitMessage(job.job_id, batch.number))
    return False


def _is_allowed(services: Services, job: Job, batch: Batch) -> bool:
    return not (
        batch.ending_if_unanswered
        or job.ending(services.now())
        or services.settings.ambiguous_submit == "fail"
        or submits(batch) >= MAX_SUBMITS
    )


def _can_send(services: Services, job: Job, batch: Batch) -> bool:
    if job.is_held or not cost.allows_batch(job, batch):
        return False
    return services.budget.can_submit(job.plan.model, services.now())


def end(services: Services, job: Job, batch: Batch, error: ErrorDetail) -> bool:
    """End all records of a batch without an answer; return whether the batch is done."""
    ended = services.ledger.end_without_answer(batch, error, services.now())
    return ended is not None and collect(services, job, ended, None)


def isolate_or_end(
    services: Services, job: Job, batch: Batch, code: int | None, message: str
) -> None:
    """Isolate bad records of a batch that failed after acceptance.

    A record that was alone in it fails.
    """
    if batch.partial_replies:
        end(services, job, batch, MISSING)
        return
    words, cause = (
        "Workers AI accepted this request and then failed it",
        cause_of(code, accepted=True),
    )
    reason = attach_api_message(
        services.store,
        batch,
        ErrorDetail("rejected", words if code is None else f"{words} ({code})"),
        message,
    )
    if batch.sendable == 1:
        services.ledger.end_without_answer(batch, reason, services.now(), cause=cause)
    else:
        _begin_isolation(services, batch, reason, cause)


def _begin_isolation(services: Services, batch: Batch, reason: ErrorDetail, cause: str) -> None:
    """Isolate bad records of a batch.

    That a submit of the whole was refused keeps no part from being submitted.
    """
    last_word = batch.ending_if_unanswered
    kept = None if last_word and last_word.code == "rejected" else last_word
    services.ledger.begin_isolation(batch, reason, cause, services.now(), ending_if_unanswered=kept)


def next_poll(services: Services, job: Job, batch: Batch) -> float:
    """Seconds until a pending batch is polled next."""
    now = services.now()
    return services.times.next_poll(job.plan.model, now - batch.submissions[-1].at, now)
