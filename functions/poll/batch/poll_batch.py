"""Poll one batch: claim it, poll the API, and process the reply.

The poll that finds a batch finished returns its whole result, and may be the only one that ever does. So the reply is
stored in S3, under a key with the poll's ordinal, before any state shows it. A claim that follows one that died looks
there first.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from functions.poll.batch.bisect_batch import give_up, isolate
from functions.poll.batch.collect import StoredReply, collect
from functions.poll.batch.unanswered import LATE, end, is_overdue, isolate_or_end, next_poll, overdue_at, submit_again
from shared import s3_keys as keys
from shared.aws.queues import FAST_START_BATCHES, FOLLOWED_POLLS, FOLLOWED_SECONDS, POLL_GRACE_SECONDS, PollMessage
from shared.claims import MAX_CLAIMS, claim_seconds, report_stuck, retry_seconds
from shared.errors import ObjectNotFoundError, StorageError
from shared.lasting_errors import clear_lasting_error, note_lasting_error
from shared.models import CANCEL_NOW, CANCELLED_ACCEPTED, TOO_OLD_CODE, Batch, ErrorDetail, Job, Submission, cause_of
from shared.observability import batch_log_fields, count, logger
from shared.other_account import api_of, other_account
from shared.pacing.controls import PauseReason, Permit
from shared.rejections import classify_rejection
from shared.retry import poll_back_off, soon_after
from shared.workers_ai.error_codes import METRIC_OF_CLASS, ErrorClass, model_error_message
from shared.workers_ai.replies import Accepted, Failed, NoAnswers, OutcomeUnknown, Pending, Rejected, Reply
from shared.workers_ai.results import Answer, parse_answer

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.invocation import Invocation

POLL_SECONDS = 75.0
"""The longest a poll may take, reading a large answer included."""
COLLECT_SECONDS = 25.0
"""Seconds kept after the poll to store and join the answer."""
MIN_POLL_SECONDS = 15.0
"""Seconds that a poll needs at least: a reply that is cut off may be the only one that holds the results."""
MISSES, MISSES_OVER = 5, 60.0
"""Polls in a row for which the API must not know an id, or have no answers for it though it calls the batch completed,
over at least that many seconds, before the answers count as lost."""
FAILURES, FAILURES_OVER = 5, 30.0
"""The same for polls answered with the same 5xx code; for any other code the seconds are `MISSES_OVER`."""
DOUBTED_SECONDS = 15.0
"""Seconds to the next poll after a reply that is believed only when several are the same."""
SAYS_NOTHING_OF_TOKEN = {ErrorClass.ACCOUNT, ErrorClass.HOLD, ErrorClass.TRY_LATER}
"""Rejections of a pause's probe that do not show that the pause is over."""
LOST = ErrorDetail("expired", "Workers AI no longer knew the batch.")
NO_ANSWERS = ErrorDetail("missing_response", "Workers AI reported the batch as completed and sent no answers.")
INTERNAL = ErrorDetail("internal", "Dropbatch could not finish this batch; see the poll function's log.")


@dataclass(frozen=True, slots=True)
class PollOutcome:
    """The outcome for one batch: the job it belongs to, and whether the batch became `done`."""

    job_id: str
    done: bool


def needs_call(job: Job, batch: Batch, now: float) -> bool:
    """Whether the API has to be polled: not for a batch that only waits to be written, split or ended."""
    is_over = job.is_too_old(now) or job.cancelled == CANCEL_NOW
    return not (batch.ending or batch.halving or is_over) and any(one.request_id for one in batch.pollable)


