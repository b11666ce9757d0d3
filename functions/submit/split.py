"""Split: the upload is read once, batch by batch staged and written down. Safe to die anywhere and to run twice.

For each batch: the staged object first (write-once), the item second (a create), the message third. A run that dies
between them is made good by the next: the object is found there, the item's `due_at` stands for the message. There is
no other checkpoint: split resumes behind the last batch item.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from functions.submit.cut import cut
from functions.submit.jobs import LEASE_SECONDS, is_model
from functions.submit.reading import look, unpacked_blocks
from shared import keys
from shared.errors import LawBrokenError, LeaseLostError, StorageError, UploadError
from shared.observability import count, logger
from shared.patience import LAST_CLAIM, alarm_if_stuck, wait_for
from shared.queues import PROMPT_BATCHES, SUBMIT_GRACE, AskMessage, BatchMessage
from shared.sidecar import Staged, encode_rows
from shared.words import Batch, BatchState, Fault, Job, JobState, Place, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from functions.submit.cut import Cut
    from shared.services import Services

MOST_BARREN = 4 << 30
"""Unpacked bytes without the end of a batch: far more than 500 requests are, and read well within one turn."""

TURN_SECONDS = 60.0
"""How long one run splits before it gives up its turn; an archive, which each turn reads anew, as long as it can."""
KEPT_SECONDS = 30.0
"""Time a run keeps to stage its last batch and to give the job back."""
LOOK_KEPT_SECONDS = 10.0
"""Time kept while an archive's beginning is looked at, to give the job back."""
SKIP_KEPT_SECONDS = 45.0
"""Time that must be left when an archive has been passed over to where the last turn ended: for progress."""
SKIP_TRIES = 3
"""Turns in a row that fail at that, after which the archive is too large."""

KEEP_EVERY, KEPT_FOR = 5.0, 45.0
"""Seconds between two renewals of a run's lease, and how long each holds: a run that dies is gone on with so soon."""


def split(services: Services, job: Job, *, leased: bool, remaining: Callable[[], float]) -> None:
    """Split a job's upload, or go on with it, for one turn.

    Args:
        services: all there is.
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
        claimed = services.ledger.lease_job(job, now, now + wait_for(job.claims, LEASE_SECONDS))
        if claimed is None:
            return
        job = claimed
        alarm_if_stuck(job.claims, job.job_id)
    error: Fault | None = job.error
    if error is None and job.claims > LAST_CLAIM:
        error = Fault("internal", "Dropbatch could not read the upload to its end; the submit function's log says why.")
    place = Place()
    try:
        if error is None:
            job = _planned(services, job, remaining)
            job, place, finished = _stage(services, job, remaining)
            if not finished:
                services.ledger.release_job(job, services.now())
                return
        else:
            place = _resume_place(services, job)
    except UploadError as fault:
        logger.warning("upload failed", job_id=job.job_id, code=fault.code)
        error, place = Fault(fault.code, fault.message), _resume_place(services, job)
    except LeaseLostError:
        logger.info("lease lost", job_id=job.job_id)
        return
    if services.ledger.end_split(job, place.record, error, services.now()):
        logger.info("upload read to its end", job_id=job.job_id, records=place.record)


def _planned(services: Services, job: Job, remaining: Callable[[], float]) -> Job:
    """The job with what its upload looks like, pinned."""
    if len(job.upload.key.removeprefix(keys.INBOX).encode()) > keys.LONGEST_PATH:
        raise UploadError(
            "path_too_long",
            f"The path under inbox/ has more than {keys.LONGEST_PATH} bytes. Upload it under a shorter key.",
        )
    if job.plan.form:
        return job
    packing, form, start = look(
        services.store, job.upload, partial(_check_time, job, Place(), remaining, LOOK_KEPT_SECONDS)
    )
    planned = replace(job, plan=replace(job.plan, packing=packing, form=form, start=start))
    return services.ledger.note_plan(planned) or planned


def _resume_place(services: Services, job: Job) -> Place:
    last = services.ledger.last_batch(job.job_id)
    if last is None:
        return Place(job.plan.start)
    if last.end is None:
        raise LawBrokenError(f"the last batch of job {job.job_id} has no end")
    return last.end


class TurnOverError(Exception):
    """The turn's time ended between two batches; never leaves this module."""


@dataclass(slots=True)
class Turn:
    """How far one run has got.

    Attributes:
        ends: when it gives up its turn.
        begun: where it began.
        place: behind its last batch.
        barren: unpacked bytes since then.
    """

    ends: float
    begun: Place
    place: Place
    barren: int = 0


