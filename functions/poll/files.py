"""Result files: sections of final batches' parts are appended to write-once segments.

A mark in the job item holds the progress: every batch up to it is final, and its bytes are in
segments. Each step takes a bounded number of batches and bytes and ends in one conditional write,
so the work for a batch is the same in a job of any size, and the next visit continues from the
mark. Server-side copy requires 5 MiB for every piece but the last, and allows 10,000 pieces. So a
segment that is still too small is written again, longer, with the next step's bytes. The first step
of a table's file begins with its header.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, groupby
from typing import IO, Any, NamedTuple

import msgspec

from dropbatch.core import names
from functions.poll.result_lines import JSON_LINES, Kind, opening_of, result_file, unwritten_lines
from functions.poll.running_sha256 import RunningSha256, is_possible, unfinished_bytes
from shared import keys
from shared.errors import InvariantError, UnreadableItemError
from shared.job_status import PendingBatches, counted, iso_time
from shared.ledger import still_leased
from shared.models import Batch, BatchState, Job, JobTotals, Part, ResultFileProgress
from shared.observability import count_broken_law
from shared.pacing.waits import CALLS_DENIED
from shared.services import Services

SEGMENT_BYTES = 64 << 20  # Approximate bytes of parts that one step appends
MIN_COPY_BYTES = 8 << 20  # Bytes from which a segment is copied as it is; S3 requires 5 MiB
MIN_STEP_BATCHES, MAX_STEP_BATCHES = 100, 1_000  # Final batches that make a step, and most of one
SEGMENTS_BEFORE_DOUBLING = 2_000  # Then sizes double: 10,000 pieces are enough for 4 TB
PAGE_BATCHES = 100  # Batches read after a gap, to count those that are done
STEP_SECONDS = 45.0  # Time a run must have left to begin another step


@dataclass(frozen=True, slots=True)
class ReadyBatches:
    """The batches after a file's mark: enough for a step, or all there are."""

    leaves: list[Batch]  # final batches that follow the mark without a gap
    size: int  # bytes they add to the file; 0 for `batches`
    succeeded: int  # records that succeeded, including those up to the mark and some after a gap
    failed: int  # records that failed, likewise
    last: bool  # whether no other batch follows them
    pending: PendingBatches = field(default_factory=PendingBatches)  # of those that were read
    submitted: list[Batch] = field(default_factory=list)  # leaves and the divided before them
    for_capacity: int = 0  # the failed records that failed for lack of capacity or time

    def fills_a_step(self, job: Job) -> bool:
        """Whether they are enough for a step, although more will come."""
        enough = _grown(SEGMENT_BYTES, job.output)
        return len(self.leaves) >= MIN_STEP_BATCHES or self.size >= enough


def progress_of(job: Job, kind: Kind) -> ResultFileProgress:
    """How much of one of a job's result files has been appended."""
    progress: ResultFileProgress = getattr(job, kind)
    return progress


def next_final_batches(
    services: Services, job: Job, kind: Kind, page: int = PAGE_BATCHES
) -> ReadyBatches:
    """Read the batches after a mark; for files other than the output, up to the output's mark."""
    progress = progress_of(job, kind)
    succeeded, failed, size, covered = job.sums.succeeded, job.sums.failed, 0, progress.next_id
    leaves: list[Batch] = []
    divided: list[Batch] = []
    """Batches that were divided into those that follow them, not all of which are final yet."""
    submitted: list[Batch] = []
    contiguous, pending = True, PendingBatches()
    for_capacity = job.sums.for_capacity
    batches = services.ledger.batches(job.job_id, after=progress.mark, page_size=page)
    for seen, batch in enumerate(batches, 1):
        if batch.state is BatchState.DONE:
            if contiguous and (fault := _fault(batch, covered)):
                raise coverage_error(job, fault)
            part = _part(batch)
            succeeded += part.succeeded
            failed += part.failed
            for_capacity += part.for_capacity
            if contiguous:
                covered += batch.records.requests
                leaves.append(batch)
                size += _section(batch, kind)[1]
                submitted += (batch, *divided)
                divided.clear()
        elif batch.state is BatchState.DIVIDED:
            divided.append(batch)
        else:
            contiguous = False
            pending = pending.plus(batch)
        # Tested here and not before the next one, which may be on another page.
        if kind != "output" and batch.number == job.output.mark:
            break
        if (
            len(leaves) == MAX_STEP_BATCHES
            or size >= _grown(SEGMENT_BYTES, progress)
            or (seen >= page and not contiguous)
        ):
            contiguous = False
            break
    return ReadyBatches(
        leaves, size, succeeded, failed, contiguous, pending, submitted, for_capacity
    )