def poll_batch(invocation: Invocation, job: Job, batch: Batch, permit: Permit) -> PollOutcome:
    """Claim a batch and advance it.

    Raises:
        StorageError: an AWS service failed; the batch is due again at its `due_at`.
    """
    services = invocation.services
    now = services.now()
    if needs_call(job, batch, now) and not invocation.allows(MIN_POLL_SECONDS + COLLECT_SECONDS):
        return PollOutcome(job.job_id, done=False)  # it stays due
    until = now + claim_seconds(batch.claims, min(invocation.seconds_left, POLL_SECONDS + COLLECT_SECONDS) + 10)
    claim = services.ledger.claim_poll if batch.halving is None else services.ledger.claim_isolation
    try:
        claimed = claim(batch, until)
        if claimed is None:
            return PollOutcome(job.job_id, done=False)
        report_stuck(claimed.claims, job.job_id, batch.number)
        if claimed.claims > MAX_CLAIMS:
            return PollOutcome(job.job_id, _give_up(services, job, claimed))
        return PollOutcome(job.job_id, _advance_batch(invocation, job, claimed, permit))
    except StorageError:
        # A poll may be repeated, so nobody has to wait for the claim's end. The claim counts, if it was written.
        services.ledger.postpone(replace(batch, due_at=until), services.now() + retry_seconds(batch.claims))
        raise


def _advance_batch(invocation: Invocation, job: Job, batch: Batch, permit: Permit) -> bool:
    """Process what is known already, else poll the API; return whether that made the batch `done`."""
    services = invocation.services
    if batch.ending is not None:
        return collect(services, job, batch, None)
    if batch.halving is not None:
        ended = isolate(services, batch)
        return ended is not None and collect(services, job, ended, None)
    if job.is_too_old(services.now()):
        return end(services, job, batch, batch.last_word or TOO_OLD_CODE)
    candidates = batch.pollable
    submission = candidates[-1 - (batch.polls - 1) % len(candidates)]
    with ExitStack() as stack:
        stored = _stored_reply(services, batch, submission, stack)
        if stored is not None:
            return collect(services, job, batch, stored)
    if job.cancelled == CANCEL_NOW:
        return end(services, job, batch, CANCELLED_ACCEPTED)
    now = services.now()
    count("PollCalls")
    with api_of(services, job).poll(
        job.plan.model, submission.request_id, min(POLL_SECONDS, invocation.seconds_left - COLLECT_SECONDS)
    ) as reply:
        if isinstance(reply, Answer):
            key = keys.raw(job.job_id, batch.number, submission.attempt, batch.polls)
            # The API may never give this answer again, so S3 is tried for as long as this invocation lasts.
            invocation.retry(lambda: services.store.put_if_absent(key, reply.body))
            clear_lasting_error(services, job, batch)
            done = collect(services, job, batch, StoredReply(key, reply))
            _note_completion_time(services, job, batch, now)
            verdict = None
        else:
            verdict = None
            if isinstance(reply, Rejected):
                verdict = classify_rejection(services, job, batch, reply, polling=True)
            done = _not_finished(services, job, batch, submission, reply, verdict, permit)
        if not isinstance(reply, OutcomeUnknown) and verdict not in SAYS_NOTHING_OF_TOKEN:
            services.budget.lift(permit, job.plan.model)
    return done


def _give_up(services: Services, job: Job, batch: Batch) -> bool:
    """End the records as `internal`; or, if they cannot be written either, end the batch without lines.

    Then the job cannot finish, and ends by the same rule. All answers stay in staging.
    """
    if batch.pieces:
        give_up(services, batch)
        return False
    if batch.ending is None:
        return end(services, job, batch, batch.last_word or batch.halving or INTERNAL)
    return services.ledger.abandon(batch, services.now()) is not None


def _stored_reply(services: Services, batch: Batch, submission: Submission, stack: ExitStack) -> StoredReply | None:
    """A reply that is already in S3: the submit's own, or that of a poll whose function died after storing it."""
    if submission.request_id == "":
        key = keys.raw(batch.job_id, batch.number, submission.attempt, 0)
        return StoredReply(key, parse_answer(services.store.spool(key, stack)))
    for ordinal in range(batch.polls - 1, batch.polls_settled, -1):
        for attempt in {one.attempt for one in batch.of_round}:
            key = keys.raw(batch.job_id, batch.number, attempt, ordinal)
            try:
                return StoredReply(key, parse_answer(services.store.spool(key, stack)))
            except ObjectNotFoundError:
                continue
    return None


