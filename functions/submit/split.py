"""Split: reads an upload once and stages it batch by batch. It may die at any point and run twice.

For each batch it writes the staged object first (write-once), creates the item second, and sends the message third. If
a run dies between these steps, the next one completes them: it finds the object, and the item's `due_at` replaces the
message. Split resumes after the last batch item. So items are created in order, while the objects of several batches
are put at the same time (`functions.submit.stage_batches`). Where only blank lines follow the last batch, for 16 MB or
more, the job's item holds a place among them, so that no turn reads them again.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from functions.submit.create_batches import Outbox, batches_before, create_batch
from functions.submit.create_job import LEASE_SECONDS
from functions.submit.plan_upload import check_model, plan_upload, put_job_record, reader_for
from functions.submit.records.convert import cut_converted
from functions.submit.records.cut import cut
from functions.submit.records.stream import read_decompressed
from functions.submit.stage_batches import MAX_PUTS, put_ahead
from shared import s3_keys as keys
from shared.aws.queues import AdvanceMessage
from shared.claims import MAX_CLAIMS, claim_seconds, report_stuck, retry_seconds
from shared.errors import InvariantError, LeaseLostError, StorageError, UploadError
from shared.job_status import build_status, write_status
from shared.models import Checkpoint, ErrorDetail, Job, JobState
from shared.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from functions.submit.records.cut import Cut
    from shared.bootstrap import Services
    from shared.formats.base import Reader
    from shared.models import Batch

MAX_BYTES_WITHOUT_BATCH = 4 << 30
"""Most unpacked bytes without the end of a batch: far more than 500 requests have, and read well within one turn."""

TURN_SECONDS = 60.0
"""How long one run splits before it ends its turn; for an archive, which each turn reads again, as long as it can."""
RESERVE_SECONDS = 30.0
"""Time a run keeps to stage its last batch and to release the job."""
DETECT_RESERVE_SECONDS = 10.0
"""Time kept while an archive's beginning is read, to release the job."""
SKIP_RESERVE_SECONDS = 45.0
"""Time that must be left when an archive has been skipped to where the last turn ended, to make progress."""
SKIP_TRIES = 3
"""Turns in a row without that time, after which the archive counts as too large."""

STATUS_EVERY_SECONDS = 10.0
"""Seconds between two writes of `status.json` while an upload is read."""
RENEW_EVERY_SECONDS, LEASE_RENEWAL_SECONDS = 5.0, 45.0
"""Seconds between two renewals of a run's lease, and how long each lasts: that soon another run replaces a dead one."""


def split(services: Services, job: Job, *, leased: bool, remaining: Callable[[], float]) -> None:
    """Split a job's upload for one turn, from where the last one ended.

    Args:
        services: the process's clients and settings.
        job: as just read or created.
        leased: whether this invocation created the job, and so holds its lease.
        remaining: seconds this invocation has left.

    Raises:
        StorageError: an AWS service failed; the job is due again at its `due_at`.
    """
    held = lease_turn(services, job, leased=leased)
    if held is None:
        return
    try:
        _take_turn(services, held, remaining)
    except LeaseLostError:
        logger.info("lease lost", job_id=job.job_id)
    except StorageError:
        give_back_lease(services, held)
        raise


def lease_turn(services: Services, job: Job, *, leased: bool) -> Job | None:
    """The job, leased for a turn; None if its upload has been read, or another run reads it."""
    if job.state is not JobState.SPLITTING:
        return None
    if leased:
        return job
    now = services.now()
    until = now + claim_seconds(job.claims, LEASE_SECONDS)
    try:
        claimed = services.ledger.lease_job(job, now, until)
    except StorageError:
        give_back_lease(services, replace(job, lease_until=until))  # It may have been written.
        raise
    if claimed:
        report_stuck(claimed.claims, claimed.job_id)
    return claimed


def give_back_lease(services: Services, job: Job) -> None:
    """Release a turn that an AWS service has failed, so that nobody waits for its lease's end.

    Whoever handles the message counts the failure (`functions.submit.failed_messages`).
    """
    services.ledger.retry_job(job, services.now() + retry_seconds(job.claims), max(job.claims - 1, 0))


def _take_turn(services: Services, job: Job, remaining: Callable[[], float]) -> None:
    error: ErrorDetail | None = job.error
    if error is None and job.claims > MAX_CLAIMS:
        error = ErrorDetail(
            "internal", "Dropbatch could not read the whole upload; the submit function's log shows why."
        )
    staged = Staged(Checkpoint())
    try:
        if error is None and not job.cancelled:
            job = plan(services, job, remaining)
            job, staged = _stage(services, job, remaining)
            error = job.error
            if not staged.is_read and not (job.cancelled or error):
                services.ledger.release_job(job, services.now(), blank_until=staged.place)
                return
    except UploadError as fault:
        logger.warning("upload failed", job_id=job.job_id, code=fault.code)
        error = ErrorDetail(fault.code, fault.message)
    if error is not None or job.cancelled:
        staged = replace(staged, place=_checkpoint(services, job))
        if not job.plan.form:
            put_job_record(services, job)
    elif services.now() < job.lease_until:
        # Without this, a small job would seem unread until its first visit.
        write_status(services, job, _status(replace(job, state=JobState.IN_PROGRESS, total=staged.place.record)))
    total = staged.place.record
    ended = services.ledger.end_split(
        job, total, error, services.now(), read_to_end=staged.is_read, has_endings=staged.has_endings
    )
    if ended is None:
        return
    logger.info("upload read to its end", job_id=job.job_id, records=total)
    services.left.cover(job.job_id)  # Its batches' answers, or the message below, bring the first visit.
    if error is not None or job.cancelled or not staged.is_sent:
        services.queues.send(AdvanceMessage(job.job_id))  # No answer will, and a tick may be a minute away.


