"""Split: the upload is read once, batch by batch staged and written down. Safe to die anywhere and to run twice.

For each batch: the staged object first (write-once), the item second (a create), the message third. A run that dies
between them is made good by the next: the object is found there, the item's `due_at` stands for the message. There is
no other checkpoint: split resumes behind the last batch item. So items are created in order, while the objects of
several batches are put at the same time (`functions.submit.stage_batches`).
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from functions.submit.create_job import LEASE_SECONDS, is_model
from functions.submit.records.cut import cut
from functions.submit.records.stream import detect, read_decompressed
from functions.submit.stage_batches import MAX_PUTS, put_ahead, settle
from shared import s3_keys as keys
from shared.aws.queues import FAST_START_BATCHES, SUBMIT_GRACE_SECONDS, PollMessage, SubmitMessage
from shared.claims import MAX_CLAIMS, claim_seconds, report_stuck
from shared.errors import InvariantError, LeaseLostError, StorageError, UploadError
from shared.job_status import JSON_TYPE, build_status, encode_status
from shared.models import Batch, BatchState, Checkpoint, DueKind, ErrorDetail, Job, JobState
from shared.observability import count, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from functions.submit.records.cut import Cut
    from functions.submit.stage_batches import StagedAhead
    from shared.bootstrap import Services

MAX_BYTES_WITHOUT_BATCH = 4 << 30
"""Unpacked bytes without the end of a batch: far more than 500 requests are, and read well within one turn."""

TURN_SECONDS = 60.0
"""How long one run splits before it gives up its turn; an archive, which each turn reads anew, as long as it can."""
RESERVE_SECONDS = 30.0
"""Time a run keeps to stage its last batch and to give the job back."""
DETECT_RESERVE_SECONDS = 10.0
"""Time kept while an archive's beginning is looked at, to give the job back."""
SKIP_RESERVE_SECONDS = 45.0
"""Time that must be left when an archive has been passed over to where the last turn ended: for progress."""
SKIP_TRIES = 3
"""Turns in a row that fail at that, after which the archive is too large."""

STATUS_EVERY_SECONDS = 10.0
"""Seconds between two writes of `status.json` while an upload is read."""
RENEW_EVERY_SECONDS, LEASE_RENEWAL_SECONDS = 5.0, 45.0
"""Seconds between two renewals of a run's lease, and how long each holds: a run that dies is gone on with so soon."""


def split(services: Services, job: Job, *, leased: bool, remaining: Callable[[], float]) -> None:
    """Split a job's upload, or go on with it, for one turn.

    Args:
        services: the process's clients and settings.
        job: as read or created just now.
        leased: whether this invocation created the job, and with it its lease.
        remaining: seconds this invocation has left.

    Raises:
        StorageError: a service refused or broke off; the job's `due_at` brings it up again.
    """
    if job.state is not JobState.SPLITTING:
        return
    if not leased:
        now = services.now()
        claimed = services.ledger.lease_job(job, now, now + claim_seconds(job.claims, LEASE_SECONDS))
        if claimed is None:
            return
        job = claimed
        report_stuck(job.claims, job.job_id)
    error: ErrorDetail | None = job.error
    if error is None and job.claims > MAX_CLAIMS:
        error = ErrorDetail(
            "internal", "Dropbatch could not read the upload to its end; the submit function's log says why."
        )
    place = Checkpoint()
    try:
        if error is None:
            job = _pin_plan(services, job, remaining)
            job, place, finished = _stage(services, job, remaining)
            if not finished:
                services.ledger.release_job(job, services.now())
                return
        else:
            place = _checkpoint(services, job)
    except UploadError as fault:
        logger.warning("upload failed", job_id=job.job_id, code=fault.code)
        error, place = ErrorDetail(fault.code, fault.message), _checkpoint(services, job)
    except LeaseLostError:
        logger.info("lease lost", job_id=job.job_id)
        return
    if services.ledger.end_split(job, place.record, error, services.now()):
        logger.info("upload read to its end", job_id=job.job_id, records=place.record)


def _pin_plan(services: Services, job: Job, remaining: Callable[[], float]) -> Job:
    """The job with what its upload looks like, pinned."""
    if len(job.upload.key.removeprefix(keys.INBOX).encode()) > keys.MAX_PATH_BYTES:
        raise UploadError(
            "path_too_long",
            f"The path under inbox/ has more than {keys.MAX_PATH_BYTES} bytes. Upload it under a shorter key.",
        )
    if job.plan.form:
        return job
    packing, form, start = detect(
        services.store, job.upload, partial(_check_time, job, Checkpoint(), remaining, DETECT_RESERVE_SECONDS)
    )
    planned = replace(job, plan=replace(job.plan, packing=packing, form=form, start=start))
    return services.ledger.pin_plan(planned) or planned


