"""Submit: one message, one batch, one POST. The one window that nothing can close is kept as small as it can be.

`submitting` is written before the POST, with the attempt and a fence before which nobody else may try. A function that
outlives its POST settles it at once. One that dies leaves it to the recovery behind the fence, which looks for a
receipt or a reply of that attempt before it calls the outcome unknown.
"""

from __future__ import annotations

import random
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from shared import keys
from shared.api_replies import Accepted, Failed, Lost, Refused, Reply
from shared.budget import OUTAGE_WAIT_MOST, Pause, PauseReason, Permit, Refusal
from shared.errors import StorageError
from shared.insist import insist
from shared.judgement import judged, token_state
from shared.observability import count, logger, of_batch
from shared.patience import LAST_CLAIM, LONGEST_WAIT_FOR_ACCEPTANCE
from shared.queues import ASK_GRACE, PROMPT_BATCHES, AskMessage
from shared.quoted import quoting
from shared.replies import Answer
from shared.store import NotThereError
from shared.trouble import in_vain, no_longer_in_vain
from shared.verdicts import COUNTED_AS, FIREWALL, Verdict, refused_model
from shared.words import TOO_OLD, Batch, BatchState, Fault, Job, Submission, Work, cause_of
from shared.workers_ai import TokenState

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.services import Services

POST_SECONDS = 60.0
"""The longest a POST may take, its reply included."""
SETTLE_SECONDS = 45.0
"""Time kept after the POST to record its outcome: the table is given up in time for a receipt in S3."""
FENCE_MARGIN = 30.0
"""Seconds by which clocks of two functions may differ."""
POLLED_AFTER = 300.0
"""Seconds that a batch which is submitted again waits for the rate budget before its ids are polled once more."""
INTERNAL = Fault("internal", "Dropbatch could not submit this batch; see the submit function's log.")
MOST_UNKNOWABLE = 2
"""Unknowable submits of one batch, the last of which ends it."""


def submit(services: Services, job_id: str, number: str, remaining: Callable[[], float]) -> None:
    """Bring one batch on: submit it, or settle what an earlier run left.

    Args:
        services: all there is.
        job_id: the job.
        number: the batch's number.
        remaining: seconds this invocation has left.

    Raises:
        StorageError: a service refused or broke off; the batch's `due_at` brings it up again.
    """
    _bring_on(services, job_id, number, remaining)
    if int(number[:8]) < PROMPT_BATCHES:
        batch = services.ledger.batch(job_id, number)
        if batch and batch.ending and batch.state is BatchState.READY:
            services.queues.send(AskMessage(((job_id, number),)))


def _bring_on(services: Services, job_id: str, number: str, remaining: Callable[[], float]) -> None:
    now = services.now()
    batch = services.ledger.batch(job_id, number)
    job = services.ledger.job(job_id)
    if batch is None or job is None:
        logger.warning("message for an unknown batch", job_id=job_id, number=number)
        return
    if batch.state is BatchState.SUBMITTING and now >= batch.fence:
        batch = _recover(services, job, batch)
    if batch is None or batch.state is not BatchState.READY or batch.ending:
        return
    if batch.halving:
        if batch.work is Work.SUBMIT:
            # Left by an earlier version, which may have created one of the two halves that it decided on.
            services.ledger.begin_halving(batch, batch.halving, batch.cause, now, pieces=2)
        return
    if (fault := job.error or job.stopped) is not None:
        words = f"Not sent, because the job was stopped: {fault.message}"
        _end(services, batch, Fault(TOO_OLD.code if fault == TOO_OLD else "rejected", words, fault.said))
    elif batch.claims > LAST_CLAIM:
        _end(services, batch, INTERNAL)
    elif now - batch.waits_since > LONGEST_WAIT_FOR_ACCEPTANCE:
        _end(services, batch, Fault("expired", "The API did not accept it within 7 days."))
    elif remaining() > POST_SECONDS + SETTLE_SECONDS:
        _try(services, job, batch, remaining)


def _try(services: Services, job: Job, batch: Batch, remaining: Callable[[], float]) -> None:
    now = services.now()
    permit = services.budget.permit_submit(job.plan.model, now, first=batch.work is Work.FIRST)
    if isinstance(permit, Refusal):
        _wait(services, batch, permit)
        return
    if permit.pause and permit.pause.reason is PauseReason.OUTAGE and token_state(services) is TokenState.UNKNOWN:
        # Whoever does not answer the free call would not answer a submit, and that would be one more unknowable.
        services.budget.pause(PauseReason.OUTAGE, now, "no answer", permit)
        _wait(services, batch, Refusal(now + min(2 * permit.pause.step, OUTAGE_WAIT_MOST), paused=True))
        return
    # Learned before the POST: after it nothing stands between the request_id and the table.
    first_ask = services.times.first_ask(job.plan.model, batch.number, now)
    # Read before the claim: nothing that can fail stands between it and the POST, and makes a POST seem possible.
    size = batch.round_size or batch.body_size
    body = services.store.get(keys.staged(job.job_id, batch.number, batch.round), 0, size)
    if remaining() < POST_SECONDS + SETTLE_SECONDS:
        return  # it stays due
    now = services.now()
    claimed = services.ledger.begin_submit(batch, now + remaining() + FENCE_MARGIN)
    if claimed is None:
        return
    with services.api.submit(job.plan.model, body, min(POST_SECONDS, remaining() - SETTLE_SECONDS)) as reply:
        _settle(services, job, claimed, permit, reply, first_ask, remaining)


