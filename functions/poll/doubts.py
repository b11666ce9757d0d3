"""What follows from a poll that got no answer: one table, and one counter of doubt.

A reply that may be wrong is believed only after several polls in a row got the same, because what
it decides is paid for: a divided batch is paid twice, a lost id gives up an answer. Another kind of
doubt begins anew, and a known reply, `pending` too, ends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

from dropbatch.core.errors import NO_CAPACITY_WORDS, PASSING_CODES
from functions.poll.collect import MAX_SUBMITS, collect, failed_for_capacity
from shared.aws.queues import VisitMessage
from shared.keys import attach_api_message
from shared.models import PAST_DEADLINE, Batch, BatchState, Doubt, ErrorDetail, Job, cause_of
from shared.observability import batch_log_fields, count, logger
from shared.pacing.breaker import PauseReason, Permit
from shared.pacing.cost import allows_batch
from shared.pacing.waits import is_lasting, note_failing
from shared.retry import claim_seconds, poll_back_off, soon_after
from shared.services import Services
from shared.workers_ai.error_codes import (
    METRIC_OF_CLASS,
    ErrorClass,
    cause_of_pause,
    model_error_message,
)
from shared.workers_ai.replies import (
    Failed,
    NoAnswers,
    OutcomeUnknown,
    Rejected,
    Reply,
    Unreadable,
)

MISSES = 5  # Polls in a row after which most doubts may be believed
LONG_DOUBT_SECONDS = 900.0  # Of a doubt that an outage of the API would explain as well
FAILED_SECONDS = 60.0  # In which the API must keep saying that a batch failed
CLOCK_SECONDS = 5.0  # Seconds by which clocks of two functions may differ

LATE = ErrorDetail("expired", "Workers AI did not finish the batch in time.")
LOST = ErrorDetail("expired", "Workers AI no longer knew the batch.")
NO_ANSWERS = ErrorDetail(
    "missing_response", "Workers AI reported the batch as completed and sent no answers."
)
MISSING = ErrorDetail("missing_response", "Workers AI sent no answer for this record.")
NO_CAPACITY = ErrorDetail("inference_failed", NO_CAPACITY_WORDS)


@dataclass(frozen=True, slots=True)
class Poll:
    """A poll of a claimed batch."""

    services: Services
    job: Job
    batch: Batch  # as claimed
    permit: Permit
    answered_at: float = 0.0  # when another id last got a known reply, before this poll

    @property
    def now(self) -> float:
        """The time, Unix seconds."""
        return self.services.now()

    @property
    def age(self) -> float:
        """Seconds since the batch was accepted."""
        return self.now - (self.batch.accepted_at or self.now)

    @property
    def is_over(self) -> bool:
        """Whether the batch's deadline, or its job's, is over."""
        now = self.now
        return now > overdue_at(self.services, self.batch) or self.job.is_past_deadline(now)


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


class Kind(StrEnum):
    """Kinds of doubtful replies."""

    NO_ANSWERS = "no answers"  # Completed, without any answer
    UNREADABLE = "unreadable"  # A whole answer that cannot be read: a single record makes it so
    UNKNOWN_ID = "unknown id"
    FAILED = "failed"  # The API says that the batch failed, by a code or by its status
    REFUSED = "refused"  # A code blames the request
    REFUSED_BY_SERVER = "refused by a server"  # Likewise, with a server's status
    NO_CAPACITY = "no capacity"  # In reply to a poll, which needs none
    WITHDRAWN = "withdrawn"  # The model was withdrawn


class Rule(NamedTuple):
    """When a kind of doubtful reply is believed, and what follows."""

    metric: str  # what counts it
    then: Callable[[Poll, int | None, str], bool]  # what follows; returns whether the batch is done
    seconds: float = LONG_DOUBT_SECONDS  # over how many seconds polls must get it
    times: int = MISSES  # polls in a row
    wait: float = 15.0  # seconds between the first of them


def _end_unanswered(poll: Poll, _code: int | None, _message: str) -> bool:
    return end(poll.services, poll.job, poll.batch, NO_ANSWERS)


def _lost(poll: Poll, _code: int | None, _message: str) -> bool:
    return submit_again(poll.services, poll.job, poll.batch, LOST)


def _failed(poll: Poll, code: int | None, message: str) -> bool:
    if code in PASSING_CODES:
        return _no_capacity(poll, code, message)
    return _divide(poll, code, message)


def _no_capacity(poll: Poll, _code: int | None, _message: str) -> bool:
    again = failed_for_capacity(poll.services, poll.job, poll.batch)
    return not again and end(poll.services, poll.job, poll.batch, NO_CAPACITY)


def _divide(poll: Poll, code: int | None, message: str) -> bool:
    """Divide a batch that failed after acceptance; a record that was alone in it fails."""
    services, batch, now = poll.services, poll.batch, poll.now
    if batch.partial_replies:
        return end(services, poll.job, batch, MISSING)
    words, cause = "Workers AI accepted this request and then failed it", cause_of(code)
    words = words if code is None else f"{words} ({code})"
    reason = attach_api_message(services.store, batch, ErrorDetail("rejected", words), message)
    if batch.records.sendable == 1:
        services.ledger.end_without_answer(batch, reason, now, cause=cause)
    else:
        services.ledger.begin_isolation(batch, reason, cause, now)
    return False


def _end_job(poll: Poll, code: int | None, _message: str) -> bool:
    """End the job, because its model was withdrawn, and the batch with it."""
    services, job = poll.services, poll.job
    words = model_error_message(job.plan.model, code or 0)
    if services.ledger.fail_job(job, ErrorDetail("unknown_model", words), poll.now):
        services.queues.send(VisitMessage(job.job_id))
    return end(services, job, poll.batch, ErrorDetail("rejected", words), cause=cause_of(code))


RULES = {
    Kind.NO_ANSWERS: Rule("ApiErrors", _end_unanswered),
    Kind.UNREADABLE: Rule("ApiErrors", _divide),
    Kind.UNKNOWN_ID: Rule("ApiRefusals", _lost),
    Kind.FAILED: Rule("ApiRefusals", _failed, FAILED_SECONDS),
    Kind.REFUSED: Rule("ApiRefusals", _divide, FAILED_SECONDS),
    Kind.REFUSED_BY_SERVER: Rule("ApiRefusals", _divide),
    Kind.NO_CAPACITY: Rule("ApiThrottles", _no_capacity),
    Kind.WITHDRAWN: Rule("ApiRefusals", _end_job, 2.0, 2, 3.0),
}
"""Any other reply is no answer: it is never believed, and the batch is polled again."""

PIECE_TIMES, PIECE_SECONDS = 2, 4.0  # Polls that believe that a piece failed like the whole


def _kind_of(reply: Reply, verdict: ErrorClass | None) -> Kind | None:
    """Which kind of doubt a reply raises; None if it is no answer."""
    match reply:
        case NoAnswers():
            return Kind.NO_ANSWERS
        case Unreadable():
            return Kind.UNREADABLE
        case Failed():
            return Kind.FAILED
        case Rejected(enveloped=False):
            return None
        case Rejected(status=status) if verdict is ErrorClass.REQUEST:
            is_servers = status >= HTTPStatus.INTERNAL_SERVER_ERROR
            return Kind.REFUSED_BY_SERVER if is_servers else Kind.REFUSED
    return _KINDS.get(verdict) if verdict else None


_KINDS = {
    ErrorClass.UNKNOWN_ID: Kind.UNKNOWN_ID,
    ErrorClass.BATCH_FAILED: Kind.FAILED,
    ErrorClass.MODEL_WAITS: Kind.NO_CAPACITY,
    ErrorClass.WITHDRAWN: Kind.WITHDRAWN,
}


def process(poll: Poll, reply: Reply, verdict: ErrorClass | None) -> bool:
    """Process a reply that is no answer, and not pending; return whether the batch is `done`."""
    kind = _kind_of(reply, verdict)
    code = reply.code if isinstance(reply, Rejected | Failed) else None
    reason = getattr(reply, "reason", "") or getattr(reply, "message", "")
    _report(poll.batch, kind, code, verdict)
    if kind is not None:
        return _doubt(poll, kind, code, reason, reply)
    if verdict is ErrorClass.ACCOUNT or verdict is ErrorClass.RATE_LIMIT:
        return _all_refused(poll, reply, verdict)
    return _no_answer(poll, reply)


def _report(batch: Batch, kind: Kind | None, code: int | None, verdict: ErrorClass | None) -> None:
    metric = METRIC_OF_CLASS[verdict] if verdict else "ApiErrors"
    count(RULES[kind].metric if kind else metric)
    said = {"reply": kind or "no answer", "code": code, "verdict": verdict}
    logger.info("poll without answer", **batch_log_fields(batch), extra=said)


# ── doubt ─────────────────────────────────────────────────────────────────────────────────────────


def _doubt(poll: Poll, kind: Kind, code: int | None, message: str, reply: Reply) -> bool:
    """Count a doubtful reply; do what follows once it is believed, else poll again."""
    services, batch, now = poll.services, poll.batch, poll.now
    rule, updates = RULES[kind], dict[str, object]()
    name = kind if code is None or kind is Kind.UNKNOWN_ID else f"{kind} {code}"
    doubt = Doubt(name, now)
    if batch.doubt is not None and batch.doubt.kind == name:
        doubt = replace(batch.doubt, times=batch.doubt.times + 1)
    if kind is Kind.UNKNOWN_ID:
        rule = rule if _others_known(poll, doubt) else rule._replace(seconds=math.inf)
        updates["calls_fail_since"] = _note_failing(poll, reply)
    elif kind is Kind.FAILED and batch.records.suspected == cause_of(code):
        rule = rule._replace(times=PIECE_TIMES, seconds=PIECE_SECONDS, wait=PIECE_SECONDS)
    elif kind is Kind.FAILED or kind is Kind.NO_CAPACITY:
        doubt = _compared(poll, doubt)
        longer = LONG_DOUBT_SECONDS if kind is Kind.FAILED else math.inf
        rule = rule._replace(seconds=longer) if doubt.is_shared else rule
    if doubt.times >= rule.times and now - doubt.since >= rule.seconds:
        return rule.then(poll, code, message)
    updates["doubt"] = doubt
    if poll.is_over:
        return submit_again(services, poll.job, batch, LATE, **updates)
    services.ledger.schedule_poll(batch, now + _next_look(rule, doubt, poll.age, now), **updates)
    return False


def _others_known(poll: Poll, doubt: Doubt) -> bool:
    """Whether another id of the account got a known reply since this one is unknown."""
    return poll.answered_at > doubt.since + CLOCK_SECONDS


def _compared(poll: Poll, doubt: Doubt) -> Doubt:
    """A doubt that a batch failed, with whether another id is said to have failed likewise."""
    submission = poll.batch.submission
    request_id = submission.request_id if submission else ""
    is_other, at = poll.services.known.note_failed(doubt.kind, request_id, poll.now)
    is_meanwhile = is_other and at > doubt.since
    return replace(doubt, is_shared=doubt.is_shared or is_meanwhile)


def _next_look(rule: Rule, doubt: Doubt, age: float, now: float) -> float:
    """Seconds to the next poll: one comes when the reply may be believed."""
    wait = rule.wait if doubt.times <= rule.times else poll_back_off(age)
    left = doubt.since + min(rule.seconds, LONG_DOUBT_SECONDS) - now
    return min(wait, max(left, rule.wait)) if left > 0 else wait


def answered_at(services: Services, batch: Batch) -> float:
    """When another id last got a known reply, if a poll of this batch may need it."""
    doubt = batch.doubt
    if doubt is None or doubt.kind != Kind.UNKNOWN_ID or doubt.times + 1 < MISSES:
        return 0.0
    return services.known.answered_at()


# ── no answer ─────────────────────────────────────────────────────────────────────────────────────


def _no_answer(poll: Poll, reply: Reply) -> bool:
    """Process a poll without an answer, which proves nothing.

    What the API itself refuses may be refused until the deadline. Where not even the API answers, a
    job's own deadline counts once polls have failed for a quarter of an hour.
    """
    services, job, batch, now = poll.services, poll.job, poll.batch, poll.now
    since = _note_failing(poll, reply)
    wait, updates = poll_back_off(poll.age), {"calls_fail_since": since}
    is_refused = isinstance(reply, Rejected) and reply.enveloped
    if poll.is_over and (is_refused or (job.is_past_deadline(now) and is_lasting(since, now))):
        return submit_again(services, job, batch, LATE, **updates)
    if is_refused:
        services.ledger.schedule_poll(batch, now + wait, **updates)
    else:  # The claim counts, so that a batch whose replies are never the API's ends.
        at = now + claim_seconds(batch.claims, wait)
        services.ledger.schedule_poll(batch, at, claims=batch.claims, **updates)
    return False


def _note_failing(poll: Poll, reply: Reply) -> float:
    """Note one more failed call in the job; return since when the batch's calls have failed."""
    assert isinstance(reply, Rejected | OutcomeUnknown)  # noqa: S101 - for mypy
    return note_failing(poll.services, poll.job, poll.batch, reply, polling=True)