def _stage(services: Services, job: Job, remaining: Callable[[], float]) -> tuple[Job, Place, bool]:
    """Stage batches from the last one on: where it got to, and whether the upload was read to its end.

    Raises:
        LeaseLostError: another run goes on in this one's place.
    """
    longest = TURN_SECONDS if job.plan.packing == "plain" else math.inf
    kept_at = 0.0
    last = services.ledger.last_batch(job.job_id)
    number = int(last.number[:8]) + 1 if last else 0
    place = _resume_place(services, job)
    turn = Turn(services.now() + min(longest, remaining() - KEPT_SECONDS), place, place)
    check = partial(_check_turn, services, job, turn, remaining)
    try:
        while True:
            blocks = unpacked_blocks(services.store, job.upload, job.plan, turn.place.offset, check)
            for piece in cut(job.plan, turn.place, number, _fertile(job, turn, blocks)):
                turn.barren = 0
                _check_model(job.plan.model)
                if turn.place != turn.begun and services.now() >= kept_at + KEEP_EVERY:
                    kept_at = services.now()
                    job = _kept(services, job, kept_at)
                known = _write_down(services, job, number, piece)
                number += 1
                turn.place = known.end or piece.end
                if services.now() > turn.ends:
                    return job, turn.place, False
                if turn.place != piece.end:
                    break  # the batch that is there ends elsewhere: go on from its end
            else:
                return job, turn.place, True
    except TurnOverError:
        return job, turn.place, False


def _fertile(job: Job, turn: Turn, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, as long as batches come of them."""
    for block in blocks:
        turn.barren += len(block)
        if turn.barren > MOST_BARREN:
            raise _barren(job)
        yield block


def _check_turn(services: Services, job: Job, turn: Turn, remaining: Callable[[], float], *, skipping: bool) -> None:
    """Called for each piece of an archive, of which nothing may come out for long.

    Raises:
        TurnOverError: the time is over, and there are batches to go on from.
        StorageError: there is not enough time for the turn's first batch.
        UploadError: there was not enough several turns in a row.
    """
    if turn.place == turn.begun:
        _check_time(job, turn.place, remaining, SKIP_KEPT_SECONDS if skipping else KEPT_SECONDS)
    elif services.now() > turn.ends:
        raise TurnOverError


def _kept(services: Services, job: Job, now: float) -> Job:
    until = now + KEPT_FOR
    kept = services.ledger.move_job(job, {"lease_until": until, "due_at": until, "claims": 0})
    if kept is None:
        raise LeaseLostError(job.job_id)
    return kept


def _barren(job: Job) -> UploadError:
    """Blank lines or one endless line, packed a thousandfold perhaps: else each turn would read them anew, for ever."""
    return UploadError(
        "unknown_format" if job.plan.packing == "plain" else "broken_archive",
        f"Over {MOST_BARREN >> 20:,} MB of the upload's content running end no batch of requests. "
        "Upload JSON Lines, one request a line, without long stretches of blank or broken lines.",
    )


def _check_time(job: Job, place: Place, remaining: Callable[[], float], wanted: float) -> None:
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


def _write_down(services: Services, job: Job, number: int, piece: Cut) -> Batch:
    """Object, item, message. Returns the batch as the ledger holds it, whoever wrote it."""
    name = f"{number:08d}"
    staged = piece.staged
    key = keys.staged(job.job_id, name)
    if not services.store.put_once(key, piece.body + encode_rows(piece.rows), staged.metadata()):
        there = services.store.head(key)
        if there is None:
            raise StorageError(f"{key} was there and is gone")
        staged = Staged.of(there.metadata)
    now = services.now()
    turn = _turn(services, job, number)
    prompt = staged.sendable > 0 and turn <= now
    batch = Batch(
        job_id=job.job_id,
        number=name,
        state=BatchState.READY,
        first_id=piece.first_id,
        requests=staged.requests,
        sendable=staged.sendable,
        body_size=staged.body_size,
        created_at=now,
        end=staged.end,
        due_at=now + SUBMIT_GRACE if prompt else turn if staged.sendable else now,
        work=Work.SUBMIT if staged.sendable else Work.POLL,
        ending=None if staged.sendable else Fault("internal", "no record of this batch could be sent"),
    )
    if services.ledger.create_batch(batch) is None:
        known = services.ledger.batch(job.job_id, name)
        if known is None:
            raise LawBrokenError(f"batch {job.job_id}/{name} was there and is gone")
        return known
    count("BatchesCut")
    count("RecordsIn", batch.requests)
    if prompt:
        services.queues.send(BatchMessage(job.job_id, name))
    elif not staged.sendable and number < PROMPT_BATCHES:
        services.queues.send(AskMessage(((job.job_id, name),)))
    return batch


def _turn(services: Services, job: Job, number: int) -> float:
    """When a batch's turn is: the first of a job at once, others at the submit rate: a large job hides no small one."""
    budget = services.budget
    ahead = max(number - budget.burst // 2, 0)
    return job.created_at + ahead * 2 * budget.interval / 1000
