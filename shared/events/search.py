"""The search for a submit that was accepted and whose reply was lost, among the ids that no batch has.

An id shows whose it is only by the marker in its answer. So each orphan of the batch's model and time is polled, once
it is over, and what it answers is compared: a marker and nothing else is a match. The reply that shows it is stored
before the batch is `queued` under that id, because the API may give it only once. What does not match is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING

from dropbatch.core import keys
from shared.events.ids import MAX_LOOKED_UP
from shared.events.markers import marker_in
from shared.events.pulling import MIN_PULL_SECONDS, expect_events, pull_interval
from shared.events.subscribed import subscribed
from shared.models import CANCEL_NOW, BatchState, Submission
from shared.observability import batch_log_fields, count, logger
from shared.pacing.controls import Denied, PauseReason
from shared.workers_ai.error_codes import ErrorClass
from shared.workers_ai.queue_messages import ID_PREFIX
from shared.workers_ai.queues_api import KEPT_SECONDS
from shared.workers_ai.rejections import classify_rejection
from shared.workers_ai.replies import LARGEST_BATCH, Failed, NoAnswers, OutcomeUnknown, Rejected
from shared.workers_ai.results import Answer
from shared.workers_ai.senders import api_of, as_sent, sender_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.bootstrap import Services
    from shared.events.ids import KnownId, Orphan
    from shared.events.set_up import Events
    from shared.invocation import Invocation
    from shared.models import Batch, Job, Looking

CLOCKS_SECONDS = 120.0
"""Seconds by which Cloudflare's clock may differ from AWS's."""
ID_SECONDS, LONGEST_ID_SECONDS = 60.0, 900.0
"""Seconds for which an id is waited for at least, and at most: until an event of something accepted later has come.
While the queue is not read, that none has come proves nothing."""
UNREAD_SECONDS = float(KEPT_SECONDS)
"""Seconds after which the queue no longer keeps an event that nobody read."""
LEFT_SECONDS = 60.0
"""Seconds after a pull that left messages behind, within which they are pulled again, clocks included."""
MAX_CANDIDATES = 20
"""Orphans that are polled for one batch: those whose time is nearest to its POST."""
MAX_MISSES, MISSED_SECONDS = 4, 900.0
"""Polls that do not find an orphan's id, until it is given up; and its age, in seconds, from which on."""
UNFOUND = {ErrorClass.UNKNOWN_ID, ErrorClass.REQUEST, ErrorClass.BATCH_FAILED}
"""What such a poll is answered with."""
LOOK_CLAIM_SECONDS, ORPHAN_POLL_SECONDS, NEXT_LOOK_SECONDS = 120.0, 60.0, 5.0
"""Seconds of a look's claim; of a poll at most; and between two looks of one batch at least."""
MAX_LOOK_SECONDS = 30.0
"""Seconds between two looks at most: each is a second longer than the one before, whatever the clocks say."""
UNSETTLED = -1
"""As `polls_settled`: the next poll looks for stored replies first, from ordinal 0 on."""
REQUEST_ID = "request-id"
"""Name in a stored reply's metadata."""


class Look(Enum):
    """How one look ended."""

    FOUND = "found"
    WAITS = "waits"
    OVER = "over"


def may_look(services: Services, job: Job, batch: Batch, *, doubtful: bool) -> bool:
    """Whether a batch can be recognized by its marker among orphans; a doubtful submit only where events may come.

    Raises:
        StorageError: DynamoDB failed.
    """
    if not batch.marker or (known := subscribed(services, job)) is None or not known.state.will_pull(services.now()):
        return False
    coming, pulled_at = known.events.coming, known.state.pulled_at
    return not doubtful or coming.may_come(job.plan.model, pulled_at, services.now())


def begin(services: Services, job: Job, batch: Batch, looking: Looking, **updates: object) -> Batch | None:
    """Begin to look for a batch's submit, where `may_look`; the pull is planned first.

    Raises:
        StorageError: DynamoDB failed.
    """
    events, now = services.events, services.now()
    if events is None:
        return None
    events.item.look_until(now + LONGEST_ID_SECONDS)
    events.item.expect_pull(now + MIN_PULL_SECONDS, now)
    if begun := services.ledger.look_for_submit(batch, looking, now + MIN_PULL_SECONDS, **updates):
        logger.info("submit looked for", **batch_log_fields(begun))
        return begun
    stored = services.ledger.batch(job.job_id, batch.number)  # An earlier try may have written it, and failed.
    is_begun = stored and stored.state is BatchState.SUBMITTING and stored.attempt == batch.attempt and stored.looking
    return stored if is_begun else None