def _wait(services: Services, batch: Batch, refusal: Refusal) -> None:
    """No submit now. A batch that is submitted again has ids that may bring its answer while it waits for long."""
    now = services.now()
    if batch.waits_anew and (refusal.paused or now - batch.ready_at > POLLED_AFTER):
        services.ledger.poll_on(batch, refusal.until)
        return
    waited = refusal.until - now if refusal.paused else 0.0
    services.ledger.postpone(batch, refusal.until, paused=batch.paused + waited)


def _settle(
    services: Services,
    job: Job,
    batch: Batch,
    permit: Permit,
    reply: Reply,
    first_ask: float,
    remaining: Callable[[], float],
) -> None:
    """Record what the POST came to; a batch that was accepted is asked after in `first_ask` seconds."""
    count("SubmitCalls")
    match reply:
        case Accepted(request_id):
            _accepted(services, job, batch, request_id, first_ask, remaining)
        case Answer(answer):
            key = keys.raw(job.job_id, batch.number, batch.attempt, 0)
            insist(lambda: services.store.put_once(key, answer), services, remaining)
            _accepted(services, job, batch, "", 0.0, remaining)
        case Refused(code=code):
            verdict = insist(lambda: judged(services, batch, reply, polling=False), services, remaining)
            logger.info("submit refused", **of_batch(batch), code=code, status=reply.status, verdict=verdict)
            count(COUNTED_AS[verdict])
            insist(lambda: _refused(services, job, batch, permit, reply, verdict), services, remaining)
            if permit.pause and _lifts(permit.pause, verdict, reached=reply.status > 0):
                services.budget.lift(Permit(pause=permit.pause), job.plan.model)
            return
        case Failed(code, message):
            insist(lambda: _isolate_or_end(services, batch, code, message), services, remaining)
        case Lost(reason):
            logger.warning("submit unknowable", **of_batch(batch), reason=reason)
            insist(lambda: _unknowable(services, batch, permit, services.now()), services, remaining)
            return
        case _:  # Pending is no answer to a submit
            insist(lambda: _unknowable(services, batch, permit, services.now()), services, remaining)
            return
    services.budget.lift(permit, job.plan.model)
    no_longer_in_vain(services, job, batch)


def _accepted(
    services: Services, job: Job, batch: Batch, request_id: str, first_ask: float, remaining: Callable[[], float]
) -> None:
    """Record the request_id; at the table's first failure a receipt goes to S3, and then the table is tried again."""
    now = services.now()
    submission = Submission(request_id, batch.attempt, now, batch.round)
    prompt = int(batch.number[:8]) < PROMPT_BATCHES
    due_at = now + first_ask + (ASK_GRACE if prompt and request_id else 0.0)
    is_safe = False

    def record() -> Batch | None:
        nonlocal is_safe
        try:
            return services.ledger.accept(batch, submission, due_at)
        except StorageError:
            is_safe = is_safe or _leave_receipt(services, batch, submission)
            raise

    try:
        taken = insist(record, services, remaining)
    except StorageError:
        return  # the recovery behind the fence finds the receipt
    if taken is None:
        _leave_receipt(services, batch, submission)
        return
    count("BatchesAccepted")
    logger.info("batch accepted", **of_batch(taken), attempt=taken.attempt, requests=taken.requests)
    _ask_soon(services, job, batch, first_ask)


def _leave_receipt(services: Services, batch: Batch, submission: Submission) -> bool:
    """Keep an acceptance that the table did not take, in the log and in S3; whether S3 has it."""
    named = of_batch(batch) | {"request_id": submission.request_id}
    logger.error("request_id not recorded", **named, attempt=batch.attempt)
    key = keys.receipt(batch.job_id, batch.number, batch.attempt)
    try:
        services.store.put_once(key, msgspec.json.encode(submission))
    except StorageError as error:
        logger.error("receipt not written", **named, reason=str(error))
        return False
    return True


def _ask_soon(services: Services, job: Job, batch: Batch, delay: float) -> None:
    """What follows an acceptance: the job knows of it, and the first batches are asked after by message."""
    if not job.seen_accepted:
        services.ledger.note_accepted(job.job_id)
    if int(batch.number[:8]) < PROMPT_BATCHES:
        services.queues.send(AskMessage(((job.job_id, batch.number),)), delay=delay)


