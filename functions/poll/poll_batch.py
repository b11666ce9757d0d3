"""Ask: one claimed batch, one poll of the API, and what its reply leads to.

The poll that finds a batch finished carries its whole result and may be the only one that ever does: its bytes are in
S3, under a key that holds the poll's ordinal, before any state says so. A claim that found another claim dead looks
there first.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from functions.poll.bisect_batch import give_up, isolate
from functions.poll.collect import StoredReply, collect, try_missing_again
from shared import s3_keys as keys
from shared.api_messages import attach_api_message
from shared.aws.object_store import ObjectNotFoundError
from shared.aws.queues import SubmitMessage
from shared.claims import MAX_CLAIMS, claim_seconds, report_stuck
from shared.lasting_errors import clear_lasting_error, note_lasting_error
from shared.models import TOO_OLD_CODE, Batch, ErrorDetail, Job, Submission, cause_of
from shared.observability import batch_log_fields, count, logger
from shared.pacing.controls import PauseReason, Permit
from shared.pacing.poll_schedule import MAX_SECONDS, MIN_SECONDS
from shared.rejections import classify_rejection
from shared.retry import retry_until_deadline
from shared.workers_ai.error_codes import METRIC_OF_CLASS, ErrorClass, model_error_message
from shared.workers_ai.replies import Accepted, Failed, OutcomeUnknown, Pending, Rejected, Reply
from shared.workers_ai.results import Answer, parse_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.bootstrap import Services

POLL_SECONDS = 75.0
"""The longest a poll may take, reading a large answer included."""
COLLECT_SECONDS = 25.0
"""Time kept after it to store and join."""
MIN_POLL_SECONDS = 15.0
"""No poll is begun with less time: it could break off the only reply that holds the results."""
MAX_SUBMITS = 3
MISSES, MISSES_OVER = 5, 60.0
"""Polls in a row that must not know an id, over at least so many seconds, before it counts as lost."""
FAILURES, FAILURES_OVER = 5, 30.0
"""Likewise for polls answered with one and the same 5xx code; with any other code it is `MISSES_OVER`."""
DOUBTED_SECONDS = 15.0
"""Seconds to the next poll after one that is to be believed after several only."""
SAYS_NOTHING_OF_TOKEN = {ErrorClass.ACCOUNT, ErrorClass.HOLD, ErrorClass.TRY_LATER}
"""Refusals of a pause's probe that do not show that the pause is over."""
LATE = ErrorDetail("expired", "Workers AI did not finish it in time.")
MISSING = ErrorDetail("missing_response", "Workers AI sent no answer for this record.")
INTERNAL = ErrorDetail("internal", "Dropbatch could not bring this batch to its end; see the poll function's log.")


@dataclass(frozen=True, slots=True)
class PollOutcome:
    """What became of one batch: the job it belongs to, and whether the batch became `done`."""

    job_id: str
    done: bool


def needs_call(job: Job, batch: Batch, now: float) -> bool:
    """Whether the API has to be polled: not for one that only waits to be written or split, or whose job is too old."""
    waits = batch.ending is not None or batch.halving is not None or job.is_too_old(now)
    return not waits and any(one.request_id for one in batch.pollable)


def poll_batch(
    services: Services, job: Job, batch: Batch, permit: Permit, remaining: Callable[[], float]
) -> PollOutcome:
    """Claim a batch and bring it on.

    Raises:
        StorageError: a service refused or broke off; the batch's `due_at` brings it up again.
    """
    if needs_call(job, batch, services.now()) and remaining() < MIN_POLL_SECONDS + COLLECT_SECONDS:
        return PollOutcome(job.job_id, done=False)  # it stays due
    now = services.now()
    until = now + claim_seconds(batch.claims, min(remaining(), POLL_SECONDS + COLLECT_SECONDS) + 10)
    waits_for_isolation = batch.halving is not None and batch.ending is None
    claim = services.ledger.claim_isolation if waits_for_isolation else services.ledger.claim_poll
    claimed = claim(batch, until)
    if claimed is None:
        return PollOutcome(job.job_id, done=False)
    report_stuck(claimed.claims, job.job_id, batch.number)
    if claimed.claims > MAX_CLAIMS:
        return PollOutcome(job.job_id, _give_up(services, job, claimed))
    return PollOutcome(job.job_id, _advance_batch(services, job, claimed, permit, remaining))