def _all_refused(poll: Poll, reply: Reply, verdict: ErrorClass) -> bool:
    """Process a poll that was refused as every call is: the batch's clock stands still."""
    services, job, batch, now = poll.services, poll.job, poll.batch, poll.now
    if not isinstance(reply, Rejected):
        return False
    if verdict is ErrorClass.ACCOUNT:
        services.budget.pause(PauseReason.TOKEN_REFUSED, now, cause_of_pause(reply), poll.permit)
        until = now + 60
        since = poll.permit.pause.since if poll.permit.pause else now
    else:
        until = soon_after(services.budget.limit_rate(now, reply.retry_after), 10)
        since = services.budget.controls().rate.held_since
    if job.is_past_deadline(now) and is_lasting(max(since, batch.pending_at), now):
        return submit_again(services, job, batch, LATE)
    services.ledger.schedule_poll(batch, until, paused=batch.paused + until - now)
    return False


# ── the end of a batch without its answer ─────────────────────────────────────────────────────────


def overdue_at(services: Services, batch: Batch) -> float:
    """When a batch will have been pending for longer than the stack's deadline, but for pauses."""
    hours = services.settings.batch_deadline_hours
    return (batch.accepted_at or 0.0) + batch.paused + hours * 3_600


def is_overdue(services: Services, batch: Batch) -> bool:
    """Whether the API has had a batch for longer than the stack's deadline."""
    return batch.state is BatchState.QUEUED and services.now() > overdue_at(services, batch)


