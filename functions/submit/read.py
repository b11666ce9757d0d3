"""Read: an upload's pinned version, in turns, as unpacked blocks and as cuts; flat memory.

One invocation leases the job and reads for a minute, an archive for as long as it can; the next
turn continues at the end of the last batch. So the largest upload is read by functions that may
only run for minutes, and one that dies costs seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import Reader
from dropbatch.core.names import JobState
from dropbatch.core.options import Options
from dropbatch.core.plan import Checkpoint, check_model, check_path
from dropbatch.core.read import cut
from dropbatch.core.read.cut import RANGE_BYTES, Cut, gap_error, read_batches
from dropbatch.core.read.unpack import decompress
from functions.submit.objects import load_for
from functions.submit.options import pin_plan, pinned_options, reader_for
from functions.submit.upload import TURN_LEASE_SECONDS, wait_or_fail
from shared.aws.object_store import ObjectStore
from shared.errors import LeaseLostError, RefusedError, StorageError, UploadDeniedError
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


Stored = Callable[[int, Executor | None], Iterator[bytes]]
"""What reads the stored bytes of an upload from an offset on, perhaps ahead in a thread."""


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
    options: Options | None = None  # if they are known
    is_new: bool = False  # whether this invocation created the job
    whole: bytes | None = None  # a small upload, once it is read

    @property
    def services(self) -> Services:
        """The process's clients and settings."""
        return self.invocation.services

    def plan(self) -> None:
        """Pin the job's plan."""
        check_path(self.job.upload.key)
        if self.job.plan.form:
            return
        options = self.options or pinned_options(self.services, self.job)

        def check() -> None:
            self._check_time(DETECT_RESERVE_SECONDS)

        self.job, self.options = pin_plan(self.services, self.job, options, self.stored(), check)

    def begin(self, place: Checkpoint) -> None:
        """Begin to read at a place; the turn's time runs from now on."""
        self.reader = reader_for(self.services, self.job, self.options)
        longest = TURN_SECONDS if self.job.plan.packing == "plain" else math.inf
        self.ends = self.services.now() + min(
            longest, self.invocation.seconds_left - STAGE_RESERVE_SECONDS
        )
        self.begun = self.place = place

    def read(self, place: Checkpoint, number: int, thread: Executor | None = None) -> Iterator[Cut]:
        """The upload's cuts from a place on, up to the turn's end; at least one."""
        job = self.job
        unpacked = read_decompressed(self.stored, job.plan.packing, place.offset, self, thread)
        blocks = self.blocks(unpacked)
        load = load_for(self.services, job.upload)
        return self.cuts(read_batches(job.plan, place, number, blocks, self.reader, load))

    def stored(self, start: int = 0, thread: Executor | None = None) -> Iterator[bytes]:
        """The stored bytes from an offset on; those of a small upload are read once."""
        store, upload = self.services.store, self.job.upload
        if upload.size > RANGE_BYTES:
            yield from read_stored(store, upload, start, thread)
            return
        if self.whole is None:
            self.whole = b"".join(read_stored(store, upload))
        if start < upload.size:
            yield self.whole[start:] if start else self.whole

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


def take_turn(
    invocation: Invocation,
    job: Job,
    read: Callable[[Turn], None],
    options: Options | None = None,
) -> None:
    """Have the upload of a leased job read for one turn, from where the last one ended.

    `options`: if the job was created just now.
    """
    turn = Turn(invocation, job, options=options, is_new=options is not None)
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


@contextmanager
def count_failures(services: Services, job_id: str, number: str = "") -> Iterator[None]:
    """Count an error before an item was claimed as a claim: its message would fail forever."""
    try:
        yield
    except Exception as error:
        with suppress(StorageError):
            if isinstance(error, RefusedError) and (job := services.ledger.job(job_id)):
                show_denied(services, replace(job, lease_until=0.0), error)
        now = services.now()
        if found := services.ledger.unclaimed(job_id, number, now):
            due, claims = found
            again_at = now + retry_seconds(claims)
            if services.ledger.set_aside(due, claims + 1, again_at):
                services.left.look(again_at, job_id, number)
            report_stuck(claims + 1, job_id, number)
        raise


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
    stored: Stored, packing: str, start: int, watch: Turn, thread: Executor | None = None
) -> Iterator[bytes]:
    """The unpacked bytes from an offset on; in an archive, all before is read and skipped."""
    is_plain = packing == "plain"
    begin, ahead = (start, 0) if is_plain else (0, start)

    def check() -> None:
        watch.check(skipping=ahead > 0)

    for block in decompress(packing, _watched(stored(begin, thread), begin, watch), check):
        if is_plain:
            check()
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
