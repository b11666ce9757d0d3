"""Split: reads an upload once and stages it batch by batch. It may die at any point and run twice.

For each batch it writes the staged object first (write-once), creates the item second, and sends
the message third. If a run dies between these steps, the next one completes them: it finds the
object, and the item's `due_at` replaces the message. Split resumes after the last batch item. So
items are created in order, while the objects of several batches are put at the same time
(`functions.submit.stage_batches`). Where only blank lines follow the last batch, for 16 MB or more,
the job's item holds a place among them, so that no turn reads them again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dropbatch.core.errors import UploadRefused
from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint
from functions.submit.create_batches import Outbox, batches_before, create_batch
from functions.submit.pin_plan import put_job_record
from functions.submit.stage_batches import MAX_PUTS, put_ahead
from shared.aws.queues import VisitMessage
from shared.errors import InvariantError, StorageError, UploadDeniedError
from shared.job_control import obey
from shared.job_status import build_status, noted_wait, write_status
from shared.ledger import still_leased
from shared.models import ErrorDetail, Job
from shared.observability import logger
from shared.retry import MAX_CLAIMS

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from functions.submit.create_batches import Before
    from functions.submit.turn import Turn
    from shared.models import Batch
    from shared.services import Services

STATUS_EVERY_SECONDS = 10.0
"""Seconds between two writes of `status.json` while an upload is read."""
RENEW_EVERY_SECONDS, LEASE_RENEWAL_SECONDS = 5.0, 45.0
"""Seconds between two renewals of a run's lease, and how long each lasts.

That soon another run replaces a dead one.
"""
UNREAD = ErrorDetail(
    "internal", "Dropbatch could not read the whole upload; the submit function's log shows why."
)


def split(turn: Turn) -> bool:
    """Split a job's upload for one turn, from where the last one ended.

    Returns:
        Whether no message was sent for the job's first batch, so that the caller has it submitted.

    Raises:
        LeaseLostError: another run has replaced this one.
        StorageError: an AWS service failed.
    """
    services = turn.services
    # It may have been commanded before it existed.
    job = turn.job = obey(services, turn.job) or turn.job
    error = job.error or (UNREAD if job.claims > MAX_CLAIMS else None)
    staged = Staged(Checkpoint())
    try:
        if error is None and not job.cancelled:
            turn.plan()
            staged = _stage(turn)
            error = turn.job.error
            if not staged.is_read and not (turn.job.cancelled or error):
                reading = replace(turn.job.reading, blank_until=staged.place)
                services.ledger.release_job(turn.job, services.now(), reading=reading, wait=None)
                return False
    except UploadRefused as fault:
        logger.warning("upload failed", job_id=job.job_id, code=fault.code)
        error = ErrorDetail(fault.code, fault.message)
    job = turn.job
    if error is not None or job.cancelled:
        staged = replace(staged, place=_end_of_last(job, services.ledger.last_batch(job.job_id)))
        if not job.plan.form:
            put_job_record(services, job)
    elif services.now() < job.lease_until:
        # Without this, a small job would seem unread until its first visit.
        _write_status(services, replace(job, state=JobState.IN_PROGRESS, total=staged.place.record))
    total = staged.place.record
    ended = services.ledger.end_split(
        job,
        total,
        error,
        services.now(),
        to_end=staged.is_read,
        has_endings=staged.has_endings,
    )
    if ended is None:
        return staged.first_is_left
    logger.info("upload read to its end", job_id=job.job_id, records=total)
    # Its batches' answers, or the message below, bring the first visit.
    services.left.cover(job.job_id)
    if not staged.is_sent:
        # No answer will, and a tick may be a minute away.
        services.queues.send(VisitMessage(job.job_id))
    return staged.first_is_left


def _end_of_last(job: Job, last: Batch | None) -> Checkpoint:
    """The end of a job's last batch; where its records begin if it has none."""
    return _end_of(last) if last else Checkpoint(job.plan.start, job.plan.start_line)


def _end_of(batch: Batch) -> Checkpoint:
    if batch.records.end is None:
        raise InvariantError(f"batch {batch.job_id}/{batch.number} has no end")
    return batch.records.end


def _after_blank_lines(job: Job, place: Checkpoint) -> Checkpoint:
    """The place after the blank lines that follow a batch's end.

    As far as they were read already.
    """
    until = job.reading.blank_until
    return (
        until if until and until.record == place.record and until.offset > place.offset else place
    )


def _write_status(services: Services, job: Job) -> None:
    write_status(services, job, build_status(job, noted_wait(job, services.now())))