def _refused(services: Services, job: Job, batch: Batch, permit: Permit, reply: Refused, verdict: Verdict) -> None:
    """Surely not accepted: what becomes of the batch, and of the calls after it."""
    now, ledger, budget = services.now(), services.ledger, services.budget
    code = reply.code or reply.status
    match verdict:
        case Verdict.MODEL_WAITS:
            until = budget.make_model_wait(job.plan.model, now, str(code), permit)
            ledger.refuse(batch, until + random.uniform(0, 15))  # noqa: S311
        case Verdict.HOLD:
            until = budget.hold(now, reply.retry_after) + random.uniform(0, 10)  # noqa: S311
            ledger.refuse(batch, until, paused=batch.paused + until - now)
        case Verdict.QUOTA:
            budget.pause(PauseReason.QUOTA_SPENT, now, str(code), permit)
            ledger.refuse(batch, now + 300, paused=batch.paused + 300)
        case Verdict.ACCOUNT:
            budget.pause(PauseReason.TOKEN_REFUSED, now, str(code), permit)
            ledger.refuse(batch, now + 60, paused=batch.paused + 60)
        case Verdict.MODEL:
            words = refused_model(job.plan.model, code)
            ledger.fail_job(job.job_id, Fault("unknown_model", words), now)
            _end(services, batch, Fault("rejected", words))
        case Verdict.REQUEST | Verdict.BATCH_FAILED | Verdict.UNKNOWN_ID:
            is_firewall = not reply.enveloped and reply.status == HTTPStatus.FORBIDDEN
            _isolate_or_end(services, batch, code, FIREWALL if is_firewall else reply.message)
        case _:
            since = in_vain(services, job, batch, code, polling=False)
            ledger.refuse(batch, now + back_off(batch.refusals), refusals=batch.refusals + 1, vain_since=since)


def _isolate_or_end(services: Services, batch: Batch, code: int | None, message: str) -> None:
    """The API refused what is in the batch: only the bad record shall fail, which the poll function finds."""
    words = "Workers AI refused this request"
    reason = quoting(services.store, batch, Fault("rejected", words if code is None else f"{words} ({code})"), message)
    if batch.round:
        _end(services, batch, replace(reason, code="inference_failed"))
    elif batch.sendable == 1:
        services.ledger.end_unanswered(batch, reason, services.now(), cause=cause_of(code))
    else:
        services.ledger.begin_halving(batch, reason, cause_of(code), services.now())


def _unknowable(services: Services, batch: Batch, permit: Permit, since: float) -> Batch | None:
    """Nobody can know whether the API took the batch, since a time: the owner's choice decides; the batch after it."""
    now = services.now()
    count("AmbiguousSubmits")
    services.budget.pause(PauseReason.OUTAGE, since, "no answer", permit)
    times = batch.unknowable + 1
    if services.settings.ambiguous_submit == "fail" or times >= MOST_UNKNOWABLE:
        ending = Fault(
            "submit_unknown",
            "Whether Workers AI took this request could not be known, so it was not sent again.",
        )
        return _end(services, batch, ending, unknowable=times)
    return services.ledger.refuse(batch, now + back_off(0), unknowable=times)


def _end(services: Services, batch: Batch, ending: Fault, **learned: object) -> Batch | None:
    """No further submit: its records end so, unless an id that the batch has still brings its answer."""
    settle = services.ledger.ask_on if batch.asked_after else services.ledger.end_unanswered
    return settle(batch, ending, services.now(), **learned)


def _recover(services: Services, job: Job, batch: Batch) -> Batch | None:
    """A submit whose function died: settle it by what it left behind; the batch as it is then."""
    now = services.now()
    try:
        receipt = services.store.get(keys.receipt(batch.job_id, batch.number, batch.attempt))
    except NotThereError:
        if services.store.head(keys.raw(batch.job_id, batch.number, batch.attempt, 0)) is None:
            logger.warning("submit unknowable", **of_batch(batch), reason="its function died")
            # It died some time ago, so that this batch is the one that is tried, now.
            return _unknowable(services, batch, Permit(), batch.fence - FENCE_MARGIN)
        submission = Submission("", batch.attempt, now, batch.round)
    else:
        submission = msgspec.json.decode(receipt, type=Submission)
    accepted = services.ledger.accept(batch, submission, now)
    if accepted:
        _ask_soon(services, job, batch, 0)
    return accepted


def _lifts(pause: Pause, verdict: Verdict, *, reached: bool) -> bool:
    """Whether a refused probe shows all the same that the pause's reason is gone."""
    if pause.reason is PauseReason.TOKEN_REFUSED:
        return reached and verdict not in {Verdict.ACCOUNT, Verdict.HOLD, Verdict.TRY_LATER}
    return pause.reason is PauseReason.OUTAGE and reached


def back_off(times: int) -> float:
    """Seconds to wait after so many refusals in a row: 10 and doubling, up to 15 minutes, with jitter."""
    return min(10.0 * 2.0 ** min(times, 10), 900.0) * random.uniform(0.7, 1.3)  # noqa: S311
