"""What follows from a poll that got no results: another poll, another submit, isolation, or the batch's end.

A reply that may be wrong is believed only when several in a row are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from functions.poll.batch.lost_ids import DOUBTED_SECONDS, is_lost_for_long, next_look
from functions.poll.batch.unanswered import (
    LATE,
    is_overdue,
    isolate_or_end,
    next_poll,
    overdue_at,
    submit_again,
)
from shared.aws.queues import FAST_START_BATCHES, FOLLOWED_POLLS, FOLLOWED_SECONDS, POLL_GRACE_SECONDS, PollMessage
from shared.claims import claim_seconds
from shared.models import Batch, ErrorDetail, Job, Submission
from shared.observability import batch_log_fields, count, logger
from shared.pacing.controls import PauseReason, Permit
from shared.retry import poll_back_off, soon_after
from shared.workers_ai.error_codes import METRIC_OF_CLASS, ErrorClass
from shared.workers_ai.lasting_errors import clear_lasting_error, is_lasting, note_lasting_error
from shared.workers_ai.replies import Accepted, Failed, NoAnswers, OutcomeUnknown, Pending, Rejected, Reply, Unreadable

if TYPE_CHECKING:
    from shared.bootstrap import Services

FAILURES, FAILURES_OVER = 5, 60.0
"""Polls in a row that must be answered with the same code that blames the request, over at least that many seconds."""
TOLD_WAITS = (2.0, 5.0, 15.0)
"""Seconds after an event that says that a batch is over at which it is polled again while it is still pending."""
LOST = ErrorDetail("expired", "Workers AI no longer knew the batch.")
NO_ANSWERS = ErrorDetail("missing_response", "Workers AI reported the batch as completed and sent no answers.")


@dataclass(frozen=True, slots=True)
class UnfinishedPoll:
    """A poll that got no results. A method that returns a bool returns whether it made the batch `done`.

    Attributes:
        services: the process's services.
        job: the batch's job.
        batch: as claimed.
        submission: the one whose id was polled.
        permit: the poll's.
        other_known: whether the API has known another id of the model since this one failed; read before the poll.
    """

    services: Services
    job: Job
    batch: Batch
    submission: Submission
    permit: Permit
    other_known: bool

    def process(self, reply: Reply, verdict: ErrorClass | None) -> bool:
        """Process the reply.

        Args:
            reply: no `Answer`.
            verdict: what it means, if it is an error.

        Raises:
            StorageError: an AWS service failed; the batch is due again at its `due_at`.
        """
        match reply:
            case Pending(status):
                return self._still_pending(status)
            case Accepted():
                return self._still_pending("queued")
            case NoAnswers():
                return self._no_answers()
            case Failed(code, message, enveloped):
                if enveloped or self._is_believed(code or 0):
                    self._failed(code, message)
            case Unreadable(reason):
                logger.info("answer cannot be read", **batch_log_fields(self.batch))
                count("ApiErrors")
                return self._failed_for_long(None, reason, HTTPStatus.OK)
            case OutcomeUnknown(reason):
                logger.info("no answer to a poll", **batch_log_fields(self.batch), reason=reason)
                count("ApiErrors")
                return self._unanswered(reply)
            case Rejected() if verdict is not None:
                return self._rejected(reply, verdict)
        return False

    def _rejected(self, reply: Rejected, verdict: ErrorClass) -> bool:
        services, batch, now = self.services, self.batch, self.services.now()
        code = reply.code or reply.status
        logger.info("poll refused", **batch_log_fields(batch), code=code, verdict=verdict)
        count(METRIC_OF_CLASS[verdict])
        is_servers = reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        if is_servers and verdict in {ErrorClass.REQUEST, ErrorClass.BATCH_FAILED}:
            return self._failed_for_long(reply.code, reply.message, -code, or_for_others=True)
        if verdict is ErrorClass.REQUEST and not self._is_believed(code):
            return False
        match verdict:
            case ErrorClass.ACCOUNT:
                services.budget.pause(PauseReason.TOKEN_REFUSED, now, str(code), self.permit)
                return self._all_refused(now + 60, self.permit.pause.since if self.permit.pause else now)
            case ErrorClass.RATE_LIMIT:
                until = soon_after(services.budget.limit_rate(now, reply.retry_after, self.permit.sender), 10)
                return self._all_refused(until, services.budget.controls(sender=self.permit.sender).rate.held_since)
            case ErrorClass.UNKNOWN_ID:
                return self._not_known(reply)
            case ErrorClass.REQUEST | ErrorClass.BATCH_FAILED:
                self._failed(reply.code, reply.message)
            case _:
                return self._unanswered(reply)
        return False

    def _still_pending(self, status: str) -> bool:
        """Process a pending reply, perhaps of an overdue batch."""
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        count("OldestPendingAge", now - batch.submissions[-1].at)
        clear_lasting_error(services, job, batch)
        updates: dict[str, object] = {"pending_at": now, "api_status": status}
        if self._is_latest:
            updates |= {"misses": 0, "failures": 0}
        elif self.submission.misses:
            updates |= {"submissions": self._with(replace(self.submission, misses=0))}
        if is_overdue(services, batch, now) or job.is_past_deadline(now):
            return submit_again(services, job, batch, LATE, updates)
        due_at = min(now + self._next_poll(), overdue_at(services, batch) + 1)
        due_at = min(due_at, job.deadline_at or due_at)
        followed = (
            int(batch.number[:8]) < FAST_START_BATCHES
            and due_at - batch.submissions[-1].at <= FOLLOWED_SECONDS
            and batch.polls <= FOLLOWED_POLLS
        )
        grace = POLL_GRACE_SECONDS if followed else 0.0
        scheduled = services.ledger.schedule_poll(batch, due_at + grace, **updates)
        if scheduled and scheduled.told_at and not batch.told_at:
            services.ledger.postpone(scheduled, now)  # An event came during this poll.
        elif scheduled and followed:
            services.queues.send(PollMessage(((job.job_id, batch.number),)), delay=due_at - now)
        return False

    def _next_poll(self) -> float:
        """Seconds until the next poll; soon after an event that says that the batch is over."""
        batch, now = self.batch, self.services.now()
        soon = [at for wait in TOLD_WAITS if (at := batch.told_at + wait) > now]
        if soon:  # Without an event `told_at` is 0, and its waits are long over.
            return min(soon) - now
        return next_poll(self.services, self.job, batch)

    def _unanswered(self, reply: Rejected | OutcomeUnknown) -> bool:
        """Process a poll without an answer. One that the API itself refuses may be refused until the deadline.

        Where not even the API answers, a job's own deadline counts once polls have failed for a quarter of an hour.
        """
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        since = note_lasting_error(services, job, batch, reply, polling=True)
        is_awaited = self._is_latest or batch.submissions[-1].given_up
        wait = poll_back_off(now - self.submission.at) if is_awaited else DOUBTED_SECONDS
        if not isinstance(reply, Rejected) or not reply.enveloped:
            if job.is_past_deadline(now) and is_lasting(since, now):
                return submit_again(services, job, batch, LATE, {"calls_fail_since": since})
            self._poll_again(wait, calls_fail_since=since)
        elif is_overdue(services, batch, now) or job.is_past_deadline(now):
            return submit_again(services, job, batch, LATE, {"calls_fail_since": since})
        else:
            services.ledger.schedule_poll(batch, now + wait, calls_fail_since=since)
        return False

    def _all_refused(self, until: float, since: float) -> bool:
        """Process a poll that was refused as every call is: the batch's clock stands still, its job's deadline comes.

        Args:
            until: when it is polled again, Unix seconds.
            since: since when every call has been refused.
        """
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        if job.is_past_deadline(now) and is_lasting(max(since, batch.pending_at), now):
            return submit_again(services, job, batch, LATE, {})
        services.ledger.schedule_poll(batch, until, paused=batch.paused + until - now)
        return False

    def _is_believed(self, code: int) -> bool:
        """Whether a reply is believed: only if several in a row are the same, over a minute. If not, count it."""
        if not self._is_latest:
            self._give_up_earlier()
            return False
        times, since = self._in_a_row(self.batch.failures, self.batch.failing_at, code)
        if _is_repeated(times, since, self.services.now()):
            return True
        self._poll_again(DOUBTED_SECONDS, failures=times, failing_code=code, failing_at=since, misses=0)
        return False

    def _failed_for_long(self, code: int | None, message: str, counted_as: int, *, or_for_others: bool = False) -> bool:
        """Process a failure that may not be the batch's own: it is believed after a quarter of an hour.

        Args:
            code: what the reply says.
            message: likewise.
            counted_as: the code that polls in a row must have (`_in_a_row`).
            or_for_others: whether it is believed after a minute if another id was answered normally meanwhile; that a
                batch of the job failed alike proves nothing.
        """
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        if not self._is_latest:
            self._give_up_earlier()
            return False
        times, since = self._in_a_row(batch.failures, batch.failing_at, counted_as)
        if is_lost_for_long(times, since, now) or (
            or_for_others and _is_repeated(times, since, now) and self.other_known
        ):
            self._failed(code, message)
            return False
        counted: dict[str, object] = {"failures": times, "failing_code": counted_as, "failing_at": since, "misses": 0}
        if is_overdue(services, batch, now) or job.is_past_deadline(now):
            return submit_again(services, job, batch, LATE, counted)
        wait = next_look(times, since, now - self.submission.at, now)
        services.ledger.schedule_poll(batch, now + wait, **counted)
        return False

    def _in_a_row(self, times: int, since: float, code: int) -> tuple[int, float]:
        """How many polls in a row got this code, with this one, and since when, Unix seconds.

        What differs in kind differs in code, since neither proves the other: a server's status makes a code negative;
        an unknown id is 404, and 200 one that is known, but completed without answers that can be read.

        Args:
            times: as many polls before, of this code or another.
            since: time of the first of them.
            code: of this poll.
        """
        same = times > 0 and self.batch.failing_code == code
        return (times + 1, since) if same else (1, self.services.now())

    def _no_answers(self) -> bool:
        """Process a batch that is completed without answers: they are paid for, so they may come for a while."""
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        if not self._is_latest:
            self._give_up_earlier()
            return False
        times, since = self._in_a_row(batch.misses, batch.missed_at, HTTPStatus.OK)
        counted = _missed(times, since, HTTPStatus.OK)
        if is_lost_for_long(times, since, now):
            return submit_again(services, job, batch, NO_ANSWERS, counted)
        if is_overdue(services, batch, now) or job.is_past_deadline(now):
            return submit_again(services, job, batch, LATE, counted)
        self._look_again(times, since, counted)
        return False

    def _not_known(self, reply: Rejected) -> bool:
        """Process a reply that the id is not known, which is believed only if other ids are, or of one batch."""
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        seen = self.submission
        failing = {"calls_fail_since": note_lasting_error(services, job, batch, reply, polling=True)}
        if not self._is_latest:
            since = seen.missed_at if seen.misses else now
            shown = batch.pending_at > since or batch.submissions[-1].given_up
            given_up = is_lost_for_long(seen.misses + 1, since, now) and shown
            changed = replace(seen, misses=seen.misses + 1, missed_at=since, given_up=given_up)
            self._poll_again(self._wait_for_earlier(changed), submissions=self._with(changed), **failing)
            return False
        times, since = self._in_a_row(batch.misses, batch.missed_at, HTTPStatus.NOT_FOUND)
        counted = _missed(times, since, HTTPStatus.NOT_FOUND) | failing
        if is_overdue(services, batch, now) or job.is_past_deadline(now):
            return submit_again(services, job, batch, LATE, counted)
        if is_lost_for_long(times, since, now) and self.other_known:
            return submit_again(services, job, batch, LOST, counted)
        self._look_again(times, since, counted)
        return False

    def _look_again(self, times: int, since: float, counted: dict[str, object]) -> None:
        """Poll an id again for which nothing was found since then."""
        now = self.services.now()
        wait = next_look(times, since, now - self.submission.at, now)
        self.services.ledger.schedule_poll(self.batch, now + wait, **counted)

    def _failed(self, code: int | None, message: str) -> None:
        """Process a failure after acceptance; while another id that was paid for is polled, only this is given up."""
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        if not self._is_latest:
            self._give_up_earlier(has_failed=True)
        elif len(batch.pollable) == 1 or is_overdue(services, batch, now) or job.is_past_deadline(now):
            isolate_or_end(services, job, batch, code, message)
        else:
            failed = self._with(replace(self.submission, given_up=True))
            services.ledger.schedule_poll(batch, now + DOUBTED_SECONDS, submissions=failed, failing_code=code or 0)

    def _give_up_earlier(self, *, has_failed: bool = False) -> None:
        """Count a poll against an earlier id of a batch that was submitted again; only that id is given up.

        The counts of the latest id stay: it alone decides what happens to the batch. The codes of an earlier one are
        not kept, so that all errors count alike, for as long as those of a server.
        """
        seen, now = self.submission, self.services.now()
        misses, since = seen.misses + 1, seen.missed_at if seen.misses else now
        given_up = has_failed or is_lost_for_long(misses, since, now)
        counted = replace(seen, misses=misses, missed_at=since, given_up=given_up)
        self._poll_again(self._wait_for_earlier(counted), submissions=self._with(counted))

    def _wait_for_earlier(self, seen: Submission) -> float:
        """Seconds until the next poll after one that counts against an earlier id; longer if no latest id is polled.

        Otherwise the claims of a few minutes would be taken for a batch that keeps failing.
        """
        if not self.batch.submissions[-1].given_up:
            return DOUBTED_SECONDS
        now = self.services.now()
        return next_look(seen.misses, seen.missed_at, now - seen.at, now)

    def _poll_again(self, wait: float, **updates: object) -> None:
        """Poll again later. The claim counts, so that a batch whose replies are never readable, or keep changing, ends.

        Args:
            wait: seconds after the first claims; after many it is longer.
            updates: the batch's further changes.
        """
        claims, now = self.batch.claims, self.services.now()
        self.services.ledger.schedule_poll(self.batch, now + claim_seconds(claims, wait), claims=claims, **updates)

    @property
    def _is_latest(self) -> bool:
        return self.submission is self.batch.submissions[-1]

    def _with(self, changed: Submission) -> tuple[Submission, ...]:
        """The batch's submissions, the polled one changed."""
        return tuple(changed if one is self.submission else one for one in self.batch.submissions)


def _missed(times: int, since: float, status: int) -> dict[str, object]:
    """A batch's changes by polls that found nothing."""
    return {"misses": times, "missed_at": since, "failing_code": int(status), "failures": 0}


def _is_repeated(times: int, since: float, now: float) -> bool:
    """Whether a reply that blames the request has come often and long enough."""
    return times >= FAILURES and now - since >= FAILURES_OVER