def readable(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches up to the first that cannot be read."""
    try:
        yield from batches
    except UnreadableItemError:
        return


def _fault(batch: Batch, expected: int) -> str:
    """Why a final batch does not follow the records before it; empty if it does."""
    if batch.part is None:
        return f"batch {batch.number} is done and names no part"
    first, lines = batch.records.first_id, batch.part.succeeded + batch.part.failed
    if first != expected or lines != batch.records.requests:
        return f"batch {batch.number} begins with record {first}, expected {expected}"
    return ""


def coverage_error(job: Job, message: str) -> InvariantError:
    """Count the error of batches that do not tile the upload, and return it to be raised."""
    count_broken_law()
    return InvariantError(f"job {job.job_id}: {message}")


def append_segment(
    services: Services, job: Job, kind: Kind, ahead: ReadyBatches, *, final: bool
) -> Job:
    """Write the next segment and advance the mark."""
    progress = progress_of(job, kind)
    step = _after(job, kind, ahead)
    with tempfile.TemporaryFile() as spool:
        if progress.growing:
            key = growing_key(job, kind, progress)
            spool.writelines(services.store.blocks(key, 0, progress.growing_size))
        digest = None
        if is_possible():
            digest = RunningSha256(progress.sha, _tail(services, job, kind, spool))
        opening = b"" if progress.mark else opening_of(services.store, job, kind)
        for block in chain([opening], _read_sections(services, job, kind, ahead.leaves)):
            if digest:
                digest.update(block)
            spool.write(block)
        length = spool.tell()
        if length > progress.growing_size:
            size = progress.size + length - progress.growing_size
            sha = digest.state() if digest else ""
            step = step._replace(progress=replace(step.progress, size=size, sha=sha))
            if final and not has_segments(progress):
                # A file of one piece holds every batch there is: any run writes the same bytes.
                spool.seek(0)
                put_file(services, job, kind, spool)
            else:
                step = _put_segment(services, job, kind, spool, step)
    changes: dict[str, object] = {kind: step.progress}
    if kind == "output":
        changes["sums"] = step.sums
    if job.wait and job.wait.code == CALLS_DENIED:  # Its next status no longer shows it.
        changes |= {"wait": None, "status": replace(job.status, sha="")}
    return still_leased(services.ledger.note_appended(job, changes), job.job_id)


def _tail(services: Services, job: Job, kind: Kind, growing: IO[bytes]) -> bytes:
    """The last bytes appended, which fill no block of the digest: no item stores them."""
    progress = progress_of(job, kind)
    wanted = unfinished_bytes(progress.size)
    growing.seek(max(progress.growing_size - wanted, 0))
    tail = growing.read()
    for ordinal in reversed(range(progress.segments)):
        if len(tail) == wanted:
            break
        key = keys.segment(job.job_id, kind, ordinal)
        stored = services.store.existing(key)
        take = min(stored.size, wanted - len(tail))
        tail = services.store.get(key, stored.size - take, take) + tail
    return tail


class Step(NamedTuple):
    """A file's progress and its job's sums after one more segment."""

    progress: ResultFileProgress
    sums: JobTotals


def _after(job: Job, kind: Kind, ahead: ReadyBatches) -> Step:
    """Mark, lines and sums after these batches are appended, without sizes and digest."""
    progress, sums = progress_of(job, kind), job.sums
    lines, next_id = progress.lines, progress.next_id
    for batch in ahead.leaves:
        part = _part(batch)
        next_id += batch.records.requests
        lines += {
            "output": batch.records.requests,
            "errors": part.failed,
            "retry": part.retry_lines,
            "batches": 1,
        }[kind]
    if kind == "output":
        sums = reduce(counted, ahead.submitted, sums)
    return Step(replace(progress, mark=ahead.leaves[-1].number, next_id=next_id, lines=lines), sums)


def _put_segment(services: Services, job: Job, kind: Kind, spool: IO[bytes], step: Step) -> Step:
    """Write a segment once; one that an earlier run wrote counts, and the progress in it."""
    length, moved = spool.tell(), step.progress
    spool.seek(0)
    if length < _grown(MIN_COPY_BYTES, moved):
        moved = replace(moved, growing=moved.growing + 1, growing_size=length)
        key = growing_key(job, kind, moved)
    else:
        key = keys.segment(job.job_id, kind, moved.segments)
        moved = replace(moved, segments=moved.segments + 1, growing=0, growing_size=0)
    step = step._replace(progress=moved)
    metadata = {"progress": msgspec.json.encode(step).decode()}
    if services.store.put_if_absent(key, spool, metadata, kind=JSON_LINES):
        return step
    return msgspec.json.decode(services.store.existing(key).metadata["progress"], type=Step)


def _read_sections(
    services: Services, job: Job, kind: Kind, leaves: list[Batch]
) -> Iterator[bytes]:
    if kind == "batches":
        yield from (msgspec.json.encode(batch_entry(batch)) + b"\n" for batch in leaves)
        return
    for is_written, batches in groupby(leaves, lambda batch: bool(_part(batch).key)):
        if is_written:
            yield from services.store.sections(
                (_part(batch).key, *_section(batch, kind)) for batch in batches
            )
        else:
            yield from unwritten_lines(services, job, batches, kind)


def batch_entry(batch: Batch) -> dict[str, Any]:
    """A batch as the manifest and `batches.jsonl` list it."""
    last = batch.submission
    return {
        "number": batch.number,
        "first_id": batch.records.first_id,
        "requests": batch.records.requests,
        "request_id": last.request_id or None if last else None,
        "submitted_at": iso_time(last.at) if last else None,
        "completed_at": iso_time(batch.completed_at),
        "polls": batch.polls,
        "attempts": max(batch.submits, min(batch.attempt, 1)),
        "given_up_ids": batch.given_up,
        "unknowable_submits": batch.unknowable,
    }


def _section(batch: Batch, kind: Kind) -> tuple[int, int]:
    """Where a file's section is in a batch's part: offset and bytes."""
    part = _part(batch)
    return {
        "output": (0, part.output),
        "errors": (part.output, part.errors),
        "retry": (part.output + part.errors, part.retry),
        "batches": (0, 0),
    }[kind]


def _part(batch: Batch) -> Part:
    if batch.part is None:
        raise InvariantError(f"batch {batch.job_id}/{batch.number} is done and names no part")
    return batch.part


def growing_key(job: Job, kind: Kind, progress: ResultFileProgress) -> str:
    """Key of the segment that is still too small to be copied."""
    return keys.segment(job.job_id, kind, progress.segments, progress.growing)


def has_segments(progress: ResultFileProgress) -> bool:
    """Whether anything of a file is in segments."""
    return progress.segments > 0 or progress.growing > 0


def _grown(size: int, progress: ResultFileProgress) -> int:
    return size << progress.segments // SEGMENTS_BEFORE_DOUBLING


def file_key(job: Job, kind: Kind) -> str:
    """Key of a result file."""
    return names.result(job.upload.key, job.job_id, result_file(job, kind).name)


def file_metadata(job: Job, kind: Kind) -> dict[str, str]:
    """A retry file names its model and job: its copy in `inbox/` tries its records again."""
    return {"model": job.plan.model, "retry-of": job.job_id} if kind == "retry" else {}


def put_file(services: Services, job: Job, kind: Kind, content: bytes | IO[bytes]) -> None:
    """Put a whole result file once."""
    content_type = result_file(job, kind).content_type
    services.store.put_if_absent(
        file_key(job, kind), content, file_metadata(job, kind), kind=content_type
    )
