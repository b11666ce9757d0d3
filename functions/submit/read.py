"""Read: an upload's pinned version, in turns, as unpacked blocks and as cuts; flat memory.

One invocation leases the job and reads for a minute, an archive for as long as it can; the next
turn continues at the end of the last batch. So the largest upload is read by functions that may
only run for minutes, and one that dies costs seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import Reader
from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint, SplitPlan, check_model, check_path
from dropbatch.core.read import cut
from dropbatch.core.read.cut import RANGE_BYTES, Cut, gap_error, read_batches
from dropbatch.core.read.unpack import decompress
from functions.submit.objects import load_for
from functions.submit.options import pin_plan, reader_for
from functions.submit.upload import TURN_LEASE_SECONDS, wait_or_fail
from shared.aws.object_store import ObjectStore
from shared.errors import LeaseLostError, StorageError, UploadDeniedError
from shared.models import Job, Upload
from shared.observability import logger, report_stuck
from shared.pacing.waits import show_denied
from shared.retry import CLAIMS_BEFORE_ALARM, claim_seconds, retry_seconds
from shared.services import Invocation, Services

TURN_SECONDS = 60.0
"""How long a run reads; an archive, which each turn reads again, as long as it can."""
STAGE_RESERVE_SECONDS = 30.0
"""Kept to stage the last batch and to release the job."""
DETECT_RESERVE_SECONDS = 10.0
"""Kept while an archive's beginning is read, to release the job."""
SKIP_RESERVE_SECONDS = 45.0
"""Must be left when an archive has been skipped to where the last turn ended, to make progress."""
SKIP_TRIES = 3
"""Turns in a row without that time, after which the archive counts as too large."""


class TurnOverError(Exception):
    """The turn's time ended between two batches; never leaves this module."""


