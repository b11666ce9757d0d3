"""Poll one batch: claim it, poll the API, and process the reply.

The poll that finds a batch finished returns its whole result, and may be the only one that ever
does. So the reply is stored in S3, under a key with the poll's ordinal, before any state shows it.
A claim that follows one that died looks there first.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from functions.poll import doubts
from functions.poll.collect import StoredReply, collect, is_partial
from functions.poll.divide import give_up, isolate
from functions.poll.doubts import (
    LATE,
    Poll,
    answered_at,
    end,
    next_poll,
    overdue_at,
    submit_again,
)
from shared import keys
from shared.errors import ObjectNotFoundError, StorageError
from shared.events.subscribe import note_answer, pending_until
from shared.models import (
    CANCELLED_ACCEPTED,
    PAST_DEADLINE,
    TOO_OLD_CODE,
    Batch,
    ErrorDetail,
    Job,
    Submission,
)
from shared.models import Pending as PendingReply
from shared.observability import batch_log_fields, count, logger, report_stuck
from shared.pacing.breaker import Permit
from shared.pacing.waits import clear_failing, show_denied
from shared.retry import MAX_CLAIMS, claim_seconds, retry_seconds
from shared.services import Invocation, Services
from shared.workers_ai.client import classify_rejection
from shared.workers_ai.error_codes import KEEPS_PAUSE
from shared.workers_ai.replies import Accepted, OutcomeUnknown, Pending, Rejected
from shared.workers_ai.results import Answer, parse_answer

POLL_SECONDS = 75.0  # The longest a poll may take, reading a large answer included
COLLECT_SECONDS = 25.0  # Seconds kept after the poll to store and join the answer
POLL_BEGUN_SECONDS = 15.0  # That a poll needs: a reply cut off may be the only whole one
TOLD_WAITS = (2.0, 5.0, 15.0)  # After an event, to the polls of a batch that is pending still
POLL_FAILED = ErrorDetail(
    "internal", "Dropbatch could not finish this batch; see the poll function's log."
)


def needs_call(job: Job, batch: Batch, now: float) -> bool:
    """Whether the API has to be polled, and not only something to be written, divided or ended."""
    is_over = job.is_too_old(now) or job.is_answerless
    has_id = batch.submission is not None and batch.submission.request_id != ""
    return has_id and not (batch.ending or batch.isolating or is_over)


def poll_batch(invocation: Invocation, job: Job, batch: Batch, permit: Permit | None) -> bool:
    """Claim a batch and advance it, or end it without a permit; return whether it is `done`."""
    services = invocation.services
    now = services.now()
    if needs_call(job, batch, now) and not invocation.allows(POLL_BEGUN_SECONDS + COLLECT_SECONDS):
        return False  # it stays due
    seconds = min(invocation.seconds_left, POLL_SECONDS + COLLECT_SECONDS) + 10
    until = now + claim_seconds(batch.claims, seconds)
    ledger = services.ledger
    try:
        claim = ledger.claim_poll if batch.isolating is None else ledger.claim_isolation
        claimed = claim(batch, until)
        if claimed is None:
            return False
        report_stuck(claimed.claims, job.job_id, batch.number)
        if claimed.claims > MAX_CLAIMS:
            return _give_up(services, job, claimed)
        return _advance_batch(invocation, job, claimed, permit)
    except StorageError as error:
        show_denied(services, replace(job, lease_until=0.0), error)
        # A poll may be repeated, so nobody has to wait for the claim's end. The claim counts, if it
        # was written.
        again_at = services.now() + retry_seconds(batch.claims)
        ledger.postpone(replace(batch, due_at=until), again_at)
        raise


def _advance_batch(invocation: Invocation, job: Job, batch: Batch, permit: Permit | None) -> bool:
    """Process what is known already, else poll; return whether that made the batch `done`."""
    services = invocation.services
    if batch.ending is not None:
        return collect(services, job, batch, None)
    if batch.isolating is not None:
        ended = isolate(services, batch)
        return ended is not None and collect(services, job, ended, None)
    if job.is_too_old(services.now()):
        return end(services, job, batch, TOO_OLD_CODE)
    if batch.submission is None:
        return False
    with ExitStack() as stack:
        stored = _stored_reply(services, batch, batch.submission, stack)
        if stored is not None:
            return _collect(services, job, batch, stored)
    if job.is_answerless:
        return end(services, job, batch, _end_of_accepted(job))
    if permit is None:
        return submit_again(services, job, batch, LATE)
    return _poll(invocation, job, batch, batch.submission, permit)


def _poll(
    invocation: Invocation, job: Job, batch: Batch, submission: Submission, permit: Permit
) -> bool:
    """Poll the API and process its reply; return whether that made the batch `done`."""
    services, now = invocation.services, invocation.services.now()
    poll = Poll(services, job, batch, permit, answered_at(services, batch))
    count("PollCalls")
    request_id, records = submission.request_id, batch.records.sendable
    seconds = min(POLL_SECONDS, invocation.seconds_left - COLLECT_SECONDS)
    with services.api.poll(job.plan.model, request_id, seconds, records) as reply:
        verdict = None
        if isinstance(reply, Rejected):
            verdict = classify_rejection(services, reply, polling=True)
        # It may give a whole answer only once: what tells it from a part is read until S3 gives it.
        if isinstance(reply, Answer) and invocation.retry(lambda: _waits_for_more(poll, reply)):
            done = _still_pending(poll, reply.status[:32])
        elif isinstance(reply, Answer):
            key = keys.raw(job.job_id, batch.number, submission.attempt, batch.polls)
            # The API may never give this answer again, so S3 is tried for as long as this
            # invocation lasts.
            invocation.retry(lambda: services.store.put_if_absent(key, reply.body))
            clear_failing(services, job, batch)
            services.known.note(now, pending=False)
            is_in_time = note_answer(services, job, batch, now)
            done = _collect(services, job, batch, StoredReply(key, reply))
            if is_in_time:
                _note_completion(services, job, batch, now)
        elif isinstance(reply, Pending | Accepted):
            done = _still_pending(poll, reply.status if isinstance(reply, Pending) else "queued")
        else:
            done = doubts.process(poll, reply, verdict)
        if not isinstance(reply, OutcomeUnknown) and verdict not in KEEPS_PAUSE:
            services.lift(permit, job.plan.model)
    return done


def _still_pending(poll: Poll, status: str) -> bool:
    """Process a pending reply, perhaps of an overdue batch."""
    services, job, batch, now = poll.services, poll.job, poll.batch, poll.now
    count("OldestPendingAge", poll.age)
    clear_failing(services, job, batch)
    services.known.note(now, pending=True)
    updates: dict[str, object] = {"pending": PendingReply(now, status), "doubt": None}
    if poll.is_over:
        return submit_again(services, job, batch, LATE, **updates)
    due_at = min(now + _next_poll(poll), overdue_at(services, batch) + 1)
    due_at = min(due_at, job.deadline_at or due_at)
    scheduled = services.ledger.schedule_poll(batch, due_at, **updates)
    if scheduled and scheduled.told_at and not batch.told_at:
        services.ledger.postpone(scheduled, now)  # An event came during this poll.
    return False


def _next_poll(poll: Poll) -> float:
    """Seconds until the next poll; soon after an event that says that the batch is over."""
    now = poll.now
    soon = [at for wait in TOLD_WAITS if (at := poll.batch.told_at + wait) > now]
    if soon:  # Without an event `told_at` is 0, and its waits are long over.
        return min(soon) - now
    return next_poll(poll.services, poll.job, poll.batch)


def _waits_for_more(poll: Poll, answer: Answer) -> bool:
    """Whether a batch stays pending, until its deadline, though some of its items are there."""
    return not poll.is_over and is_partial(poll.services, poll.batch, answer)


def _end_of_accepted(job: Job) -> ErrorDetail:
    """How the records of an accepted batch end whose answer nobody awaits."""
    if job.error is None:
        return CANCELLED_ACCEPTED
    return ErrorDetail(job.error.code, f"Workers AI had accepted this request. {job.error.message}")


def _collect(services: Services, job: Job, batch: Batch, stored: StoredReply) -> bool:
    """Collect a stored reply; the records that the part of an answer lacks end with the batch."""
    has_id = batch.submission is not None and batch.submission.request_id != ""
    if not has_id or not is_partial(services, batch, stored.answer):
        return collect(services, job, batch, stored)
    logger.info("part of an answer used", **batch_log_fields(batch))
    now = services.now()
    all_keys = (*batch.partial_replies, stored.key)
    kept = services.ledger.schedule_poll(batch, now, partial_replies=all_keys, claims=batch.claims)
    error = PAST_DEADLINE if job.is_past_deadline(now) else LATE
    return kept is not None and end(services, job, kept, error)


def _give_up(services: Services, job: Job, batch: Batch) -> bool:
    """End the records as `internal`; if they cannot be written either, end it without lines."""
    if batch.pieces:
        give_up(services, batch)
        return False
    if batch.ending is None:
        return end(services, job, batch, batch.isolating or POLL_FAILED)
    return services.ledger.abandon(batch, services.now()) is not None


def _stored_reply(
    services: Services, batch: Batch, submission: Submission, stack: ExitStack
) -> StoredReply | None:
    """A reply that is in S3: the submit's own, or that of a poll whose function died."""
    if submission.request_id == "":
        key = keys.raw(batch.job_id, batch.number, submission.attempt, 0)
        return StoredReply(key, parse_answer(services.store.spool(key, stack)))
    for ordinal in range(batch.polls - 1, batch.polls_settled, -1):
        key = keys.raw(batch.job_id, batch.number, submission.attempt, ordinal)
        try:
            return StoredReply(key, parse_answer(services.store.spool(key, stack)))
        except ObjectNotFoundError:
            continue
    return None


def _note_completion(services: Services, job: Job, batch: Batch, now: float) -> None:
    """Remember how long a batch took, if its first whole reply shows that."""
    accepted = batch.accepted_at
    if accepted is not None and not batch.given_up and not batch.partial_replies:
        told_after = pending_until(batch.told_at - accepted)
        after = max(batch.pending_at - accepted, told_after, 0.0)
        services.times.note(job.plan.model, after, now - accepted, now)