def waits_until(batch: Batch, deadline_hours: float) -> float:
    """Until when a batch's submit is looked for at most, Unix seconds."""
    return (batch.looking.sent_from if batch.looking else 0.0) + deadline_hours * 3_600


def look(invocation: Invocation, job: Job, batch: Batch) -> tuple[Look, Batch | None]:
    """Look once; return how that ended, and the batch afterwards, None if another invocation has it.

    Raises:
        StorageError: an AWS service failed; the batch is due again.
    """
    services, now = invocation.services, invocation.services.now()
    claimed = services.ledger.claim_look(batch, now + LOOK_CLAIM_SECONDS)
    if claimed is None or claimed.looking is None:
        return Look.WAITS, None
    events = services.events
    if (found := accept_stored(services, job, claimed)) is not None:
        return Look.FOUND, found
    if events is None or now > waits_until(claimed, services.settings.batch_deadline_hours) or _is_ended(job, now):
        return Look.OVER, claimed
    search = _Search(invocation, events, job, claimed, claimed.looking)
    if (found := search.run()) is not None:
        return Look.FOUND, found
    if search.is_over():
        return Look.OVER, claimed
    looks = claimed.looking.looks + 1
    gap = max(pull_interval(now - claimed.looking.sent_from, NEXT_LOOK_SECONDS), min(looks, MAX_LOOK_SECONDS))
    due_at = services.now() + gap
    looking = replace(claimed.looking, looks=looks)
    return Look.WAITS, services.ledger.postpone(claimed, due_at, claims=0, looking=looking)


def _is_ended(job: Job, now: float) -> bool:
    """Whether nobody waits for the job's accepted batches."""
    return job.cancelled == CANCEL_NOW or job.is_past_deadline(now) or job.is_too_old(now)


@dataclass(slots=True)
class _Search:
    """One look at the orphans."""

    invocation: Invocation
    events: Events
    job: Job
    batch: Batch
    looking: Looking
    waits: bool = False
    """Whether an orphan has not answered yet, or could not be read."""

    def run(self) -> Batch | None:
        """Poll what is over; return the batch if its own answer was found."""
        ids, looking, model = self.events.ids, self.looking, self.job.plan.model
        found = ids.orphans(model, looking.sent_from - CLOCKS_SECONDS, looking.sent_until + CLOCKS_SECONDS)
        near = sorted(found, key=lambda one: abs(one.at - looking.sent_from))[:MAX_LOOKED_UP]
        known: Mapping[str, KnownId | None] = ids.look_up([one.id for one in near])
        owned = {one for one, of in known.items() if of and of.job_id}
        candidates = [one for one in near if one.id not in owned and not _is_given_up(one)]
        now = self.invocation.services.now()
        for one in candidates[:MAX_CANDIDATES]:
            if one.polled:
                continue
            of = known.get(one.id)
            if of is None or now < one.claimed_until or now < self._next_at(one, of):
                self.waits = True
            elif (batch := self._poll(one)) is not None:
                return batch
        return None

    def is_over(self) -> bool:
        """Whether the search is in vain: nothing may still answer, and no id may still come."""
        if self.waits:
            return False
        waited = self.invocation.services.now() - self.looking.began_at
        if waited < ID_SECONDS:
            return False
        state = self.events.item.state()
        is_read = state.pulled_at > max(self.looking.sent_until + ID_SECONDS, state.left_at + LEFT_SECONDS)
        if waited >= (UNREAD_SECONDS if state.is_read_on and not is_read else LONGEST_ID_SECONDS):
            return True
        return is_read and self.events.coming.queued_at(self.job.plan.model) > self.looking.sent_until

    def _next_at(self, orphan: Orphan, of: KnownId) -> float:
        """When an orphan is polled: once an event says that it is over; else as one of our own would be."""
        if of.over_at and not orphan.misses:
            return 0.0
        times = self.invocation.services.times
        return orphan.next_at or orphan.at + times.first_poll(self.job.plan.model, self.batch.number, orphan.at)

    def _poll(self, orphan: Orphan) -> Batch | None:
        """Poll an orphan; return the batch that is searched for if it is its."""
        services, now, model = self.invocation.services, self.invocation.services.now(), self.job.plan.model
        seconds = min(ORPHAN_POLL_SECONDS, self.invocation.seconds_left - ORPHAN_POLL_SECONDS / 2)
        sender = sender_of(services, self.job, self.batch.sender)
        granted, permit = services.budget.permit_polls(1, now, sender)
        if seconds <= 0 or not granted or isinstance(permit, Denied):
            self.waits = True
            return None
        if not self.events.ids.claim_orphan(model, orphan, now + LOOK_CLAIM_SECONDS):
            self.waits = True  # Another search has it.
            return None
        count("PollCalls")
        taken: Batch | None = None
        # Events prefix the ids of replies, as far as is known; so an id that is not known is tried with the prefix.
        asked = f"{ID_PREFIX}{orphan.id}" if orphan.misses % 2 else orphan.id
        # It may be another batch's, of any size, and may be given only once.
        with api_of(services, sender).poll(model, asked, seconds, self.batch.sent, LARGEST_BATCH) as reply:
            is_answer = isinstance(reply, Answer) and not reply.unfinished
            if isinstance(reply, Answer) and is_answer and (owner := self._owner(reply)):
                taken = _take(self.invocation, *owner, asked, reply)
        verdict = None
        if isinstance(reply, Rejected):
            sent = as_sent(self.job, self.batch.sender)
            verdict = classify_rejection(services, sent, self.batch, reply, sender, polling=True)
        if verdict is None and not isinstance(reply, OutcomeUnknown):
            services.lift(permit, model)  # It may be a pause's probe.
        if isinstance(reply, Rejected) and verdict is ErrorClass.RATE_LIMIT:
            services.budget.limit_rate(now, reply.retry_after, sender)
        if isinstance(reply, Rejected) and verdict is ErrorClass.ACCOUNT:
            services.budget.pause(PauseReason.TOKEN_REFUSED, now, str(reply.code or reply.status), permit)
        # With the status of a server, the API itself may fail, for every id.
        is_servers = isinstance(reply, Rejected) and reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        has_failed = isinstance(reply, Failed) or (verdict is ErrorClass.BATCH_FAILED and not is_servers)
        misses = orphan.misses + (verdict in UNFOUND or isinstance(reply, NoAnswers))
        is_given_up = misses >= MAX_MISSES and now - orphan.at > MISSED_SECONDS
        wait = services.times.next_poll(model, max(now - orphan.at, 0.0), now)
        seen = replace(orphan, next_at=now + wait, misses=misses)
        seen = replace(seen, polled=is_answer or is_given_up or has_failed)
        self.events.ids.note_orphan(model, seen, now)
        self.waits = self.waits or not seen.polled
        is_ours = taken and (taken.job_id, taken.number) == (self.batch.job_id, self.batch.number)
        return taken if is_ours else None

    def _owner(self, answer: Answer) -> tuple[Job, Batch] | None:
        """The batch that an answer's marker names, if it has no id yet; its own POST may still be under way."""
        services, shown = self.invocation.services, marker_in(answer.items)
        if shown is None:
            return None
        marker, _ = shown
        job, batch = self.job, self.batch
        if marker != batch.marker:
            of = self.events.ids.marked(marker)
            other = services.ledger.batch(of.job_id, of.number) if of.job_id else None
            others_job = services.ledger.job(of.job_id) if other else None
            if other is None or others_job is None or other.marker != marker:
                return None
            job, batch = others_job, other
        fits = len(answer.items) <= batch.sendable
        return (job, batch) if batch.state is BatchState.SUBMITTING and fits else None