def _checkpoint(services: Services, job: Job) -> Checkpoint:
    last = services.ledger.last_batch(job.job_id)
    if last is None:
        return Checkpoint(job.plan.start)
    if last.end is None:
        raise InvariantError(f"the last batch of job {job.job_id} has no end")
    return last.end


class TurnOverError(Exception):
    """The turn's time ended between two batches; never leaves this module."""


@dataclass
class _Turn:
    """Watches what is read and cut in one turn, and ends it when its time is over.

    Attributes:
        ends: Unix seconds.
        begun: where it began.
        place: behind the last batch cut.
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
        """So many stored bytes of the upload have been read."""
        self.bytes_read = stored

    def blocks(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The blocks, as long as a batch ends in them now and then."""
        for block in blocks:
            self.barren += len(block)
            if self.barren > MAX_BYTES_WITHOUT_BATCH:
                raise _gap_error(self.job)
            yield block

    def cuts(self, cuts: Iterator[Cut]) -> Iterator[Cut]:
        """The cuts up to the turn's end; at least one."""
        self.finished = False
        try:
            for one in cuts:
                self.barren = 0
                self.place = one.end
                _check_model(self.job.plan.model)
                yield one
                if self.services.now() > self.ends:
                    return
        except TurnOverError:
            return
        self.finished = True


def _stage(services: Services, job: Job, remaining: Callable[[], float]) -> tuple[Job, Checkpoint, bool]:
    """Stage batches from the last one on: where it got to, and whether the upload was read to its end.

    Raises:
        LeaseLostError: another run goes on in this one's place.
    """
    longest = TURN_SECONDS if job.plan.packing == "plain" else math.inf
    kept_at = 0.0
    last = services.ledger.last_batch(job.job_id)
    number = int(last.number[:8]) + 1 if last else 0
    ordinal = _next_ordinal(services, last)
    begun = place = _checkpoint(services, job)
    told_at = services.now()
    outbox = _Outbox(services)
    turn = _Turn(services, job, services.now() + min(longest, remaining() - RESERVE_SECONDS), begun, begun)
    check = partial(_check_turn, services, job, turn, remaining)
    with ExitStack() as kept:
        threads, reader = ThreadPoolExecutor(MAX_PUTS), ThreadPoolExecutor(1)
        for pool in (threads, reader):
            kept.callback(pool.shutdown, cancel_futures=True)
        while True:
            blocks = read_decompressed(
                services.store, job.upload, job.plan, place.offset, check, reader, turn.note_read
            )
            cuts = turn.cuts(cut(job.plan, place, number, turn.blocks(blocks)))
            try:
                for candidate in put_ahead(services.store, threads, job.job_id, number, place, cuts):
                    if place != begun and services.now() >= kept_at + RENEW_EVERY_SECONDS:
                        kept_at = services.now()
                        job = _renew_lease(services, job, kept_at, max(job.bytes_read, turn.bytes_read))
                        told_at = _write_status(services, job, told_at)
                    known = _create_batch(services, job, candidate, ordinal, outbox)
                    place = known.end or candidate.end
                    number, ordinal = number + 1, ordinal + (known.sendable > 0)
                    if place != candidate.end:
                        break  # the batch that is there ends elsewhere: go on from its end
                else:
                    outbox.send()
                    return job, place, turn.finished
            except (UploadError, StorageError):
                outbox.send()
                raise


def _check_turn(services: Services, job: Job, turn: _Turn, remaining: Callable[[], float], *, skipping: bool) -> None:
    """Called for each piece of an archive, of which nothing may come out for long.

    Raises:
        TurnOverError: the time is over, and there are batches to go on from.
        StorageError: there is not enough time for the turn's first batch.
        UploadError: there was not enough several turns in a row.
    """
    if turn.place == turn.begun:
        _check_time(job, turn.place, remaining, SKIP_RESERVE_SECONDS if skipping else RESERVE_SECONDS)
    elif services.now() > turn.ends:
        raise TurnOverError


def _renew_lease(services: Services, job: Job, now: float, bytes_read: int) -> Job:
    until = now + LEASE_RENEWAL_SECONDS
    changes = {"lease_until": until, "due_at": until, "claims": 0, "bytes_read": bytes_read}
    kept = services.ledger.update_leased_job(job, changes)
    if kept is None:
        raise LeaseLostError(job.job_id)
    return kept


def _write_status(services: Services, job: Job, told_at: float) -> float:
    """Write how far the upload has been read, every ten seconds; when that was done last."""
    now = services.now()
    if now < told_at + STATUS_EVERY_SECONDS:
        return told_at
    status = build_status(job, job.told_succeeded, job.told_failed, None)
    services.store.put(
        keys.result(job.upload.key, job.job_id, "status.json"), encode_status(status, now), kind=JSON_TYPE
    )
    return now