def _not_finished(
    services: Services,
    job: Job,
    batch: Batch,
    submission: Submission,
    reply: Reply,
    verdict: ErrorClass | None,
    permit: Permit,
) -> bool:
    """Process a reply without results; return whether that made the batch `done`."""
    match reply:
        case Pending(status):
            return _still_pending(services, job, batch, submission, status)
        case Accepted():
            return _still_pending(services, job, batch, submission, "queued")
        case NoAnswers():
            return _missed(services, job, batch, submission, NO_ANSWERS)
        case Failed(code, message, enveloped):
            if enveloped or _is_believed(services, batch, submission, code or 0, MISSES_OVER):
                _failed(services, job, batch, submission, code, message)
        case OutcomeUnknown(reason):
            logger.info("no answer to a poll", **batch_log_fields(batch), reason=reason)
            count("ApiErrors")
            _unanswered(services, job, batch, submission, 0)
        case Rejected() if verdict is not None:
            return _rejected(services, job, batch, submission, reply, verdict, permit)
    return False


def _rejected(
    services: Services,
    job: Job,
    batch: Batch,
    submission: Submission,
    reply: Rejected,
    verdict: ErrorClass,
    permit: Permit,
) -> bool:
    now, ledger = services.now(), services.ledger
    code = reply.code or reply.status
    logger.info("poll refused", **batch_log_fields(batch), code=code, verdict=verdict)
    count(METRIC_OF_CLASS[verdict])
    over = _confirm_doubted(reply, verdict)
    is_known = verdict is not ErrorClass.MODEL and reply.code is not None and job.believes(cause_of(reply.code))
    if over is not None and not is_known and not _is_believed(services, batch, submission, code, over):
        return False
    match verdict:
        case ErrorClass.ACCOUNT:
            account = other_account(services, job)
            services.budget.pause(PauseReason.TOKEN_REFUSED, now, str(code), permit, account)
            ledger.schedule_poll(batch, now + 60, paused=batch.paused + 60)
        case ErrorClass.HOLD:
            until = soon_after(services.budget.hold(now, reply.retry_after), 10)
            ledger.schedule_poll(batch, until, paused=batch.paused + until - now)
        case ErrorClass.UNKNOWN_ID:
            return _missed(services, job, batch, submission, LOST)
        case ErrorClass.MODEL:
            words = model_error_message(job.plan.model, code)
            ledger.fail_job(job, ErrorDetail("unknown_model", words), now)
            return end(services, job, batch, ErrorDetail("rejected", words))
        case _ if verdict is ErrorClass.BATCH_FAILED or over is not None:
            _failed(services, job, batch, submission, reply.code, reply.message)
        case _:
            if reply.enveloped and is_overdue(services, batch, now):
                return submit_again(services, job, batch, LATE, {})
            _unanswered(services, job, batch, submission, code)
    return False


def _confirm_doubted(reply: Rejected, verdict: ErrorClass) -> float | None:
    """Seconds over which several polls must get this reply; None if one is enough, or no number is."""
    if verdict in {ErrorClass.REQUEST, ErrorClass.MODEL}:
        return MISSES_OVER
    is_server_error = reply.code is not None and reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return FAILURES_OVER if verdict is ErrorClass.TRY_LATER and is_server_error else None


def _unanswered(services: Services, job: Job, batch: Batch, submission: Submission, code: int) -> None:
    """Process a poll without an answer: the claim counts, so that a batch whose replies are never readable ends."""
    now = services.now()
    wait = poll_back_off(now - submission.at) if _is_latest(batch, submission) else DOUBTED_SECONDS
    since = note_lasting_error(services, job, batch, code, polling=True)
    services.ledger.schedule_poll(batch, now + claim_seconds(batch.claims, wait), claims=batch.claims, vain_since=since)


def _is_believed(services: Services, batch: Batch, submission: Submission, code: int, over: float) -> bool:
    """Whether a reply is believed: only if several in a row are the same, over `over` seconds.

    If not, it is counted. Claims count too, so that a batch whose replies keep changing ends.
    """
    now = services.now()
    if not _is_latest(batch, submission):
        _give_up_earlier(services, batch, submission, certain=False)
        return False
    same = batch.failures > 0 and batch.failing_code == code
    since, times = (batch.failing_at, batch.failures + 1) if same else (now, 1)
    if times >= FAILURES and now - since >= over:
        return True
    services.ledger.schedule_poll(
        batch,
        now + claim_seconds(batch.claims, DOUBTED_SECONDS),
        claims=batch.claims,
        failures=times,
        failing_code=code,
        failing_at=since,
        misses=0,
    )
    return False