def _is_given_up(orphan: Orphan) -> bool:
    """Whether nobody knows an orphan's id: it takes no candidate's place."""
    return orphan.polled and orphan.misses >= MAX_MISSES


def _take(invocation: Invocation, job: Job, batch: Batch, request_id: str, answer: Answer) -> Batch | None:
    """Store the reply that shows a batch's marker, then accept the batch under its id."""
    services, key = invocation.services, keys.raw(job.job_id, batch.number, batch.attempt, 0)
    # The API may never give this answer again, so S3 is tried for as long as this invocation lasts.
    invocation.retry(lambda: services.store.put_if_absent(key, answer.body, {REQUEST_ID: request_id}))
    return _accept(services, job, batch, request_id)


def accept_stored(services: Services, job: Job, batch: Batch) -> Batch | None:
    """The batch, accepted under the id of a reply that an earlier look stored before it died; None if there is none.

    That look may have been another batch's.
    """
    info = services.store.head(keys.raw(job.job_id, batch.number, batch.attempt, 0))
    request_id = info.metadata.get(REQUEST_ID, "") if info else ""
    return _accept(services, job, batch, request_id) if request_id else None


def _accept(services: Services, job: Job, batch: Batch, request_id: str) -> Batch | None:
    """Accept a batch whose submit was found. Its next poll takes the reply that is stored already."""
    now = services.now()
    at = min(batch.looking.sent_until, now) if batch.looking else now
    submission = Submission(request_id, batch.attempt, at, batch.round, sender=batch.sender)
    accepted = services.ledger.accept(batch, submission, now, found=batch.found + 1, polls_settled=UNSETTLED)
    if accepted:
        count("BatchesAccepted")
        logger.info("lost submit found", **batch_log_fields(accepted))
        expect_events(services, job, batch.number, submission)
    return accepted
