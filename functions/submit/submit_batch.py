"""Submit: one message, one batch, one POST.

The window in which an outcome can become unknown is as small as possible.

`submitting` is written before the POST, with the attempt and the end of its submit lease (`fence`),
before which no other function may try. A function that survives its POST records the outcome
immediately. If it dies, the recovery after the lease looks for a receipt or a reply of that attempt
before it treats the outcome as unknown.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from functions.submit.outcomes.unproven import UnprovenSubmit, end
from functions.submit.submit_waits import UNPAID_REASONS, closes_pause, hold, wait
from shared import keys
from shared.api_messages import attach_api_message
from shared.aws.queues import (
    FAST_START_BATCHES,
    MAX_AHEAD_SECONDS,
    POLL_GRACE_SECONDS,
    PollMessage,
    VisitMessage,
)
from shared.claims import MAX_CLAIMS, MAX_SECONDS_TO_ACCEPTANCE
from shared.errors import ObjectNotFoundError, StorageError
from shared.events.expect import expect_events
from shared.events.subscribe import subscribe
from shared.models import Batch, BatchState, DueKind, ErrorDetail, Job, Submission, Wait, cause_of
from shared.observability import batch_log_fields, count, logger
from shared.pacing import cost
from shared.pacing.account import is_of_account, wait_for_account
from shared.pacing.breaker import (
    LIFT_LOOK_SECONDS,
    PauseReason,
    Permit,
)
from shared.pacing.waits import clear_failing
from shared.retry import soon_after
from shared.workers_ai.client import TokenState
from shared.workers_ai.error_codes import (
    FIREWALL,
    METRIC_OF_CLASS,
    ErrorClass,
    is_like_lost,
    model_error_message,
)
from shared.workers_ai.rejections import cause_of_pause, classify_rejection, token_state
from shared.workers_ai.replies import Accepted, Failed, OutcomeUnknown, Rejected, Reply, Unreadable
from shared.workers_ai.results import Answer

if TYPE_CHECKING:
    from shared.invocation import Invocation

POST_SECONDS = 60.0
"""The longest a POST may take, its reply included."""
SETTLE_SECONDS = 45.0
"""Seconds kept after the POST to record its outcome, in the table or else as a receipt in S3."""
SUBMIT_LEASE_MARGIN_SECONDS = 30.0
"""Seconds by which clocks of two functions may differ."""
PRECISE_SECONDS = 2.0
"""Seconds up to which a first poll comes to the tenth of a second."""
SUBMIT_FAILED = ErrorDetail(
    "internal", "Dropbatch could not submit this batch; see the submit function's log."
)


def submit_batch(invocation: Invocation, job_id: str, number: str) -> None:
    """Advance one batch: submit it, or settle what an earlier run left.

    Args:
        invocation: this one.
        job_id: the job.
        number: the batch's number.

    Raises:
        StorageError: an AWS service failed; the batch is due again at its `due_at`.
    """
    services = invocation.services
    _advance_batch(invocation, job_id, number)
    if int(number[:8]) < FAST_START_BATCHES:
        batch = services.ledger.batch(job_id, number)
        if batch and batch.ending and batch.state is BatchState.READY:
            services.queues.send(PollMessage(((job_id, number),)))


def _advance_batch(invocation: Invocation, job_id: str, number: str) -> None:
    services, now = invocation.services, invocation.services.now()
    batch = services.ledger.batch(job_id, number)
    job = services.ledger.job(job_id)
    if batch is None or job is None:
        logger.warning("message for an unknown batch", job_id=job_id, number=number)
        return
    if batch.state is BatchState.SUBMITTING and now >= batch.fence:
        batch = _Submit(invocation, job, batch).recover()
    if batch is None or batch.state is not BatchState.READY or batch.ending or batch.isolating:
        return
    if batch.due_at is None or batch.due_at > now + MAX_AHEAD_SECONDS:
        return
    if (ending := _reason_to_end(job, batch, now)) is not None:
        end(services, batch, ending)
    elif job.is_held:
        hold(services, job, batch, now)
    elif not is_of_account(services, job):
        wait(services, batch, wait_for_account(job, now))
    elif not cost.allows_batch(job, batch):
        wait(services, batch, Wait(cost.look_at(batch, now), cost.CODE))
    elif invocation.seconds_left > POST_SECONDS + SETTLE_SECONDS:
        _submit_if_permitted(invocation, job, batch)


def _reason_to_end(job: Job, batch: Batch, now: float) -> ErrorDetail | None:
    """Why a batch is not submitted, and how its records end; None if it is submitted."""
    if (ending := job.ending(now)) is not None:
        return ending
    if batch.claims > MAX_CLAIMS:
        return SUBMIT_FAILED
    if not job.is_held and now - batch.waiting_since > MAX_SECONDS_TO_ACCEPTANCE:
        return ErrorDetail("expired", "Workers AI did not accept this request within 7 days.")
    return None


def _submit_if_permitted(invocation: Invocation, job: Job, batch: Batch) -> None:
    """Submit a batch if the budget permits it now."""
    services, first = invocation.services, batch.work is DueKind.FIRST
    subscribe(services, job.plan.model)  # Before the permit: this may take seconds.
    now = services.now()
    permit = services.budget.permit_submit(job.plan.model, now, first=first)
    if isinstance(permit, Wait):
        wait(services, batch, permit)
        return
    pause = permit.pause
    if pause and pause.reason is PauseReason.OUTAGE and token_state(services) is TokenState.UNKNOWN:
        # An API that does not answer the free call would not answer a submit either: one more
        # unknown outcome. If the budget has no call left for it (None), the submit is the probe;
        # one call a minute would never suffice.
        longer = services.budget.pause(PauseReason.OUTAGE, now, "no answer", permit)
        wait(services, batch, longer.as_wait(longer.next_probe))
        return
    # Read before the claim, so that nothing comes between the claim and the POST, or the request_id
    # and the table.
    first_poll = services.times.first_poll(job.plan.model, batch.number, now)
    if job.deadline_at is not None:
        # Its last poll is not later than it has to be.
        first_poll = min(first_poll, max(job.deadline_at - now, 0.0))
    body = services.store.get(keys.staged(job.job_id, batch.number), 0, batch.body_size)
    if not invocation.allows(POST_SECONDS + SETTLE_SECONDS):
        return  # It stays due.
    _Submit(invocation, job, batch, permit, first_poll=first_poll, body=body).send()


@dataclass(slots=True)
class _Submit(UnprovenSubmit):
    """One submit of a batch. This is what costs money: each POST of a body may be billed.

    Attributes:
        first_poll: seconds from the acceptance to the first poll.
        body: what is sent.
    """

    first_poll: float = 0.0
    body: bytes = b""

    # ── one POST ──────────────────────────────────────────────────────────────────────────────────

    def send(self) -> None:
        """Claim the batch, post its body, and settle the outcome."""
        #  claim                        POST                  outcome                invocation's        fence
        #    │                            │                      │                      end                │
        #    ├── ready → submitting ──────┼── up to 60 s ────────┼── 45 s to record ────┼── 30 s margin ───┤
        #    │   if no attempt came       │   no HTTP retry      │   queued, ready, or  │   for clocks     │
        #    │   between (one write)      │                      │   a receipt in S3    │   that differ    │
        #    └─────────────── nobody else tries this batch; whoever comes later recovers it ───────────────┘
        ledger = self.services.ledger
        own = random.uniform(-0.5, 0.5)  # noqa: S311 - of two with one deadline, none must undo the other's claim
        fence = self.invocation.deadline + SUBMIT_LEASE_MARGIN_SECONDS + own
        try:
            claimed = ledger.begin_submit(self.batch, fence)
        except StorageError:
            # It may be written all the same. Nothing was sent, so nobody has to wait for the fence,
            # or call it unknown.
            ledger.undo_submit(self.batch, fence, self.services.now())
            raise
        if claimed is None:
            return
        self.batch = claimed
        seconds = min(POST_SECONDS, self.invocation.seconds_left - SETTLE_SECONDS)
        api = self.services.api
        with api.submit(self.job.plan.model, self.body, seconds, claimed.sendable) as reply:
            self.settle(reply)

    def settle(self, reply: Reply) -> None:
        """Record the outcome of the POST, and what it says about later calls."""
        retry, batch, permit, model = (
            self.invocation.retry,
            self.batch,
            self.permit,
            self.job.plan.model,
        )
        count("SubmitCalls")
        match reply:
            case Accepted(request_id):
                self.record(request_id)
            case Answer(answer):
                key = keys.raw(batch.job_id, batch.number, batch.attempt, 0)
                retry(lambda: self.services.store.put_if_absent(key, answer))
                self.first_poll = 0.0
                self.record("")
            case Failed(code, message):
                retry(lambda: self._isolate_or_end(code, message))
            case Rejected(code=code):
                verdict = retry(
                    lambda: classify_rejection(self.services, batch, reply, polling=False)
                )
                logger.info(
                    "submit refused",
                    **batch_log_fields(batch),
                    code=code,
                    status=reply.status,
                    verdict=verdict,
                )
                count(METRIC_OF_CLASS[verdict])
                retry(lambda: self._reject(reply, verdict))
                if permit.pause and closes_pause(permit.pause, verdict, reply):
                    self.services.lift(Permit(pause=permit.pause), model)
                return
            # `OutcomeUnknown`, `Unreadable`, or `Pending`, which is not an answer to a submit
            case _:
                if isinstance(reply, OutcomeUnknown | Unreadable):
                    logger.warning(
                        "submit outcome unknown", **batch_log_fields(batch), reason=reply.reason
                    )
                retry(lambda: self.end_ambiguous(self.services.now()))
                return
        self.services.lift(permit, model)
        clear_failing(self.services, self.job, batch)

    def record(self, request_id: str) -> None:
        """Record the request_id.

        At the table's first failure, write a receipt to S3 before trying the table again.
        """
        now, batch = self.services.now(), self.batch
        submission = Submission(request_id, batch.attempt, now)
        prompt = int(batch.number[:8]) < FAST_START_BATCHES
        due_at = now + self.first_poll + (POLL_GRACE_SECONDS if prompt and request_id else 0.0)
        is_safe = False

        def accept() -> Batch | None:
            nonlocal is_safe
            try:
                return self.services.ledger.accept(batch, submission, due_at)
            except StorageError:
                is_safe = is_safe or self._leave_receipt(submission)
                raise

        try:
            taken = self.invocation.retry(accept)
        except StorageError:
            return  # the recovery after the lease finds the receipt
        if taken is None:
            self._leave_receipt(submission)
            return
        count("BatchesAccepted")
        logger.info(
            "batch accepted",
            **batch_log_fields(taken),
            attempt=taken.attempt,
            requests=taken.requests,
        )
        self._schedule_first_poll(submission)

    def recover(self) -> Batch | None:
        """Settle a submit whose function died, from what it left behind.

        Return the batch as it is afterwards.
        """
        services, batch = self.services, self.batch
        try:
            receipt = services.store.get(keys.receipt(batch.job_id, batch.number, batch.attempt))
        except ObjectNotFoundError:
            if services.store.head(keys.raw(batch.job_id, batch.number, batch.attempt, 0)) is None:
                logger.warning(
                    "submit outcome unknown", **batch_log_fields(batch), reason="its function died"
                )
                # It died some time ago, so the pause starts then, and this batch may probe it now.
                died_at = batch.fence - SUBMIT_LEASE_MARGIN_SECONDS
                return self.end_ambiguous(died_at)
            submission = Submission("", batch.attempt, services.now())
        else:
            submission = msgspec.json.decode(receipt, type=Submission)
        accepted = services.ledger.accept(batch, submission, services.now())
        if accepted:
            self._schedule_first_poll(submission)
        return accepted

    def _leave_receipt(self, submission: Submission) -> bool:
        """Record in the log and in S3 an acceptance that the table did not store.

        Return whether S3 has it.
        """
        batch = self.batch
        named = batch_log_fields(batch) | {"request_id": submission.request_id}
        logger.error("request_id not recorded", **named, attempt=batch.attempt)
        key = keys.receipt(batch.job_id, batch.number, batch.attempt)
        try:
            self.services.store.put_if_absent(key, msgspec.json.encode(submission))
        except StorageError as error:
            logger.error("receipt not written", **named, reason=str(error))
            return False
        return True

    def _schedule_first_poll(self, submission: Submission) -> None:
        """Note an acceptance, for events too, and have the batch polled."""
        services, batch = self.services, self.batch
        expect_events(services, self.job, batch.number, submission)
        if not self.job.seen_accepted:
            services.ledger.record_acceptance(batch.job_id)
        if int(batch.number[:8]) < FAST_START_BATCHES:
            delay = self.first_poll
            if delay < PRECISE_SECONDS:  # SQS delays by whole seconds.
                services.sleep(delay % 1)
                delay = int(delay)
            services.queues.send(PollMessage(((batch.job_id, batch.number),)), delay=delay)

    # ── no acceptance ─────────────────────────────────────────────────────────────────────────────

    def _reject(self, reply: Rejected, verdict: ErrorClass) -> None:
        """Process a rejection: what happens to the batch, and to later calls."""
        services, job, batch, permit = self.services, self.job, self.batch, self.permit
        now, ledger, budget = services.now(), services.ledger, services.budget
        code = reply.code or reply.status
        if is_like_lost(reply) and permit.pause and permit.pause.reason is PauseReason.OUTAGE:
            budget.pause(PauseReason.OUTAGE, now, str(code), permit)  # Whatever the code blames.
        match verdict:
            case ErrorClass.MODEL_WAITS:
                reason, model = PauseReason.MODEL_WAITS, job.plan.model
                paused = budget.pause(reason, now, str(code), permit, model)
                ledger.refuse(batch, soon_after(paused.next_probe, 15))
            case ErrorClass.RATE_LIMIT:
                until = soon_after(budget.limit_rate(now, reply.retry_after), 10)
                ledger.refuse(batch, until, paused=batch.paused + until - now)
            case ErrorClass.QUOTA | ErrorClass.CREDITS | ErrorClass.SPEND_LIMIT:
                budget.pause(UNPAID_REASONS[verdict], now, str(code), permit)
                self._wait_for_end_of_pause()
            case ErrorClass.ACCOUNT:
                budget.pause(PauseReason.TOKEN_REFUSED, now, cause_of_pause(reply), permit)
                self._wait_for_end_of_pause()
            case ErrorClass.MODEL:
                self._end_job(code)
            case ErrorClass.REQUEST | ErrorClass.BATCH_FAILED | ErrorClass.UNKNOWN_ID:
                is_firewall = not reply.enveloped and reply.status == HTTPStatus.FORBIDDEN
                doubtful = batch.doubtful + is_like_lost(reply)
                self._isolate_or_end(
                    code, FIREWALL if is_firewall else reply.message, doubtful=doubtful
                )
            case _:
                self.try_later(reply)

    def _end_job(self, code: int) -> None:
        """End a batch and its job, because the account may not use the model."""
        services, job = self.services, self.job
        words = model_error_message(job.plan.model, code)
        end(services, self.batch, ErrorDetail("rejected", words))
        if services.ledger.fail_job(job, ErrorDetail("unknown_model", words), services.now()):
            services.queues.send(VisitMessage(job.job_id))

    def _wait_for_end_of_pause(self) -> None:
        """Put the batch off; one that still has ids is polled meanwhile, not at once."""
        batch = self.batch
        seconds = LIFT_LOOK_SECONDS
        self.services.ledger.refuse(
            batch, self.services.now() + seconds, paused=batch.paused + seconds
        )
        # Whoever lifts the pause has it looked at.
        self.services.left.cover(batch.job_id, batch.number)

    def _isolate_or_end(self, code: int | None, message: str, **counted: object) -> None:
        """The API refused the batch's content.

        The poll function isolates the bad record, so that only it fails.
        """
        services, batch = self.services, self.batch
        words = "Workers AI refused this request"
        plain = ErrorDetail("rejected", words if code is None else f"{words} ({code})")
        reason = attach_api_message(services.store, batch, plain, message)
        if batch.sendable == 1:
            end(services, batch, reason, **counted, cause=cause_of(code))
        else:
            services.ledger.begin_isolation(
                batch, reason, cause_of(code), services.now(), **counted
            )
