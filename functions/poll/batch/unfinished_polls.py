"""What follows from a poll that got no results.

Another poll, another submit, isolation, or the batch's end.

A reply that may be wrong is believed only when several in a row are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from functions.poll.batch import lost_ids
from functions.poll.batch.lost_ids import DOUBTED_SECONDS, MISSES, is_lost_for_long, next_look
from functions.poll.batch.unanswered import (
    LATE,
    is_overdue,
    isolate_or_end,
    next_poll,
    overdue_at,
    submit_again,
)
from shared.aws.queues import (
    FAST_START_BATCHES,
    FOLLOWED_POLLS,
    FOLLOWED_SECONDS,
    POLL_GRACE_SECONDS,
    PollMessage,
)
from shared.claims import claim_seconds
from shared.models import Batch, ErrorDetail, Job, Submission
from shared.observability import batch_log_fields, count, logger
from shared.pacing.controls import PauseReason, Permit
from shared.retry import poll_back_off, soon_after
from shared.workers_ai.error_codes import METRIC_OF_CLASS, ErrorClass
from shared.workers_ai.lasting_errors import clear_lasting_error, is_lasting, note_lasting_error
from shared.workers_ai.rejections import cause_of_pause
from shared.workers_ai.replies import (
    Accepted,
    Failed,
    NoAnswers,
    OutcomeUnknown,
    Pending,
    Rejected,
    Reply,
    Unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.services import Services

FAILED_SECONDS = 60.0
"""Seconds over which polls must be answered with the same code that blames the request."""
TOLD_WAITS = (2.0, 5.0, 15.0)
"""Seconds after an event that says that a batch is over at which it is polled again while it is still pending."""
LOST = ErrorDetail("expired", "Workers AI no longer knew the batch.")
NO_ANSWERS = ErrorDetail(
    "missing_response", "Workers AI reported the batch as completed and sent no answers."
)


@dataclass(frozen=True, slots=True)
class UnfinishedPoll:
    """A poll that got no results.

    A method that returns a bool returns whether it made the batch `done`.

    Attributes:
        services: the process's services.
        job: the batch's job.
        batch: as claimed.
        submission: the one whose id was polled.
        permit: the poll's.
        other_known: whether the API has known another id of the model since this one failed; read
            before the poll.
    """

    services: Services
    job: Job
    batch: Batch
    submission: Submission
    permit: Permit
    other_known: bool

    def process(self, reply: Reply, verdict: ErrorClass | None) -> bool:
        """Process the reply.

        | reply | is believed after 5 polls in a row, over | what follows |
        | --- | --- | --- |
        | pending | - | another poll; after the deadline, another submit |
        | none, or one that proves nothing | - | likewise |
        | token refused, too many calls | - | likewise; the batch's clock stands still |
        | completed without answers | 15 min | another submit |
        | the id is not known | 15 min, if other ids are known | another submit |
        | a failure without the API's envelope, a refusal of the request | 1 min | isolation |
        | a failure with a server's status | 15 min, or 1 min if other ids are known | isolation |
        | an answer that cannot be read | 15 min | isolation |
        | a failure in the API's own JSON | at once | isolation |

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
                return self._doubt(
                    HTTPStatus.OK, lost_ids.LOST_SECONDS, partial(self._submit_again, NO_ANSWERS)
                )
            case Failed(code, message, enveloped):
                failed = partial(self._failed, code, message)
                return failed({}) if enveloped else self._doubt(code or 0, FAILED_SECONDS, failed)
            case Unreadable(reason):
                logger.info("answer cannot be read", **batch_log_fields(self.batch))
                count("ApiErrors")
                return self._doubt(
                    HTTPStatus.PARTIAL_CONTENT,
                    lost_ids.LOST_SECONDS,
                    partial(self._failed, None, reason),
                )
            case OutcomeUnknown(reason):
                logger.info("no answer to a poll", **batch_log_fields(self.batch), reason=reason)
                count("ApiErrors")
                return self._unanswered(reply)
            case Rejected() if verdict is not None:
                return self._rejected(reply, verdict)
        return False

    def _rejected(self, reply: Rejected, verdict: ErrorClass) -> bool:
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        code = reply.code or reply.status
        logger.info("poll refused", **batch_log_fields(batch), code=code, verdict=verdict)
        count(METRIC_OF_CLASS[verdict])
        failed = partial(self._failed, reply.code, reply.message)
        match verdict:
            case ErrorClass.ACCOUNT:
                services.budget.pause(
                    PauseReason.TOKEN_REFUSED, now, cause_of_pause(reply), self.permit
                )
                return self._all_refused(
                    now + 60, self.permit.pause.since if self.permit.pause else now
                )
            case ErrorClass.RATE_LIMIT:
                until = soon_after(services.budget.limit_rate(now, reply.retry_after), 10)
                return self._all_refused(until, services.budget.controls().rate.held_since)
            case ErrorClass.UNKNOWN_ID:
                failing = note_lasting_error(services, job, batch, reply, polling=True)
                lost, patience = (
                    partial(self._submit_again, LOST),
                    lost_ids.LOST_SECONDS if self.other_known else math.inf,
                )
                return self._doubt(HTTPStatus.NOT_FOUND, patience, lost, calls_fail_since=failing)
            case ErrorClass.REQUEST | ErrorClass.BATCH_FAILED if (
                reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            ):
                return self._doubt(
                    -code, FAILED_SECONDS if self.other_known else lost_ids.LOST_SECONDS, failed
                )
            case ErrorClass.REQUEST:
                return self._doubt(code, FAILED_SECONDS, failed)
            case ErrorClass.BATCH_FAILED:
                return failed({})
            case _:
                return self._unanswered(reply)

    def _doubt(
        self,
        code: int,
        seconds: float,
        then: Callable[[dict[str, object]], bool],
        **updates: object,
    ) -> bool:
        """Process a reply that is believed only if several in a row are the same.

        Poll again, or do what follows.

        Args:
            code: what the polls must have in common; what differs in kind differs in code, since
                neither proves the
                other: a server's status makes a code negative.
            seconds: over how many seconds.
            then: what follows once it is believed; gets the batch's updates.
            updates: of the batch, besides the count.
        """
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        if not self._is_latest:
            self._give_up_earlier(code, updates)
            return False
        same = batch.failures > 0 and batch.failing_code == code
        times, since = (batch.failures + 1, batch.failing_at) if same else (1, now)
        counted = {"failures": times, "failing_code": int(code), "failing_at": since, **updates}
        if times >= MISSES and now - since >= seconds:
            return then(counted)
        if is_overdue(services, batch, now) or job.is_past_deadline(now):
            return submit_again(services, job, batch, LATE, counted)
        wait = next_look(times, since, now - self.submission.at, now)
        services.ledger.schedule_poll(batch, now + wait, **counted)
        return False

    def _submit_again(self, why: ErrorDetail, counted: dict[str, object]) -> bool:
        return submit_again(self.services, self.job, self.batch, why, counted)

    def _still_pending(self, status: str) -> bool:
        """Process a pending reply, perhaps of an overdue batch."""
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        count("OldestPendingAge", now - batch.submissions[-1].at)
        clear_lasting_error(services, job, batch)
        updates: dict[str, object] = {"pending_at": now, "api_status": status}
        if self._is_latest:
            updates["failures"] = 0
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
        """Process a poll without an answer.

        One that the API itself refuses may be refused until the deadline.

        Where not even the API answers, a job's own deadline counts once polls have failed for a
        quarter of an hour.
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
        """Process a poll that was refused as every call is.

        The batch's clock stands still, its job's deadline comes.

        Args:
            until: when it is polled again, Unix seconds.
            since: since when every call has been refused.
        """
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        if job.is_past_deadline(now) and is_lasting(max(since, batch.pending_at), now):
            return submit_again(services, job, batch, LATE, {})
        services.ledger.schedule_poll(batch, until, paused=batch.paused + until - now)
        return False

    def _failed(self, code: int | None, message: str, _counted: dict[str, object]) -> bool:
        """Process a failure after acceptance.

        While another id that was paid for is polled, only this is given up.
        """
        services, job, batch, now = self.services, self.job, self.batch, self.services.now()
        if not self._is_latest:
            self._give_up_earlier(code or 0, {}, has_failed=True)
        elif (
            len(batch.pollable) == 1
            or is_overdue(services, batch, now)
            or job.is_past_deadline(now)
        ):
            isolate_or_end(services, job, batch, code, message)
        else:
            failed = self._with(replace(self.submission, given_up=True))
            services.ledger.schedule_poll(
                batch, now + DOUBTED_SECONDS, submissions=failed, failing_code=code or 0
            )
        return False

    def _give_up_earlier(
        self, code: int, updates: dict[str, object], *, has_failed: bool = False
    ) -> None:
        """Count a poll against an earlier id of a batch that was submitted again.

        Only that id is given up.

        The counts of the latest id stay: it alone decides what happens to the batch. The codes of
        an earlier one are not kept, so that all errors count alike, for as long as those of a
        server.
        """
        seen, batch, now = self.submission, self.batch, self.services.now()
        misses, since = seen.misses + 1, seen.missed_at if seen.misses else now
        # An id is unknown, too, while no id is found.
        is_proven = (
            code != HTTPStatus.NOT_FOUND
            or batch.pending_at > since
            or batch.submissions[-1].given_up
        )
        given_up = has_failed or (is_lost_for_long(misses, since, now) and is_proven)
        counted = replace(seen, misses=misses, missed_at=since, given_up=given_up)
        self._poll_again(
            self._wait_for_earlier(counted), submissions=self._with(counted), **updates
        )

    def _wait_for_earlier(self, seen: Submission) -> float:
        """Seconds until the next poll after one that counts against an earlier id.

        Longer if no latest id is polled.

        Otherwise the claims of a few minutes would be taken for a batch that keeps failing.
        """
        if not self.batch.submissions[-1].given_up:
            return DOUBTED_SECONDS
        now = self.services.now()
        return next_look(seen.misses, seen.missed_at, now - seen.at, now)

    def _poll_again(self, wait: float, **updates: object) -> None:
        """Poll again later.

        The claim counts, so that a batch whose replies are never readable, or keep changing, ends.

        Args:
            wait: seconds after the first claims; after many it is longer.
            updates: the batch's further changes.
        """
        claims, now = self.batch.claims, self.services.now()
        self.services.ledger.schedule_poll(
            self.batch, now + claim_seconds(claims, wait), claims=claims, **updates
        )

    @property
    def _is_latest(self) -> bool:
        return self.submission is self.batch.submissions[-1]

    def _with(self, changed: Submission) -> tuple[Submission, ...]:
        """The batch's submissions, the polled one changed."""
        return tuple(changed if one is self.submission else one for one in self.batch.submissions)