def _advance_batch(services: Services, job: Job, batch: Batch, permit: Permit, remaining: Callable[[], float]) -> bool:
    """Write down what is known already, else ask the API; whether the batch is done by it."""
    if batch.ending is not None:
        return collect(services, job, batch, None)
    if batch.halving is not None:
        ended = isolate(services, batch)
        return ended is not None and collect(services, job, ended, None)
    if job.is_too_old(services.now()):
        return _end(services, job, batch, batch.last_word or TOO_OLD_CODE)
    candidates = batch.pollable
    submission = candidates[-1 - (batch.polls - 1) % len(candidates)]
    with ExitStack() as kept:
        stored = _stored_reply(services, batch, submission, kept)
        if stored is not None:
            return collect(services, job, batch, stored)
    now = services.now()
    count("PollCalls")
    with services.api.poll(
        job.plan.model, submission.request_id, min(POLL_SECONDS, remaining() - COLLECT_SECONDS)
    ) as reply:
        if isinstance(reply, Answer):
            key = keys.raw(job.job_id, batch.number, submission.attempt, batch.polls)
            # The API may never give this answer again; that S3 is slow must not lose it.
            retry_until_deadline(lambda: services.store.put_if_absent(key, reply.body), services, remaining)
            clear_lasting_error(services, job, batch)
            done = collect(services, job, batch, StoredReply(key, reply))
            _note_completion_time(services, job, batch, now)
            verdict = None
        else:
            verdict = classify_rejection(services, batch, reply, polling=True) if isinstance(reply, Rejected) else None
            done = _not_finished(services, job, batch, submission, reply, verdict, permit)
        if permit.pause and not isinstance(reply, OutcomeUnknown) and verdict not in SAYS_NOTHING_OF_TOKEN:
            services.budget.lift(permit, job.plan.model)
    return done


def _give_up(services: Services, job: Job, batch: Batch) -> bool:
    """The records end `internal`; or the batch without a line, if they cannot be written either.

    Its job cannot finish then, and ends by the same law. All that was answered stays in staging.
    """
    if batch.pieces:
        give_up(services, batch)
        return False
    if batch.ending is None:
        return _end(services, job, batch, batch.last_word or batch.halving or INTERNAL)
    return services.ledger.abandon(batch, services.now()) is not None


def _stored_reply(services: Services, batch: Batch, submission: Submission, kept: ExitStack) -> StoredReply | None:
    """A reply that lies in S3 already: the submit's own, or that of a poll whose function died then."""
    if submission.request_id == "":
        key = keys.raw(batch.job_id, batch.number, submission.attempt, 0)
        return StoredReply(key, parse_answer(services.store.spool(key, kept)))
    for ordinal in range(batch.polls - 1, batch.polls_settled, -1):
        for attempt in {one.attempt for one in batch.of_round}:
            key = keys.raw(batch.job_id, batch.number, attempt, ordinal)
            try:
                return StoredReply(key, parse_answer(services.store.spool(key, kept)))
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
    """What a reply without results leads to; whether the batch is done by it."""
    match reply:
        case Pending(status):
            return _still_pending(services, job, batch, submission, status)
        case Accepted():
            return _still_pending(services, job, batch, submission, "queued")
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
            services.budget.pause(PauseReason.TOKEN_REFUSED, now, str(code), permit)
            ledger.schedule_poll(batch, now + 60, paused=batch.paused + 60)
        case ErrorClass.HOLD:
            until = services.budget.hold(now, reply.retry_after) + random.uniform(0, 10)  # noqa: S311
            ledger.schedule_poll(batch, until, paused=batch.paused + until - now)
        case ErrorClass.UNKNOWN_ID:
            return _missed(services, job, batch, submission)
        case ErrorClass.MODEL:
            words = model_error_message(job.plan.model, code)
            ledger.fail_job(job.job_id, ErrorDetail("unknown_model", words), now)
            return _end(services, job, batch, ErrorDetail("rejected", words))
        case _ if verdict is ErrorClass.BATCH_FAILED or over is not None:
            _failed(services, job, batch, submission, reply.code, reply.message)
        case _:
            if reply.enveloped and _overdue(services, batch, now):
                return _submit_again(services, job, batch, LATE, {})
            _unanswered(services, job, batch, submission, code)
    return False