# ── one turn's batches ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Staged:
    """What has been staged of an upload when a turn ends.

    Attributes:
        place: where the turn ended.
        is_read: whether the upload was read to its end.
        is_sent: whether any batch is to be submitted; not for a job that was stopped.
        has_endings: whether a sweep ends batches that are not.
        first_is_left: whether no message was sent for the job's first batch, because the upload was
            read at once.
    """

    place: Checkpoint
    is_read: bool = False
    is_sent: bool = False
    has_endings: bool = False
    first_is_left: bool = False


def _stage(turn: Turn) -> Staged:
    """Stage batches after the last one; return what has been staged.

    Raises:
        LeaseLostError: another run has replaced this one.
    """
    staging = _Staging.after(turn, turn.services.ledger.last_batch(turn.job.job_id))
    with ExitStack() as stack:
        puts, reads = ThreadPoolExecutor(MAX_PUTS), ThreadPoolExecutor(1)
        for pool in (puts, reads):
            stack.callback(pool.shutdown, cancel_futures=True)
        try:
            while (staged := staging.stage(puts, reads)) is None:
                pass  # what is stored counts: the rest is cut from its end
        except (UploadRefused, UploadDeniedError, StorageError):
            staging.outbox.send()
            raise
        if staged.is_read and turn.submits_first:
            staged = replace(staged, first_is_left=staging.outbox.take_first())
        staging.outbox.send()
        return staged


@dataclass(slots=True)
class _Staging:
    """The batches that a turn stages.

    Attributes:
        turn: reads the upload.
        outbox: messages of the batches created.
        before: totals of the batches created.
        number: the next batch's.
        place: where it begins: at the end of the batch before it.
        read_to: that place, or the end of blank lines after it.
        status_at: when the status was written last, Unix seconds.
        renewed_at: when the lease was renewed last.
    """

    turn: Turn
    outbox: Outbox
    before: Before
    number: int
    place: Checkpoint
    read_to: Checkpoint
    status_at: float
    renewed_at: float = 0.0

    @classmethod
    def after(cls, turn: Turn, last: Batch | None) -> _Staging:
        """The staging of the batches after the last one; the turn's time begins."""
        services, place = turn.services, _end_of_last(turn.job, last)
        read_to, number = (
            _after_blank_lines(turn.job, place),
            int(last.number[:8]) + 1 if last else 0,
        )
        turn.begin(read_to)
        return cls(
            turn,
            Outbox(services),
            batches_before(services, last),
            number,
            place,
            read_to,
            services.now(),
        )

    def stage(self, puts: Executor, reads: Executor) -> Staged | None:
        """Stage batches up to the turn's end.

        None if a stored batch ends elsewhere than the one that was cut.
        """
        turn, services = self.turn, self.turn.services
        cuts = turn.read(self.read_to, self.number, reads)
        for candidate in put_ahead(
            services.store, puts, turn.job.job_id, self.number, self.place, cuts
        ):
            if (
                self.read_to != turn.begun
                and services.now() >= self.renewed_at + RENEW_EVERY_SECONDS
            ):
                self._renew_lease()
                if turn.job.cancelled or turn.job.error:
                    return Staged(self.read_to)
            if isinstance(candidate, Checkpoint):
                self.read_to = candidate
                continue
            known = create_batch(services, turn.job, candidate, self.before, self.outbox)
            self.place = self.read_to = _end_of(known)
            self.number += 1
            self.before.add(known)
            if self.place != candidate.end:
                self.read_to = _after_blank_lines(turn.job, self.place)
                return None
        has_endings = self.before.has_endings(self.number)
        return Staged(self.read_to, turn.finished, self.before.ordinal > 0, has_endings)

    def _renew_lease(self) -> None:
        """Renew the lease, note how far the upload has been read.

        And write it to the status every ten seconds.
        """
        turn, now = self.turn, self.turn.services.now()
        until, known = now + LEASE_RENEWAL_SECONDS, turn.job.reading
        bytes_read = max(known.bytes_read, turn.bytes_read)
        reading = replace(known, bytes_read=bytes_read, blank_until=self.read_to)
        changes = {"lease_until": until, "due_at": until, "claims": 0}
        kept = turn.services.ledger.update_leased_job(
            turn.job, {**changes, "reading": reading, "wait": None}
        )
        turn.job, self.renewed_at = still_leased(kept, turn.job.job_id), now
        if now >= self.status_at + STATUS_EVERY_SECONDS:
            self.status_at = now
            _write_status(turn.services, turn.job)