def plan(services: Services, job: Job, remaining: Callable[[], float]) -> Job:
    """The job with its plan pinned.

    Raises:
        UploadError: `path_too_long`, or as `plan_upload` raises it.
    """
    if len(keys.upload_path(job.upload.key).encode()) > keys.MAX_PATH_BYTES:
        raise UploadError(
            "path_too_long",
            f"The path under inbox/ has more than {keys.MAX_PATH_BYTES} bytes. Upload it under a shorter key.",
        )
    return plan_upload(services, job, partial(_check_time, job, Checkpoint(), remaining, DETECT_RESERVE_SECONDS))


def _checkpoint(services: Services, job: Job) -> Checkpoint:
    last = services.ledger.last_batch(job.job_id)
    if last is None:
        return Checkpoint(job.plan.start, job.plan.start_line)
    return _end_of(last)


def _after_blank_lines(job: Job, place: Checkpoint) -> Checkpoint:
    """The place after the blank lines that follow a batch's end, as far as they were read already."""
    until = job.blank_until
    return until if until and until.record == place.record and until.offset > place.offset else place


def _end_of(batch: Batch) -> Checkpoint:
    if batch.end is None:
        raise InvariantError(f"batch {batch.job_id}/{batch.number} has no end")
    return batch.end


class TurnOverError(Exception):
    """The turn's time ended between two batches; never leaves this module."""