def _confirm_doubted(reply: Rejected, verdict: ErrorClass) -> float | None:
    """Seconds over which several polls must be answered so; None where one is enough, or none ever are."""
    if verdict in {ErrorClass.REQUEST, ErrorClass.MODEL}:
        return MISSES_OVER
    is_server_error = reply.enveloped and reply.code is not None and reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return FAILURES_OVER if verdict is ErrorClass.TRY_LATER and is_server_error else None


def _unanswered(services: Services, job: Job, batch: Batch, submission: Submission, code: int) -> None:
    """No answer: the claim counts, so that a reply that never becomes readable comes to its end."""
    now = services.now()
    wait = back_off(batch, now) if _is_latest(batch, submission) else DOUBTED_SECONDS
    since = note_lasting_error(services, job, batch, code, polling=True)
    services.ledger.schedule_poll(batch, now + claim_seconds(batch.claims, wait), claims=batch.claims, vain_since=since)


def _is_believed(services: Services, batch: Batch, submission: Submission, code: int, over: float) -> bool:
    """Whether what a poll said is to be believed: only if several in a row did, over so many seconds.

    If not, it is written down. Claims count, so that polls that say now this and now that come to their end.
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


def _missed(services: Services, job: Job, batch: Batch, submission: Submission) -> bool:
    """The API does not know the id: believed after several polls; whether the batch is done by it."""
    now = services.now()
    if not _is_latest(batch, submission):
        _give_up_earlier(services, batch, submission, certain=False)
        return False
    since = batch.missed_at if batch.misses else now
    counted: dict[str, object] = {"misses": batch.misses + 1, "missed_at": since, "failures": 0}
    if batch.misses + 1 >= MISSES and now - since >= MISSES_OVER:
        return _submit_again(
            services, job, batch, ErrorDetail("expired", "Workers AI no longer knew the batch."), counted
        )
    due_at = now + claim_seconds(batch.claims, DOUBTED_SECONDS)
    services.ledger.schedule_poll(batch, due_at, claims=batch.claims, **counted)
    return False


def _failed(services: Services, job: Job, batch: Batch, submission: Submission, code: int | None, message: str) -> None:
    """A batch failed after acceptance; an earlier id only leaves it to the latest."""
    if _is_latest(batch, submission):
        _bisect(services, job, batch, code, message)
    else:
        _give_up_earlier(services, batch, submission, certain=True)


def _give_up_earlier(services: Services, batch: Batch, submission: Submission, *, certain: bool) -> None:
    """Count a poll against an earlier id of a batch that was submitted again, which alone is given up by it.

    What is counted of the latest id stays as it is: it alone decides what becomes of the batch.
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


def _overdue(services: Services, batch: Batch, now: float) -> bool:
    accepted = batch.accepted_at or now
    return now - accepted - batch.paused > services.settings.batch_deadline_hours * 3_600


