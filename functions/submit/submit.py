"""Submit: one message, one batch, one POST. Each POST of a body may be billed.

Keeps the promise of one bill a batch, but for what the manifest counts. `submitting` is written
before the POST, with the attempt and the end of its submit lease (`fence`), before which no other
function may try. A function that survives its POST records the outcome immediately. If it dies, the
recovery after the lease looks for a receipt or a reply of that attempt.

A batch that is accepted is polled; one whose answer came with it is joined.
A refused one costs nothing: no connection; a 4xx but 408, a proxy's page too; a code that says that
nothing was taken. By its class (`shared.workers_ai.error_codes`) the model, all submits or all
calls wait; the job or the batch ends; the batch is divided; or it is tried for 7 days, counted in
`refusals`. Of a withdrawn model (5028) the job ends at the second such reply (`doubt`).
After any other reply, or none, the submit is ambiguous, counted in `unknowable`: with `fail` the
batch ends; with `resubmit` three more submits follow, 1, 5 and 15 minutes apart, and while the
outage pause lasts, one batch of all at a time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec

from shared import keys
from shared.aws.queues import VisitMessage
from shared.errors import ObjectNotFoundError, StorageError
from shared.events.subscribe import expect_events, subscribe
from shared.keys import attach_api_message
from shared.models import (
    Batch,
    BatchState,
    Doubt,
    DueKind,
    ErrorDetail,
    Job,
    Submission,
    Wait,
    cause_of,
)
from shared.observability import batch_log_fields, count, logger
from shared.pacing import cost
from shared.pacing.breaker import LIFT_LOOK_SECONDS, LIFTED, Pause, PauseReason, Permit
from shared.pacing.waits import (
    clear_failing,
    is_of_account,
    note_failing,
    wait_for_account,
)
from shared.retry import (
    MAX_CLAIMS,
    MAX_SECONDS_TO_ACCEPTANCE,
    soon_after,
    submit_back_off,
)
from shared.services import Invocation, Services
from shared.staged_batch import without_references
from shared.workers_ai.client import TokenState, classify_rejection, token_state
from shared.workers_ai.error_codes import (
    FIREWALL,
    KEEPS_PAUSE,
    METRIC_OF_CLASS,
    ErrorClass,
    cause_of_pause,
    is_ambiguous,
    is_refused_for_references,
    model_error_message,
)
from shared.workers_ai.replies import Accepted, Failed, OutcomeUnknown, Rejected, Reply, Unreadable
from shared.workers_ai.results import Answer

POST_SECONDS = 60.0  # The longest a POST may take, its reply included
SETTLE_SECONDS = 45.0  # Kept after it to record its outcome, in the table or else in S3
SUBMIT_LEASE_MARGIN_SECONDS = 30.0  # By how much clocks of two functions may differ
AGAIN_SECONDS = (60.0, 300.0, 900.0)  # From each ambiguous submit to the next; then it ends
WITHDRAWN_SECONDS = 5.0  # Until a batch is submitted again whose model is said to be withdrawn
WITHDRAWN = "withdrawn"  # What a batch doubts whose model one reply said to be withdrawn
SUBMIT_FAILED = ErrorDetail(
    "internal", "Dropbatch could not submit this batch; see the submit function's log."
)
NOT_ACCEPTED = ErrorDetail("expired", "Workers AI did not accept this request within 7 days.")
UNKNOWN = ErrorDetail(
    "submit_unknown",
    "It is unknown whether Workers AI accepted this request, so it was not sent again.",
)
UNPAID_REASONS = {
    ErrorClass.QUOTA: PauseReason.QUOTA_SPENT,
    ErrorClass.CREDITS: PauseReason.CREDITS_SPENT,
    ErrorClass.SPEND_LIMIT: PauseReason.SPEND_LIMIT,
}


def submit_batch(
    invocation: Invocation, job_id: str, number: str, due_at: float | None = None
) -> None:
    """Advance one batch that was due then: submit it, or settle what an earlier run left."""
    ledger = invocation.services.ledger
    batch, job = ledger.batch(job_id, number), ledger.job(job_id)
    if batch is None or job is None:
        logger.warning("message for an unknown batch", job_id=job_id, number=number)
        return
    submit_known(invocation, job, batch, due_at)


def submit_known(
    invocation: Invocation, job: Job, known: Batch, due_at: float | None, body: bytes = b""
) -> None:
    """The same for a batch as it was just read or written, with its body if that is at hand."""
    services, now = invocation.services, invocation.services.now()
    batch: Batch | None = known
    if known.state is BatchState.SUBMITTING and now >= known.fence:
        batch = _Submit(invocation, job, known).recover()
    if batch is None or batch.state is not BatchState.READY or batch.ending or batch.isolating:
        return
    if due_at is not None and batch.due_at not in {None, due_at} and batch.due_at > now:
        return  # Somebody has worked on it since.
    if (ending := _reason_to_end(job, batch, now)) is not None:
        end(services, batch, ending)
    elif job.is_held:
        services.ledger.hold(batch, now, job.deadline_at)
    elif not is_of_account(services, job):
        _wait(services, batch, wait_for_account(job, now))
    elif not cost.allows_batch(job, batch):
        _wait(services, batch, Wait(cost.look_at(batch, now), cost.CODE))
    elif invocation.seconds_left > POST_SECONDS + SETTLE_SECONDS:
        _submit_if_permitted(invocation, job, batch, body)


def _reason_to_end(job: Job, batch: Batch, now: float) -> ErrorDetail | None:
    """Why a batch is not submitted, and how its records end; None if it is submitted."""
    if (ending := job.ending(now)) is not None:
        return ending
    if batch.claims > MAX_CLAIMS:
        return SUBMIT_FAILED
    is_late = now - batch.waiting_since > MAX_SECONDS_TO_ACCEPTANCE
    return NOT_ACCEPTED if is_late and not job.is_held else None


def _submit_if_permitted(invocation: Invocation, job: Job, batch: Batch, body: bytes) -> None:
    services, first = invocation.services, batch.work is DueKind.FIRST
    subscribe(services, job.plan.model)  # Before the permit: this may take seconds.
    now = services.now()
    permit = services.budget.permit_submit(job.plan.model, now, first=first)
    if isinstance(permit, Wait):
        _wait(services, batch, permit)
        return
    if permit.pause and _is_unreachable(services, permit.pause):
        longer = services.budget.pause(PauseReason.OUTAGE, now, "no answer", permit)
        _wait(services, batch, longer.as_wait(longer.next_probe))
        return
    # Read before the claim: nothing comes between claim and POST, or request_id and table.
    first_poll = services.times.first_poll(job.plan.model, batch.number, now)
    if job.deadline_at is not None:  # Its last poll is not later than it has to be.
        first_poll = min(first_poll, max(job.deadline_at - now, 0.0))
    key = keys.staged(job.job_id, batch.number)
    body = body or services.store.get(key, 0, batch.records.body_size)
    if job.without_references:
        body = without_references(body)
    if not invocation.allows(POST_SECONDS + SETTLE_SECONDS):
        return  # It stays due.
    _Submit(invocation, job, batch, permit, first_poll=first_poll, body=body).send()


def _is_unreachable(services: Services, pause: Pause) -> bool:
    """Whether a probe would be one more ambiguous submit: even the free call gets no answer."""
    is_outage = pause.reason is PauseReason.OUTAGE
    return is_outage and token_state(services) is TokenState.UNKNOWN


def _wait(services: Services, batch: Batch, why: Wait) -> None:
    """Postpone a submit; its 7 days stand still, unless its model lacks capacity."""
    now, ledger = services.now(), services.ledger
    if why.code in LIFTED:  # Somebody may end it at any time: it is looked at often.
        until = soon_after(now + LIFT_LOOK_SECONDS, 1)
        ledger.wait(batch, until, until - now)
        services.left.look(why.until, batch.job_id, batch.number)
    elif why.code == PauseReason.MODEL_WAITS:  # It may last: its batches end.
        ledger.postpone(batch, soon_after(max(why.until, now) + 1, 12))
    elif why.code:
        ledger.wait(batch, why.until, why.until - now)
    else:  # For a token, a moment.
        ledger.postpone(batch, why.until)


def end(services: Services, batch: Batch, ending: ErrorDetail, **updates: object) -> Batch | None:
    """End the batch's records without another submit."""
    return services.ledger.end_without_answer(batch, ending, services.now(), **updates)


