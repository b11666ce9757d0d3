"""Creates a batch's item and sends its first message, once its staged object exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropbatch.core.cost_limit import estimate
from functions.submit.stage_batches import settle
from shared.aws.queues import (
    FIRST_BATCH,
    MAX_SUBMITS_WAITING,
    SUBMIT_GRACE_SECONDS,
    SubmitMessage,
)
from shared.errors import InvariantError
from shared.models import Batch, BatchState, DueKind, ErrorDetail, Records
from shared.observability import count
from shared.pacing import cost
from shared.pacing.breaker import LIFT_LOOK_SECONDS
from shared.pacing.budget import NO_TOKEN_SECONDS
from shared.retry import jittered

if TYPE_CHECKING:
    from functions.submit.stage_batches import StagedAhead
    from shared.models import Job
    from shared.services import Services
    from shared.staged_batch import StagedInfo

NOTHING_TO_SEND = ErrorDetail("internal", "no record of this batch could be sent")
FIRST_ENDINGS = 50
"""Batches at a job's beginning that end at once if they are never submitted."""
SWEPT_SECONDS = 3_600.0
"""Seconds until a batch that is never submitted is due, if no sweep ended it before."""
_MESSAGES_PER_CALL = 10
ROOM_SECONDS = 1.0
"""Seconds for which the rate budget is known to have no call left."""


class Outbox:
    """Messages for batches to be submitted; they are sent ten at a time, or after a second.

    If the process dies, the batches' `due_at` replaces the messages that are lost.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._messages: list[SubmitMessage] = []
        self._since = 0.0
        self._room, self._room_until = 0, 0.0
        self._put_off = NO_TOKEN_SECONDS

    def room_at(self, now: float) -> float:
        """When to send the next message: now, unless the rate budget would have no call for it.

        A message that gets no call costs an invocation, and postpones its batch. Instead the batch
        is created so.
        """
        if self._room < 1 and now >= self._room_until:
            free = self._services.budget.free(now)
            self._room, self._room_until = (
                0 if free.paused else self._sendable(free.submits),
                now + ROOM_SECONDS,
            )
            self._put_off = LIFT_LOOK_SECONDS if free.paused else NO_TOKEN_SECONDS
        if self._room < 1:
            return now + jittered(self._put_off)
        self._room -= 1
        return now

    def _sendable(self, submits: int) -> int:
        """Of so many submits that have a call, those for which a message is sent.

        Where there are many calls, more messages could be sent than the submit function takes, and
        other jobs' first batches would wait behind them.
        """
        if submits <= MAX_SUBMITS_WAITING:
            return submits
        queues = self._services.queues
        return max(MAX_SUBMITS_WAITING - queues.waiting(queues.submit_url), 0)

    def add(self, message: SubmitMessage) -> None:
        """Send the message soon."""
        now = self._services.now()
        self._since = self._since if self._messages else now
        self._messages.append(message)
        if len(self._messages) == _MESSAGES_PER_CALL or now - self._since >= 1:
            self.send()

    def send(self) -> None:
        """Send the waiting messages."""
        messages, self._messages = self._messages, []
        self._services.queues.send_all(messages)

    def take_first(self) -> bool:
        """Whether the message of a job's first batch waits.

        It is then taken out, and the caller has it submitted.
        """
        waiting = len(self._messages)
        self._messages = [one for one in self._messages if one.number != FIRST_BATCH]
        return len(self._messages) < waiting


@dataclass(slots=True)
class Before:
    """Totals of a job's batches before the next one.

    Attributes:
        ordinal: batches with a sendable record.
        estimate: sum of their estimated costs, in billionths of a US dollar.
    """

    ordinal: int = 0
    estimate: int = 0

    def has_endings(self, batches: int) -> bool:
        """Whether so many batches of a job may have been created only to end them that a sweep is worth it."""
        return batches > FIRST_ENDINGS and self.ordinal < batches

    def add(self, batch: Batch) -> None:
        """Add a batch as it is in the ledger."""
        self.ordinal += batch.records.sendable > 0
        self.estimate = batch.records.estimated_before + batch.records.estimate


def batches_before(services: Services, last: Batch | None) -> Before:
    """Totals of the batches up to the last one, whether or not it was divided into pieces."""
    if last is None:
        return Before()
    number = last.number[:8]
    whole = services.ledger.batch(last.job_id, number) if number != last.number else last
    if whole is None or whole.records.ordinal is None:
        raise InvariantError(f"batch {last.job_id}/{number} cannot be read, or was not counted")
    return Before(
        whole.records.ordinal + (whole.records.sendable > 0),
        whole.records.estimated_before + whole.records.estimate,
    )


def create_batch(
    services: Services, job: Job, candidate: StagedAhead, before: Before, outbox: Outbox
) -> Batch:
    """Create a batch whose object exists, and send its message.

    Return the batch as it is in the ledger.

    Raises:
        StorageError: an AWS service failed.
    """
    name = f"{candidate.number:08d}"
    staged = settle(services.store, candidate)
    now = services.now()
    estimated = _estimate(job, candidate, staged)
    ending = job.ending(now) if staged.sendable else NOTHING_TO_SEND
    slot = _slot(services, job, before.ordinal)
    if not (ending or cost.allows(job, before.estimate, estimated)):
        slot = max(slot, now + cost.COST_LOOK_SECONDS)
    elif ending is None and before.ordinal and slot <= now:
        slot = outbox.room_at(now)
    is_due = ending is None and slot <= now
    batch = Batch(
        job_id=job.job_id,
        number=name,
        state=BatchState.READY,
        records=Records(
            first_id=candidate.first_id,
            requests=staged.requests,
            sendable=staged.sendable,
            body_size=staged.body_size,
            end=staged.end,
            ordinal=before.ordinal,
            originals_size=staged.originals_size,
            estimate=estimated,
            estimated_before=before.estimate,
        ),
        created_at=now,
        due_at=_ended_at(candidate.number, now)
        if ending
        else now + SUBMIT_GRACE_SECONDS
        if is_due
        else slot,
        paused=0.0 if ending else max(slot - now, 0.0),
        work=DueKind.POLL if ending else DueKind.SUBMIT if before.ordinal else DueKind.FIRST,
        ending=ending,
    )
    if services.ledger.create_batch(batch) is None:
        known = services.ledger.batch(job.job_id, name)
        if known is None:
            raise InvariantError(f"batch {job.job_id}/{name} exists but cannot be read")
        return known
    count("BatchesCut")
    count("RecordsIn", batch.records.requests)
    if is_due:
        outbox.add(SubmitMessage(job.job_id, name, batch.due_at or 0.0))
    return batch


def _ended_at(number: int, now: float) -> float:
    """When a batch that is never submitted is due.

    The first ones now; the sweep after the upload was read ends the others.
    """
    return now if number < FIRST_ENDINGS else now + SWEPT_SECONDS


def _estimate(job: Job, candidate: StagedAhead, staged: StagedInfo) -> int:
    """A batch's cost in billionths of a US dollar, if the job has a limit."""
    if not staged.sendable or job.cost is None:
        return 0
    body = candidate.body[: candidate.ours.body_size]
    return estimate(
        job.plan.known_model, body, staged.body_size, staged.sendable, job.output_tokens
    )


def _slot(services: Services, job: Job, ordinal: int) -> float:
    """When a batch may be submitted.

    The first ones of a job immediately, others at the submit rate.
    """
    budget = services.budget
    ahead = max(ordinal - budget.burst // 2, 0)
    return job.created_at + ahead * budget.slot_seconds