def _submit_again(services: Services, job: Job, batch: Batch, fault: ErrorDetail, learned: dict[str, object]) -> bool:
    """Overdue or lost: submit again while that is allowed, else its records end here; whether it is done.

    While a submit could not be sent anyhow, its ids are polled on, and `learned` is kept.
    """
    if batch.is_partly_answered:
        return _end_missing(services, job, batch)
    now = services.now()
    submits = len(batch.of_round) + batch.unknowable
    if batch.last_word or services.settings.ambiguous_submit == "fail" or submits >= MAX_SUBMITS:
        return _end(services, job, batch, batch.last_word or fault)
    if not services.budget.can_submit(job.plan.model, now):
        services.ledger.schedule_poll(batch, now + _next_poll(services, job, batch), **learned)
    elif services.ledger.resubmit(batch, now):
        logger.warning("batch submitted again", **batch_log_fields(batch), reason=fault.message)
        services.queues.send(SubmitMessage(job.job_id, batch.number))
    return False


def _end_missing(services: Services, job: Job, batch: Batch) -> bool:
    """A reply lacked items, and no other will come: submit only these again, else end them; whether it is done."""
    submits = len(batch.submissions) + batch.unknowable
    allowed = services.settings.ambiguous_submit == "resubmit" and batch.last_word is None and submits < MAX_SUBMITS
    if allowed and try_missing_again(services, batch):
        return False
    return _end(services, job, batch, batch.last_word or MISSING)


def _end(services: Services, job: Job, batch: Batch, fault: ErrorDetail) -> bool:
    ended = services.ledger.end_without_answer(batch, fault, services.now())
    return ended is not None and collect(services, job, ended, None)


def _bisect(services: Services, job: Job, batch: Batch, code: int | None, message: str) -> None:
    """Failed after acceptance: bad records in it are isolated, and a record that stands alone fails by itself."""
    if batch.is_partly_answered:
        _end_missing(services, job, batch)
        return
    words = "Workers AI accepted this request and then failed it"
    reason = attach_api_message(
        services.store, batch, ErrorDetail("rejected", words if code is None else f"{words} ({code})"), message
    )
    now = services.now()
    if batch.sendable == 1 or batch.round:
        services.ledger.end_without_answer(batch, reason, now, cause=cause_of(code))
    else:
        services.ledger.begin_halving(batch, reason, cause_of(code), now)


def _still_pending(services: Services, job: Job, batch: Batch, submission: Submission, status: str) -> bool:
    """Pending, perhaps for too long; whether the batch is done by it."""
    now = services.now()
    count("OldestPendingAge", now - (batch.accepted_at or now))
    clear_lasting_error(services, job, batch)
    learned: dict[str, object] = {"pending_at": now, "api_status": status}
    if _is_latest(batch, submission):
        learned |= {"misses": 0, "failures": 0}
    elif submission.misses:
        learned |= {"submissions": _with(batch, submission, replace(submission, misses=0))}
    if _overdue(services, batch, now):
        return _submit_again(services, job, batch, LATE, learned)
    services.ledger.schedule_poll(batch, now + _next_poll(services, job, batch), **learned)
    return False


def _next_poll(services: Services, job: Job, batch: Batch) -> float:
    """Seconds until a pending batch is asked after next."""
    now = services.now()
    return services.times.next_poll(job.plan.model, now - (batch.accepted_at or now), now)


def _note_completion_time(services: Services, job: Job, batch: Batch, now: float) -> None:
    """Remember how long a batch took, where it is plain since when, and when that was first seen."""
    if len(batch.of_round) == 1 and not batch.missing_asks:
        accepted = batch.of_round[0].at
        services.times.note(job.plan.model, batch.number, max(batch.pending_at - accepted, 0.0), now - accepted, now)


def back_off(batch: Batch, now: float) -> float:
    """Seconds until a batch is asked after again when there was no answer: half of its age, whatever was learned."""
    age = now - (batch.accepted_at or now)
    return min(max(age * 0.5, MIN_SECONDS), MAX_SECONDS) * random.uniform(0.9, 1.1)  # noqa: S311