@dataclass(slots=True)
class _Submit:
    """One submit of a batch."""

    invocation: Invocation
    job: Job
    batch: Batch
    permit: Permit = field(default_factory=Permit)
    first_poll: float = 0.0  # seconds from the acceptance
    body: bytes = b""

    @property
    def services(self) -> Services:
        """The process's clients and settings."""
        return self.invocation.services

    # ── one POST ────────────────────────────────────────────────────────────────────────────────

    def send(self) -> None:
        """Claim the batch, post its body, and settle the outcome."""
        # claim                      POST                 outcome              invocation's    fence
        #   │                          │                     │                     end           │
        #   ├─ ready → submitting ─────┼── up to 60 s ───────┼── 45 s to record ───┼─ 30 s margin ─┤
        #   │  if no attempt came      │   no HTTP retry     │   queued, ready, or │  for clocks   │
        #   │  between (one write)     │                     │   a receipt in S3   │  that differ  │
        #   └──────────── nobody else tries this batch; whoever comes later recovers it ───────────┘
        ledger = self.services.ledger
        # Of two with one deadline, none must undo the other's claim.
        own = random.uniform(-0.5, 0.5)  # noqa: S311 - it guards nothing
        fence = self.invocation.deadline + SUBMIT_LEASE_MARGIN_SECONDS + own
        try:
            claimed = ledger.begin_submit(self.batch, fence)
        except StorageError:
            # It may be written all the same. Nothing was sent, so nobody has to wait for the fence.
            ledger.undo_submit(self.batch, fence, self.services.now())
            raise
        if claimed is None:
            return
        self.batch = claimed
        seconds = min(POST_SECONDS, self.invocation.seconds_left - SETTLE_SECONDS)
        model, sent = self.job.plan.model, claimed.records.sendable
        with self.services.api.submit(model, self.body, seconds, sent) as reply:
            self.settle(reply)

    def settle(self, reply: Reply) -> None:
        """Record the outcome of the POST, and what it says about later calls."""
        retry, batch = self.invocation.retry, self.batch
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
            case Rejected():
                self._settle_rejection(reply)
                return
            # `OutcomeUnknown`, `Unreadable`, or `Pending`, which is not an answer to a submit
            case _:
                why = reply.reason if isinstance(reply, OutcomeUnknown | Unreadable) else "pending"
                logger.warning("submit outcome unknown", **batch_log_fields(batch), reason=why)
                retry(lambda: self.settle_ambiguous(self.services.now()))
                return
        self.services.lift(self.permit, self.job.plan.model)
        clear_failing(self.services, self.job, batch)

    def record(self, request_id: str) -> None:
        """Record the request_id; if the table fails, in a receipt in S3 before the next try."""
        now, batch = self.services.now(), self.batch
        submission = Submission(request_id, batch.attempt, now)
        due_at = now + self.first_poll
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
        named, requests = batch_log_fields(taken), taken.records.requests
        logger.info("batch accepted", **named, attempt=taken.attempt, requests=requests)
        expect_events(self.services, self.job, self.batch.number, submission)

    def recover(self) -> Batch | None:
        """Settle a submit whose function died, from what it left behind; return the batch then."""
        services, batch = self.services, self.batch
        try:
            receipt = services.store.get(keys.receipt(batch.job_id, batch.number, batch.attempt))
            submission = msgspec.json.decode(receipt, type=Submission)
        except ObjectNotFoundError:
            if services.store.head(keys.raw(batch.job_id, batch.number, batch.attempt, 0)) is None:
                named = batch_log_fields(batch)
                logger.warning("submit outcome unknown", **named, reason="its function died")
                # It died some time ago, so the pause starts then, and so does this batch's wait.
                return self.settle_ambiguous(batch.fence - SUBMIT_LEASE_MARGIN_SECONDS)
            submission = Submission("", batch.attempt, services.now())
        accepted = services.ledger.accept(batch, submission, services.now())
        if accepted:
            expect_events(self.services, self.job, self.batch.number, submission)
        return accepted

    def _leave_receipt(self, submission: Submission) -> bool:
        """Record in the log and in S3 an acceptance that the table did not store; did S3?"""
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

    # ── ambiguous ───────────────────────────────────────────────────────────────────────────────

    def settle_ambiguous(self, since: float, code: str = "no answer") -> Batch | None:
        """It is unknown whether the API accepted the batch: submit it again, or end it.

        `AmbiguousSubmit` says which. The outage pause begins, or goes on: while it lasts, one batch
        at a time is tried, this one after all that are due before it. No answer has come `since`;
        `code` is for the user.
        """
        services, batch, now = self.services, self.batch, self.services.now()
        services.budget.pause(PauseReason.OUTAGE, since, code, self.permit)
        count("AmbiguousSubmits")
        times = batch.unknowable + 1
        if services.settings.ambiguous_submit == "fail" or times > len(AGAIN_SECONDS):
            return end(services, batch, UNKNOWN, unknowable=times)
        least = AGAIN_SECONDS[times - 1]
        again_at = max(soon_after(since + least, least / 10), now)
        return services.ledger.make_ready(batch, again_at, unknowable=times)

    # ── refused ─────────────────────────────────────────────────────────────────────────────────

    def _settle_rejection(self, reply: Rejected) -> None:
        retry, code = self.invocation.retry, reply.code or reply.status
        named = {**batch_log_fields(self.batch), "code": reply.code, "status": reply.status}
        if is_ambiguous(reply):
            logger.warning("submit outcome unknown", **named)
            count(METRIC_OF_CLASS[ErrorClass.TRY_LATER])
            retry(lambda: self.settle_ambiguous(self.services.now(), str(code)))
            return
        verdict = retry(lambda: classify_rejection(self.services, reply, polling=False))
        logger.info("submit refused", **named, verdict=verdict)
        count(METRIC_OF_CLASS[verdict])
        retry(lambda: self._reject(reply, verdict))
        if (pause := self.permit.pause) and _is_over(pause, reply, verdict):
            # Not the model's pause, of which a refusal tells nothing.
            self.services.lift(Permit(pause=pause), self.job.plan.model)

    def _reject(self, reply: Rejected, verdict: ErrorClass) -> None:
        services, job, batch, permit = self.services, self.job, self.batch, self.permit
        now, ledger, budget = services.now(), services.ledger, services.budget
        code = reply.code or reply.status
        match verdict:
            case ErrorClass.MODEL_WAITS:
                reason, model = PauseReason.MODEL_WAITS, job.plan.model
                paused = budget.pause(reason, now, str(code), permit, model)
                ledger.make_ready(batch, soon_after(max(paused.next_probe, services.now()), 15))
            case ErrorClass.RATE_LIMIT:
                until = soon_after(budget.limit_rate(now, reply.retry_after), 10)
                ledger.make_ready(batch, until, paused=batch.paused + until - now)
            case ErrorClass.QUOTA | ErrorClass.CREDITS | ErrorClass.SPEND_LIMIT:
                budget.pause(UNPAID_REASONS[verdict], now, str(code), permit)
                self._wait_for_end_of_pause()
            case ErrorClass.ACCOUNT:
                budget.pause(PauseReason.TOKEN_REFUSED, now, cause_of_pause(reply), permit)
                self._wait_for_end_of_pause()
            case ErrorClass.WITHDRAWN if not self._is_told_before(WITHDRAWN):
                ledger.make_ready(batch, now + WITHDRAWN_SECONDS, doubt=Doubt(WITHDRAWN, now))
            case ErrorClass.MODEL | ErrorClass.WITHDRAWN:
                self._end_job(code)
            case ErrorClass.REQUEST | ErrorClass.BATCH_FAILED | ErrorClass.UNKNOWN_ID:
                if not self._sends_no_references(reply):
                    self._isolate_or_end(code, _words_of(reply))
            case _:
                self._try_later(reply)

    def _try_later(self, reply: Rejected) -> None:
        batch, now = self.batch, self.services.now()
        since = note_failing(self.services, self.job, batch, reply, polling=False)
        told = {"refusals": batch.refusals + 1, "calls_fail_since": since}
        self.services.ledger.make_ready(batch, now + submit_back_off(batch.refusals), **told)

    def _is_told_before(self, kind: str) -> bool:
        doubt, before = self.batch.doubt, self.services.now() - WITHDRAWN_SECONDS / 2
        return doubt is not None and doubt.kind == kind and doubt.since <= before

    def _end_job(self, code: int) -> None:
        services, job = self.services, self.job
        words = model_error_message(job.plan.model, code)
        failed = services.ledger.fail_job(job, ErrorDetail("unknown_model", words), services.now())
        end(services, self.batch, ErrorDetail("rejected", words))
        if failed:
            services.queues.send(VisitMessage(job.job_id))

    def _wait_for_end_of_pause(self) -> None:
        services, batch, seconds = self.services, self.batch, LIFT_LOOK_SECONDS
        services.ledger.make_ready(batch, services.now() + seconds, paused=batch.paused + seconds)
        # Whoever lifts the pause has it looked at.
        services.left.cover(batch.job_id, batch.number)

    def _sends_no_references(self, reply: Rejected) -> bool:
        """Whether bodies lack `external_reference` from now on, which some models refuse."""
        ledger = self.services.ledger
        if self.job.without_references or not is_refused_for_references(reply):
            return False
        ledger.leave_out_references(self.job)
        ledger.make_ready(self.batch, self.services.now())
        return True

    def _isolate_or_end(self, code: int | None, message: str) -> None:
        """The API refused the batch's content: the bad record is found, so that only it fails."""
        services, batch = self.services, self.batch
        words = "Workers AI refused this request"
        plain = ErrorDetail("rejected", words if code is None else f"{words} ({code})")
        reason, cause = attach_api_message(services.store, batch, plain, message), cause_of(code)
        if batch.records.sendable == 1:
            end(services, batch, reason, cause=cause)
        else:
            services.ledger.begin_isolation(batch, reason, cause, services.now())


def _words_of(reply: Rejected) -> str:
    is_firewall = not reply.enveloped and reply.status == HTTPStatus.FORBIDDEN
    return FIREWALL if is_firewall else reply.message


def _is_over(pause: Pause, reply: Rejected, verdict: ErrorClass) -> bool:
    """Whether even a refused probe shows that a pause is over; status 0: no connection."""
    if pause.reason is PauseReason.TOKEN_REFUSED:
        return verdict not in KEEPS_PAUSE
    return pause.reason is PauseReason.OUTAGE and reply.status > 0