@dataclass(slots=True)
class Turn:
    """One turn, whose lease this run holds."""

    invocation: Invocation
    job: Job
    reader: Reader | None = None
    ends: float = 0.0  # Unix seconds
    begun: Checkpoint = field(default_factory=Checkpoint)
    place: Checkpoint = field(default_factory=Checkpoint)  # end of the last batch cut
    bytes_without_batch: int = 0  # unpacked, since then
    bytes_read: int = 0  # stored
    finished: bool = False

    @property
    def services(self) -> Services:
        """The process's clients and settings."""
        return self.invocation.services

    def plan(self) -> None:
        """Pin the job's plan."""
        check_path(self.job.upload.key)
        stored = read_stored(self.services.store, self.job.upload)
        self.job = pin_plan(
            self.services, self.job, stored, lambda: self._check_time(DETECT_RESERVE_SECONDS)
        )

    def begin(self, place: Checkpoint) -> None:
        """Begin to read at a place; the turn's time runs from now on."""
        self.reader = reader_for(self.services, self.job)
        longest = TURN_SECONDS if self.job.plan.packing == "plain" else math.inf
        self.ends = self.services.now() + min(
            longest, self.invocation.seconds_left - STAGE_RESERVE_SECONDS
        )
        self.begun = self.place = place

    def read(self, place: Checkpoint, number: int, thread: Executor | None = None) -> Iterator[Cut]:
        """The upload's cuts from a place on, up to the turn's end; at least one."""
        job, store = self.job, self.services.store
        blocks = self.blocks(
            read_decompressed(store, job.upload, job.plan, place.offset, self, thread)
        )
        load = load_for(self.services, job.upload)
        return self.cuts(read_batches(job.plan, place, number, blocks, self.reader, load))

    def blocks(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The blocks, as long as batches end in them now and then."""
        for block in blocks:
            self.bytes_without_batch += len(block)
            if self.bytes_without_batch > cut.MAX_BYTES_WITHOUT_BATCH:
                raise gap_error(self.job.plan.packing)
            yield block

    def cuts(self, cuts: Iterator[Cut]) -> Iterator[Cut]:
        """The cuts up to the turn's end; at least one."""
        self.finished = False
        try:
            for one in cuts:
                self.place = one.end
                check_model(self.job.plan.model)
                self.bytes_without_batch = 0
                yield one
                if self.services.now() > self.ends:
                    return
        except TurnOverError:
            return
        self.finished = True

    def check(self, *, skipping: bool) -> None:
        """Check the time; called for each block, and for each piece of an archive."""
        if self.place == self.begun:
            self._check_time(SKIP_RESERVE_SECONDS if skipping else STAGE_RESERVE_SECONDS)
        elif self.services.now() > self.ends:
            raise TurnOverError

    def _check_time(self, wanted: float) -> None:
        """Check that the turn's first batch has time: if not, the next turn may be faster."""
        if self.invocation.seconds_left > wanted:
            return
        job, place = self.job, self.begun
        # What is not packed is not read again: S3 was slow.
        if job.claims < SKIP_TRIES or job.plan.packing == "plain":
            read = f"{place.offset} unpacked bytes"
            raise StorageError(f"job {job.job_id}: no time left after {read}")
        raise UploadRefused(
            "broken_archive",
            f"The archive is too large: to continue after {place.offset:,} unpacked bytes, a "
            "function would have to unpack it for longer than it may run. Records from "
            f"{place.record:,} on were not read. Upload these in their own archive, or upload "
            "everything unpacked or as several archives.",
        )


# ── leases ────────────────────────────────────────────────────────────────────────────────────────


def take_turn(invocation: Invocation, job: Job, read: Callable[[Turn], None]) -> None:
    """Have the upload of a leased job read for one turn, from where the last one ended."""
    turn = Turn(invocation, job)
    try:
        try:
            read(turn)
        except UploadDeniedError as denied:
            if failed := wait_or_fail(invocation.services, turn.job, denied):
                turn = Turn(invocation, failed)
                read(turn)
    except LeaseLostError:
        logger.info("lease lost", job_id=job.job_id)
    except StorageError as error:
        show_denied(invocation.services, turn.job, error)
        _give_back_lease(invocation.services, turn.job)
        raise


def lease_turn(services: Services, job: Job) -> Job | None:
    """Lease a job for a turn; None if another run reads its upload, or it need not be read on."""
    if job.state is not JobState.SPLITTING:
        return None
    now = services.now()
    until = now + claim_seconds(job.claims, TURN_LEASE_SECONDS)
    try:
        claimed = services.ledger.lease_job(job, now, until)
    except StorageError:
        _give_back_lease(services, replace(job, lease_until=until))  # It may have been written.
        raise
    if claimed:
        report_stuck(claimed.claims, claimed.job_id)
    return claimed


def _give_back_lease(services: Services, job: Job) -> None:
    """Release a turn that an AWS service has failed: nobody waits, but the claim counts."""
    # Later the lease is kept: messages that come again must not use up its tries.
    if job.claims < CLAIMS_BEFORE_ALARM:
        services.ledger.retry_job(job, services.now() + retry_seconds(job.claims), job.claims)


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────


def read_stored(
    store: ObjectStore, upload: Upload, start: int = 0, thread: Executor | None = None
) -> Iterator[bytes]:
    """The stored bytes of an upload's version from an offset on; raises `UploadRefused`.

    A thread reads ahead from the second block on: the first is often enough. The caller owns it:
    the garbage collector may close a generator, and must not wait for threads.
    """
    source = store if upload.source_key is None else store.in_bucket(upload.bucket)

    def read(offset: int) -> bytes:
        return source.read_version(
            upload.object_key,
            upload.version,
            upload.etag,
            offset,
            min(RANGE_BYTES, upload.size - offset),
        )

    if start < upload.size:
        yield read(start)
    offsets = range(start + RANGE_BYTES, upload.size, RANGE_BYTES)
    if thread is None or not offsets:
        yield from map(read, offsets)
        return
    following = thread.submit(read, offsets[0])
    for offset in offsets[1:]:
        block = following.result()
        following = thread.submit(read, offset)
        yield block
    yield following.result()


def read_decompressed(
    store: ObjectStore,
    upload: Upload,
    plan: SplitPlan,
    start: int,
    watch: Turn,
    thread: Executor | None = None,
) -> Iterator[bytes]:
    """The unpacked bytes from an offset on; in an archive, all before is read and skipped."""
    if plan.packing == "plain":
        for block in _watched(read_stored(store, upload, start, thread), start, watch):
            watch.check(skipping=False)
            yield block
        return
    ahead = start

    def check_piece() -> None:
        watch.check(skipping=ahead > 0)

    stored = _watched(read_stored(store, upload, thread=thread), 0, watch)
    for block in decompress(plan.packing, stored, check_piece):
        if ahead >= len(block):
            ahead -= len(block)
            continue
        yield block[ahead:] if ahead else block
        ahead = 0


def _watched(blocks: Iterator[bytes], read: int, watch: Turn) -> Iterator[bytes]:
    for block in blocks:
        read += len(block)
        watch.bytes_read = read
        yield block