def submit_again(
    services: Services, job: Job, batch: Batch, error: ErrorDetail, **updates: object
) -> bool:
    """Submit an overdue or lost batch again if allowed, else end it; return whether it is done.

    While no submit can be sent, it is still polled, with `updates`.
    """
    now = services.now()
    if job.is_past_deadline(now):
        return end(services, job, batch, PAST_DEADLINE)
    may_send = services.settings.ambiguous_submit == "resubmit" and batch.submits < MAX_SUBMITS
    if batch.partial_replies or not may_send or job.ending(now):
        return end(services, job, batch, error)
    if not _can_send(services, job, batch):
        services.ledger.schedule_poll(batch, now + next_poll(services, job, batch), **updates)
    elif services.ledger.resubmit(batch, now, now):
        logger.warning("batch submitted again", **batch_log_fields(batch), reason=error.message)
    return False


def _can_send(services: Services, job: Job, batch: Batch) -> bool:
    if job.is_held or not allows_batch(job, batch):
        return False
    # An overdue batch is given up for its own place: else a model full of them stays full.
    has_place = is_overdue(services, batch)
    return services.budget.can_submit(job.plan.model, services.now(), has_place=has_place)


def end(services: Services, job: Job, batch: Batch, error: ErrorDetail, **updates: object) -> bool:
    """End the records of a batch that have no answer; return whether the batch is done."""
    ended = services.ledger.end_without_answer(batch, error, services.now(), **updates)
    return ended is not None and collect(services, job, ended, None)


def next_poll(services: Services, job: Job, batch: Batch) -> float:
    """Seconds until a pending batch is polled next."""
    now = services.now()
    age = now - (batch.accepted_at or now)
    return services.times.next_poll(job.plan.model, batch.number, age, now)