@dataclass
class Turn:
    """What one turn reads and cuts; ends the turn when its time is over.

    Attributes:
        ends: Unix seconds.
        begun: where it began.
        place: end of the last batch cut, or of the blank lines after it.
        barren: unpacked bytes read since then.
        bytes_read: stored bytes of the upload that have been read.
        finished: whether the upload was read to its end.
    """

    services: Services
    job: Job
    ends: float
    begun: Checkpoint
    place: Checkpoint
    barren: int = 0
    bytes_read: int = 0
    finished: bool = False

    def note_read(self, stored: int) -> None:
        """Note how many stored bytes of the upload have been read."""
        self.bytes_read = stored

    def blocks(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The blocks, as long as batches end in them now and then."""
        for block in blocks:
            self.barren += len(block)
            if self.barren > MAX_BYTES_WITHOUT_BATCH:
                raise _gap_error(self.job)
            yield block

    def cuts(self, cuts: Iterator[Cut | Checkpoint]) -> Iterator[Cut | Checkpoint]:
        """The cuts up to the turn's end; at least one. Blank lines count as one, except in an archive."""
        self.finished = False
        try:
            for one in cuts:
                if isinstance(one, Checkpoint):
                    if self.job.plan.packing != "plain":
                        continue  # each turn unpacks everything before again, blank or not
                    self.place = one
                else:
                    self.place = one.end
                    check_model(self.job.plan.model)
                self.barren = 0
                yield one
                if self.services.now() > self.ends:
                    return
        except TurnOverError:
            return
        self.finished = True


@dataclass(frozen=True, slots=True)
class Staged:
    """What has been staged of an upload when a turn ends.

    Attributes:
        place: where the turn ended.
        is_read: whether the upload was read to its end.
        is_sent: whether any batch is to be submitted.
        has_endings: whether a sweep ends batches that are not.
    """

    place: Checkpoint
    is_read: bool = False
    is_sent: bool = False
    has_endings: bool = False


def _stage(services: Services, job: Job, remaining: Callable[[], float]) -> tuple[Job, Staged]:
    """Stage batches after the last one; return the job, and what has been staged.

    Raises:
        LeaseLostError: another run has replaced this one.
    """
    longest = TURN_SECONDS if job.plan.packing == "plain" else math.inf
    kept_at = 0.0
    last = services.ledger.last_batch(job.job_id)
    number = int(last.number[:8]) + 1 if last else 0
    before = batches_before(services, last)
    place = _checkpoint(services, job)
    begun = read_to = _after_blank_lines(job, place)
    status_at = services.now()
    outbox = Outbox(services)
    reader = reader_for(services, job)
    turn = Turn(services, job, services.now() + min(longest, remaining() - RESERVE_SECONDS), begun, begun)
    check = partial(check_turn, services, job, turn, remaining)
    with ExitStack() as stack:
        threads, reading = ThreadPoolExecutor(MAX_PUTS), ThreadPoolExecutor(1)
        for pool in (threads, reading):
            stack.callback(pool.shutdown, cancel_futures=True)
        while True:
            blocks = read_decompressed(
                services.store, job.upload, job.plan, read_to.offset, check, reading, turn.note_read
            )
            cuts = turn.cuts(cut_upload(job, read_to, number, turn.blocks(blocks), reader))
            try:
                for candidate in put_ahead(services.store, threads, job.job_id, number, place, cuts):
                    if read_to != begun and services.now() >= kept_at + RENEW_EVERY_SECONDS:
                        kept_at = services.now()
                        job = _renew_lease(services, job, kept_at, max(job.bytes_read, turn.bytes_read), read_to)
                        status_at = _write_status(services, job, status_at)
                        if job.cancelled or job.error:
                            outbox.send()
                            return job, Staged(read_to)
                    if isinstance(candidate, Checkpoint):
                        read_to = candidate
                        continue
                    known = create_batch(services, job, candidate, before, outbox)
                    place = read_to = _end_of(known)
                    number += 1
                    before.add(known)
                    if place != candidate.end:
                        read_to = _after_blank_lines(job, place)
                        break  # the stored batch ends elsewhere: continue from its end
                else:
                    outbox.send()
                    is_sent, has_endings = before.ordinal > 0, before.has_endings(job, number)
                    return job, Staged(read_to, turn.finished, is_sent, has_endings)
            except (UploadError, StorageError) as error:
                outbox.send()
                if isinstance(error, StorageError):
                    give_back_lease(services, job)  # as it was renewed last
                raise


def cut_upload(
    job: Job, place: Checkpoint, number: int, blocks: Iterator[bytes], reader: Reader | None
) -> Iterator[Cut | Checkpoint]:
    """An upload's batches from a place on: `cut`, or `cut_converted` with the format's reader."""
    if reader is None:
        return cut(job.plan, place, number, blocks)
    return cut_converted(job.plan, place, number, blocks, reader)


def check_turn(services: Services, job: Job, turn: Turn, remaining: Callable[[], float], *, skipping: bool) -> None:
    """Check the time; called for each block, and for each piece of an archive, which may yield nothing for a long time.

    Raises:
        TurnOverError: the time is over, and there is a place to continue from.
        StorageError: there is not enough time for the turn's first batch.
        UploadError: there was not enough time in several turns in a row.
    """
    if turn.place == turn.begun:
        _check_time(job, turn.place, remaining, SKIP_RESERVE_SECONDS if skipping else RESERVE_SECONDS)
    elif services.now() > turn.ends:
        raise TurnOverError


def _renew_lease(services: Services, job: Job, now: float, bytes_read: int, read_to: Checkpoint) -> Job:
    until = now + LEASE_RENEWAL_SECONDS
    changes = {"lease_until": until, "due_at": until, "claims": 0, "bytes_read": bytes_read, "blank_until": read_to}
    kept = services.ledger.update_leased_job(job, changes)
    if kept is None:
        raise LeaseLostError(job.job_id)
    return kept


def _write_status(services: Services, job: Job, status_at: float) -> float:
    """Write how far the upload has been read, every ten seconds; return when that was last done."""
    now = services.now()
    if now < status_at + STATUS_EVERY_SECONDS:
        return status_at
    write_status(services, job, _status(job))
    return now


def _status(job: Job) -> dict[str, Any]:
    return build_status(job, job.told_succeeded, job.told_failed, None)


def _gap_error(job: Job) -> UploadError:
    """One endless line, or blank lines compressed a thousandfold: each turn would read them again, forever."""
    return UploadError(
        "unknown_format" if job.plan.packing == "plain" else "broken_archive",
        f"More than {MAX_BYTES_WITHOUT_BATCH >> 20:,} MB of the upload's content in a row did not complete a batch. "
        "Upload JSON Lines, one request per line, without long stretches of blank or broken lines.",
    )


def _check_time(job: Job, place: Checkpoint, remaining: Callable[[], float], wanted: float) -> None:
    """Check that a turn's first batch has time; called while what is before its end is read.

    Args:
        job: as leased.
        place: where the turn began.
        remaining: seconds this invocation has left.
        wanted: seconds that must be left.

    Raises:
        StorageError: fewer are left; the next turn may be faster.
        UploadError: `broken_archive`: fewer were left in several turns in a row.
    """
    if remaining() > wanted:
        return
    if job.claims < SKIP_TRIES or job.plan.packing == "plain":  # What is not packed is not read again: S3 was slow.
        raise StorageError(f"job {job.job_id}: no time left after {place.offset} unpacked bytes")
    raise UploadError(
        "broken_archive",
        f"The archive is too large: to continue after {place.offset:,} unpacked bytes, a function would have to "
        f"unpack it for longer than it may run. Records from {place.record:,} on were not read. Upload these in their "
        "own archive, or upload everything unpacked or as several archives.",
    )