def _gap_error(job: Job) -> UploadError:
    """Blank lines or one endless line, packed a thousandfold perhaps: else each turn would read them anew, for ever."""
    return UploadError(
        "unknown_format" if job.plan.packing == "plain" else "broken_archive",
        f"Over {MAX_BYTES_WITHOUT_BATCH >> 20:,} MB of the upload's content running end no batch of requests. "
        "Upload JSON Lines, one request a line, without long stretches of blank or broken lines.",
    )


def _check_time(job: Job, place: Checkpoint, remaining: Callable[[], float], wanted: float) -> None:
    """Called while an archive is unpacked before a turn's first batch: that batch needs time.

    Args:
        job: as leased.
        place: where the turn began.
        remaining: seconds this invocation has left.
        wanted: seconds that must be left.

    Raises:
        StorageError: there is less; perhaps S3 was slow, and the next turn is quicker.
        UploadError: `broken_archive`: there was less several turns in a row.
    """
    if remaining() > wanted:
        return
    if job.claims < SKIP_TRIES:
        raise StorageError(f"job {job.job_id}: no time left behind {place.offset} unpacked bytes")
    raise UploadError(
        "broken_archive",
        f"The archive is too large: to go on behind {place.offset:,} unpacked bytes it would have to be unpacked for "
        f"longer than a function may run. Records from {place.record:,} on were not read: pack these by themselves, "
        "or upload everything unpacked or as several archives.",
    )


def _check_model(model: str) -> None:
    """Asked only when there is a record: an empty upload needs no model.

    Raises:
        UploadError: `no_model` or `bad_model`.
    """
    if not model:
        raise UploadError(
            "no_model",
            "No model was named. Set object metadata x-amz-meta-model, upload under inbox/@cf/<author>/<model>/…, "
            "or give the stack a DefaultModel.",
        )
    if not is_model(model):
        raise UploadError(
            "bad_model",
            f"{model[:100]!r} is no model id. Write it as @cf/<author>/<model>, for instance @cf/baai/bge-m3.",
        )


class _Outbox:
    """Messages that send batches to submit: ten at a time, or after a second.

    Those that are lost with the process are made up for by the batches' `due_at`.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.messages: list[SubmitMessage] = []
        self.since = 0.0

    def add(self, message: SubmitMessage) -> None:
        """Send the message soon."""
        now = self.services.now()
        self.since = self.since if self.messages else now
        self.messages.append(message)
        if len(self.messages) == 10 or now - self.since >= 1:  # noqa: PLR2004 - SQS takes ten at a time
            self.send()

    def send(self) -> None:
        """Send what waits."""
        messages, self.messages = self.messages, []
        self.services.queues.send_all(messages)


def _create_batch(services: Services, job: Job, candidate: StagedAhead, ordinal: int, outbox: _Outbox) -> Batch:
    """Item and message of a batch whose object is there. Returns the batch as the ledger holds it, whoever wrote it."""
    number = candidate.number
    name = f"{number:08d}"
    staged = settle(services.store, candidate)
    now = services.now()
    turn = _turn(services, job, ordinal)
    prompt = staged.sendable > 0 and turn <= now
    batch = Batch(
        job_id=job.job_id,
        number=name,
        state=BatchState.READY,
        first_id=candidate.first_id,
        requests=staged.requests,
        sendable=staged.sendable,
        body_size=staged.body_size,
        created_at=now,
        end=staged.end,
        ordinal=ordinal,
        due_at=now + SUBMIT_GRACE_SECONDS if prompt else turn if staged.sendable else now,
        paused=max(turn - now, 0.0) if staged.sendable else 0.0,  # Its time to be accepted begins with its turn.
        work=DueKind.POLL if not staged.sendable else DueKind.SUBMIT if ordinal else DueKind.FIRST,
        ending=None if staged.sendable else ErrorDetail("internal", "no record of this batch could be sent"),
    )
    if services.ledger.create_batch(batch) is None:
        known = services.ledger.batch(job.job_id, name)
        if known is None:
            raise InvariantError(f"batch {job.job_id}/{name} was there and is gone")
        return known
    count("BatchesCut")
    count("RecordsIn", batch.requests)
    if prompt:
        outbox.add(SubmitMessage(job.job_id, name))
    elif not staged.sendable and number < FAST_START_BATCHES:
        services.queues.send(PollMessage(((job.job_id, name),)))
    return batch


def _next_ordinal(services: Services, last: Batch | None) -> int:
    """How many batches with a sendable record there are up to the last one."""
    if last is None:
        return 0
    number = last.number[:8]
    whole = services.ledger.batch(last.job_id, number) if number != last.number else last
    if whole is None or whole.ordinal is None:
        return int(number) + 1  # Written by a version that did not count: as if all were sendable.
    return whole.ordinal + (whole.sendable > 0)


def _turn(services: Services, job: Job, ordinal: int) -> float:
    """When a batch's turn is: the first of a job at once, others at the submit rate: a large job hides no small one."""
    budget = services.budget
    ahead = max(ordinal - budget.burst // 2, 0)
    return job.created_at + ahead * 2 * budget.interval / 1000