def _missed(services: Services, job: Job, batch: Batch, submission: Submission, error: ErrorDetail) -> bool:
    """Process a lost answer, which is believed after several polls; return whether that made the batch `done`."""
    now = services.now()
    if not _is_latest(batch, submission):
        _give_up_earlier(services, batch, submission, certain=False)
        return False
    since = batch.missed_at if batch.misses else now
    counted: dict[str, object] = {"misses": batch.misses + 1, "missed_at": since, "failures": 0}
    if batch.misses + 1 >= MISSES and now - since >= MISSES_OVER:
        return submit_again(services, job, batch, error, counted)
    due_at = now + claim_seconds(batch.claims, DOUBTED_SECONDS)
    services.ledger.schedule_poll(batch, due_at, claims=batch.claims, **counted)
    return False


def _failed(services: Services, job: Job, batch: Batch, submission: Submission, code: int | None, message: str) -> None:
    """Process a failure after acceptance; if it is that of an earlier id, only that id is given up."""
    if _is_latest(batch, submission):
        isolate_or_end(services, job, batch, code, message)
    else:
        _give_up_earlier(services, batch, submission, certain=True)


def _give_up_earlier(services: Services, batch: Batch, submission: Submission, *, certain: bool) -> None:
    """Count a poll against an earlier id of a batch that was submitted again; only that id is given up.

    The counts of the latest id stay: it alone decides what happens to the batch.
    """
    now = services.now()
    since = submission.missed_at if submission.misses else now
    given_up = certain or (submission.misses + 1 >= MISSES and now - since >= MISSES_OVER)
    counted = replace(submission, misses=submission.misses + 1, missed_at=since, given_up=given_up)
    services.ledger.schedule_poll(
        batch,
        now + claim_seconds(batch.claims, DOUBTED_SECONDS),
        claims=batch.claims,
        submissions=_with(batch, submission, counted),
    )


def _is_latest(batch: Batch, submission: Submission) -> bool:
    return submission is batch.submissions[-1]


def _with(batch: Batch, submission: Submission, changed: Submission) -> tuple[Submission, ...]:
    return tuple(changed if one is submission else one for one in batch.submissions)


def _still_pending(services: Services, job: Job, batch: Batch, submission: Submission, status: str) -> bool:
    """Process a pending reply, perhaps of an overdue batch; return whether that made the batch `done`."""
    now = services.now()
    count("OldestPendingAge", now - batch.submissions[-1].at)
    clear_lasting_error(services, job, batch)
    updates: dict[str, object] = {"pending_at": now, "api_status": status}
    if _is_latest(batch, submission):
        updates |= {"misses": 0, "failures": 0}
    elif submission.misses:
        updates |= {"submissions": _with(batch, submission, replace(submission, misses=0))}
    if is_overdue(services, batch, now) or job.is_past_deadline(now):
        return submit_again(services, job, batch, LATE, updates)
    due_at = min(now + next_poll(services, job, batch), overdue_at(services, batch) + 1)
    due_at = min(due_at, job.deadline_at or due_at)
    followed = (
        int(batch.number[:8]) < FAST_START_BATCHES
        and due_at - batch.submissions[-1].at <= FOLLOWED_SECONDS
        and batch.polls <= FOLLOWED_POLLS
    )
    grace = POLL_GRACE_SECONDS if followed else 0.0
    if services.ledger.schedule_poll(batch, due_at + grace, **updates) and followed:
        services.queues.send(PollMessage(((job.job_id, batch.number),)), delay=due_at - now)
    return False


def _note_completion_time(services: Services, job: Job, batch: Batch, now: float) -> None:
    """Remember how long a batch took, if it was accepted once and its first complete reply is known."""
    if len(batch.of_round) == 1 and not batch.missing_asks:
        accepted = batch.of_round[0].at
        services.times.note(job.plan.model, batch.number, max(batch.pending_at - accepted, 0.0), now - accepted, now)
