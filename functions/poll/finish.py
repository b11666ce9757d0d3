"""Finish: the parts of a job are joined, in order, into its result files; the manifest is written last.

Linear in batches: for each result file the job item holds a mark, below which every batch is final and its lines are in
write-once segments. One conditional write moves a mark on. At the end the segments are joined by server-side copy. The
tiling law is checked on the way: the batches taken in must cover the records without gap or overlap.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from functions.poll.running_sha256 import RunningSha256
from shared import keys
from shared.budget import WORDS
from shared.errors import LawBrokenError, LeaseLostError, StorageError
from shared.observability import count, logger
from shared.status import JSON, digest_of, encode_status, moment, status_of
from shared.words import (
    FINAL_BATCH_STATES,
    FINAL_JOB_STATES,
    Batch,
    BatchState,
    Job,
    JobState,
    Joined,
    Part,
    Sums,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.services import Services

SEGMENT = 64 << 20
"""Bytes of a segment, at least: far above the 5 MiB that server-side copy wants of each piece."""
PAGE = 100
"""Batches looked at in one visit, at least, to see whether the job can go on."""
MANIFEST_BATCHES = 1_000
"""Batches that a manifest lists itself; more move to `batches.jsonl`."""
LEASE_SECONDS = 140.0
VISIT_SOON, VISIT_LATE = 10.0, 300.0
"""Seconds between two visits of a job, while something changes and when nothing does."""
TOLD_SECONDS = 10.0
"""Seconds a status stands before a part that came in between is told."""
PATIENT_CLAIMS, PATIENT_SECONDS = 20, 3_600.0
"""Visits in a row that died before a job waits hourly."""
STEP_SECONDS = 45.0
"""Time a visit must have left to begin another segment."""
JSON_LINES = "application/jsonl"

Kind = Literal["output", "errors", "retry"]
KINDS: tuple[Kind, ...] = ("output", "errors", "retry")


def visit(services: Services, job_id: str, remaining: Callable[[], float]) -> None:
    """Bring a job on: take in what is final, finish it when everything is, tell users how it stands.

    Raises:
        StorageError: a service refused or broke off; the job's `due_at` brings it up again.
        LawBrokenError: the batches do not tile the upload; the job does not finish.
    """
    now = services.now()
    job = services.ledger.job(job_id)
    if job is None or job.state in FINAL_JOB_STATES:
        return
    # A job that is due is leased before anything can fail, so that it counts a claim and does not come up at once.
    if not (job.due_at or now) <= now and now < job.told_at + TOLD_SECONDS:
        ahead = _look_ahead(services, job)
        if not ahead.all_final and ahead.size < SEGMENT:
            return
    patient = job.claims >= PATIENT_CLAIMS
    leased = services.ledger.lease_job(
        job, now, now + (PATIENT_SECONDS if patient else min(LEASE_SECONDS, remaining() + 10))
    )
    if leased is None:
        return
    count("OldestJobAge", now - leased.created_at)
    if patient:
        logger.error("job keeps failing", job_id=job_id, claims=leased.claims)
        count("StuckItems")
    try:
        _advance(services, leased, remaining)
    except LeaseLostError:
        logger.info("lease lost", job_id=job_id)


def _advance(services: Services, job: Job, remaining: Callable[[], float]) -> None:
    ahead = _look_ahead(services, job)
    while ahead.size >= SEGMENT and not ahead.all_final and remaining() > STEP_SECONDS:
        taken = _take_in(services, job, "output", final=False)
        if taken is None:
            break
        job = taken
        ahead = _look_ahead(services, job)
    if not ahead.all_final:
        _tell(services, job, ahead)
    elif remaining() > STEP_SECONDS:
        _finalize(services, job, remaining)
    else:
        services.ledger.release_job(job, services.now())


# ── taking in parts ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ahead:
    """What lies behind the output's mark: a page of batches, or as many as make a segment.

    Attributes:
        succeeded: records that did, those below the mark included.
        failed: records that did not, likewise.
        size: output bytes of the batches that follow the mark without a gap.
        all_final: whether those are all batches there will be.
    """

    succeeded: int
    failed: int
    size: int
    all_final: bool


def _look_ahead(services: Services, job: Job) -> Ahead:
    """Look at the batches behind the mark: how many records are done, and whether that is all there is.

    A page is enough only where something stands in the way. As long as all are final, the look goes on until they make
    a segment or are the last: else a job of many small answers would never move.
    """
    succeeded, failed, size = job.sums.succeeded, job.sums.failed, 0
    covered, contiguous = job.output.next_id, True
    for seen, batch in enumerate(services.ledger.batches(job.job_id, after=job.output.mark, page_size=PAGE)):
        if seen >= PAGE and (size >= SEGMENT or not contiguous):
            break
        if batch.state is BatchState.HALVED:
            continue
        if batch.part is None:
            contiguous = False
            continue
        succeeded += batch.part.succeeded
        failed += batch.part.failed
        if contiguous:
            if batch.first_id != covered:
                raise _untiled(job, batch, covered)
            covered += batch.requests
            size += batch.part.output
    return Ahead(succeeded, failed, size, all_final=contiguous and covered == job.total)


def _final_from(services: Services, job: Job, joined: Joined, until: str) -> Iterator[Batch]:
    """The leaves behind a mark, in order, as long as they are final; up to `until`, where that is given."""
    for batch in services.ledger.batches(job.job_id, after=joined.mark, page_size=PAGE):
        if batch.state not in FINAL_BATCH_STATES or (until and batch.number > until):
            return
        if batch.part is not None:
            yield batch


def _take_in(services: Services, job: Job, kind: Kind, *, final: bool) -> Job | None:
    """Join sections of final batches behind a mark into one segment, move the mark on; None if there is too little.

    Args:
        services: all there is.
        job: leased.
        kind: which file.
        final: take what there is, however little, for this is the end.
    """
    joined: Joined = getattr(job, kind)
    until = "" if kind == "output" else job.output.mark
    chosen: list[Batch] = []
    size = 0
    for batch in _final_from(services, job, joined, until):
        chosen.append(batch)
        size += _section(batch, kind)[1]
        if size >= SEGMENT:
            break
    if not chosen or (size < SEGMENT and not final):
        return None
    moved, sums = _after(job, kind, joined, chosen)
    if size:
        whole = size < SEGMENT and joined.segments == 0  # a file of one piece needs no segment
        key = _file_key(job, kind) if whole else keys.segment(job.job_id, kind, joined.segments)
        with tempfile.TemporaryFile() as spool:
            sha = _copy_sections(services, chosen, kind, joined.sha, spool)
            moved = replace(moved, sha=sha, segments=joined.segments + (not whole))
            metadata = _file_metadata(job, kind) if whole else {"progress": msgspec.json.encode((moved, sums)).decode()}
            spool.seek(0)
            # A file of one piece holds every batch there is, so that whoever wrote it wrote these very bytes.
            if not services.store.put_once(key, spool, metadata, kind=JSON_LINES) and not whole:
                there = services.store.head(key)
                if there is None:
                    raise StorageError(f"{key} was there and is gone")
                moved, sums = msgspec.json.decode(there.metadata["progress"], type=tuple[Joined, Sums])
    changed = services.ledger.move_job(job, {kind: moved, "sums": sums} if kind == "output" else {kind: moved})
    if changed is None:
        raise LeaseLostError(job.job_id)
    return changed


def _after(job: Job, kind: Kind, joined: Joined, chosen: list[Batch]) -> tuple[Joined, Sums]:
    """Mark and sums once these batches are taken in; checks that they tile.

    Raises:
        LawBrokenError: there is a gap or an overlap, or a part has fewer or more lines than its batch records.
    """
    next_id, sums = joined.next_id, job.sums
    size, lines = joined.size, joined.lines
    for batch in chosen:
        part = _part(batch)
        if batch.first_id != next_id or part.succeeded + part.failed != batch.requests:
            raise _untiled(job, batch, next_id)
        next_id += batch.requests
        size += _section(batch, kind)[1]
        lines += {"output": batch.requests, "errors": part.failed, "retry": part.retry_lines}[kind]
        if kind == "output":
            sums = Sums(
                sums.succeeded + part.succeeded,
                sums.failed + part.failed,
                sums.errors_size + part.errors,
                sums.retry_size + part.retry,
                sums.usage.plus(part.usage),
            )
    return replace(joined, mark=chosen[-1].number, next_id=next_id, size=size, lines=lines), sums


def _copy_sections(services: Services, batches: list[Batch], kind: Kind, sha: str, spool: IO[bytes]) -> str:
    """Copy one section of each part into a spool file; the running digest's state afterwards."""
    digest = RunningSha256(sha)
    for batch in batches:
        start, length = _section(batch, kind)
        for block in services.store.blocks(_part(batch).key, start, length):
            digest.update(block)
            spool.write(block)
    return digest.state()


def _section(batch: Batch, kind: Kind) -> tuple[int, int]:
    """Where a file's section lies in a batch's part: offset and bytes."""
    part = _part(batch)
    return {
        "output": (0, part.output),
        "errors": (part.output, part.errors),
        "retry": (part.output + part.errors, part.retry),
    }[kind]


def _part(batch: Batch) -> Part:
    if batch.part is None:
        raise LawBrokenError(f"batch {batch.job_id}/{batch.number} is done and names no part")
    return batch.part


def _untiled(job: Job, batch: Batch, expected: int) -> LawBrokenError:
    count("LawsBroken")
    return LawBrokenError(
        f"job {job.job_id}: batch {batch.number} begins with record {batch.first_id}, expected {expected}"
    )


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _finalize(services: Services, job: Job, remaining: Callable[[], float]) -> None:
    """Every batch is final: write the result files, the manifest last."""
    if job.state is not JobState.FINALIZING:
        moved = services.ledger.move_job(job, {"state": JobState.FINALIZING})
        if moved is None:
            raise LeaseLostError(job.job_id)
        job = moved
    for kind in KINDS:
        while (moved := _take_in(services, job, kind, final=True)) is not None:
            job = moved
            if remaining() < STEP_SECONDS:
                services.ledger.release_job(job, services.now())
                return
    if (
        job.output.next_id != job.total
        or job.output.lines != job.total
        or job.sums.succeeded + job.sums.failed != job.total
    ):
        count("LawsBroken")
        raise LawBrokenError(f"job {job.job_id}: {job.output.lines} lines for {job.total} records")
    now = services.now()
    job = replace(job, completed_at=now)
    files = [_write_file(services, job, kind) for kind in KINDS if _is_wanted(job, kind)]
    batches = _list_batches(services, job)
    manifest = _manifest(job, files, batches)
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    services.store.put_once(keys.result(job.upload.key, job.job_id, "manifest.json"), body, kind=JSON)
    over = JobState.FAILED if job.error else JobState.COMPLETED
    status = status_of(replace(job, state=over), job.sums.succeeded, job.sums.failed, None)
    services.store.put(keys.result(job.upload.key, job.job_id, "status.json"), encode_status(status, now), kind=JSON)
    services.notices.tell_job_over(_notice(manifest), now)
    # The ledger's word comes last: until then the job comes due again, and all above is there already or done anew.
    if services.ledger.end_job(job, over, now):
        count("JobsFailed" if job.error else "JobsCompleted")
        logger.info("job over", job_id=job.job_id, state=over, records=job.total, failed=job.sums.failed)


def _is_wanted(job: Job, kind: Kind) -> bool:
    """Whether a file is there at all: the output of every completed job, the others only if they hold something."""
    joined: Joined = getattr(job, kind)
    return joined.size > 0 or (kind == "output" and job.error is None)


def _write_file(services: Services, job: Job, kind: Kind) -> dict[str, Any]:
    """Join a file's segments, unless it was written in one piece; its entry in the manifest."""
    joined: Joined = getattr(job, kind)
    key, metadata = _file_key(job, kind), _file_metadata(job, kind)
    if joined.segments:
        segments = [keys.segment(job.job_id, kind, ordinal) for ordinal in range(joined.segments)]
        sizes = [stored.size for segment in segments if (stored := services.store.head(segment))]
        if len(sizes) != len(segments) or sum(sizes) != joined.size:
            raise LawBrokenError(
                f"job {job.job_id}: segments of {kind} hold {sum(sizes)} bytes, expected {joined.size}"
            )
        if services.store.head(key) is None:
            services.store.compose(key, list(zip(segments, sizes, strict=True)), metadata, JSON_LINES)
    elif not joined.size:
        services.store.put_once(key, b"", metadata, kind=JSON_LINES)
    return {
        "name": f"{kind}.jsonl",
        "bytes": joined.size,
        "sha256": RunningSha256(joined.sha).hexdigest(),
        "lines": joined.lines,
    }


def _file_key(job: Job, kind: Kind) -> str:
    return keys.result(job.upload.key, job.job_id, f"{kind}.jsonl")


def _file_metadata(job: Job, kind: Kind) -> dict[str, str]:
    """A retry file names its model, so that copying it into the inbox tries its records again."""
    return {"model": job.plan.model} if kind == "retry" else {}


def _list_batches(services: Services, job: Job) -> list[dict[str, Any]] | dict[str, Any]:
    """The leaves as the manifest tells them; beyond 1,000 as the entry of `batches.jsonl`, which this writes."""
    listed: list[dict[str, Any]] = []
    digest, lines, size = RunningSha256(), 0, 0
    with tempfile.TemporaryFile() as spool:
        for batch in services.ledger.batches(job.job_id):
            if batch.state is BatchState.HALVED:
                continue
            entry = _batch_entry(batch)
            if lines < MANIFEST_BATCHES:
                listed.append(entry)
            encoded = msgspec.json.encode(entry) + b"\n"
            digest.update(encoded)
            size += spool.write(encoded)
            lines += 1
        if lines <= MANIFEST_BATCHES:
            return listed
        spool.seek(0)
        services.store.put_once(keys.result(job.upload.key, job.job_id, "batches.jsonl"), spool, kind=JSON_LINES)
    return {"name": "batches.jsonl", "bytes": size, "sha256": digest.hexdigest(), "lines": lines}


def _batch_entry(batch: Batch) -> dict[str, Any]:
    last = batch.submissions[-1] if batch.submissions else None
    return {
        "number": batch.number,
        "first_id": batch.first_id,
        "requests": batch.requests,
        "request_id": last.request_id or None if last else None,
        "submitted_at": moment(last.at) if last else None,
        "completed_at": moment(batch.completed_at),
        "polls": batch.polls,
        "attempts": max(len(batch.submissions) + batch.unknowable, min(batch.attempt, 1)),
        "unknowable_submits": batch.unknowable,
    }


def _manifest(job: Job, files: list[dict[str, Any]], batches: list[dict[str, Any]] | dict[str, Any]) -> dict[str, Any]:
    listed = isinstance(batches, list)
    usage: Usage = job.sums.usage
    return {
        "job_id": job.job_id,
        "state": JobState.FAILED.value if job.error else JobState.COMPLETED.value,
        "error": {"code": job.error.code, "message": job.error.message} if job.error else None,
        "model": job.plan.model or None,
        "source": {
            "bucket": job.upload.bucket,
            "key": job.upload.key,
            "version": job.upload.version,
            "etag": job.upload.etag,
            "bytes": job.upload.size,
        },
        "counts": {"total": job.total, "succeeded": job.sums.succeeded, "failed": job.sums.failed},
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
        "cost": None,
        "batches": batches if listed else [],
        "files": files if listed else [*files, batches],
        "created_at": moment(job.created_at),
        "completed_at": moment(job.completed_at),
    }


def _notice(manifest: dict[str, Any]) -> dict[str, Any]:
    """What the notice of a job's end tells: the manifest without its lists, and where each result file is."""
    source = manifest["source"]
    names = [*(file["name"] for file in manifest["files"]), "manifest.json"]
    return {
        **{name: manifest[name] for name in ("job_id", "state", "error", "model", "source", "counts", "usage")},
        "results": {
            "bucket": source["bucket"],
            **{name.partition(".")[0]: keys.result(source["key"], manifest["job_id"], name) for name in names},
        },
    }


# ── telling users ────────────────────────────────────────────────────────────────────────────────────────────────────


def _tell(services: Services, job: Job, ahead: Ahead) -> None:
    """Write `status.json` if something changed, and give the job back."""
    now = services.now()
    done = ahead.succeeded + ahead.failed
    fraction = max(job.fraction, round(done / job.total, 4)) if job.total else job.fraction
    status = status_of(replace(job, fraction=fraction), ahead.succeeded, ahead.failed, _waiting_for(services, job, now))
    digest = digest_of(status)
    changed = digest != job.status_sha
    if changed:
        services.store.put(
            keys.result(job.upload.key, job.job_id, "status.json"), encode_status(status, now), kind=JSON
        )
    quiet = 0 if changed else job.quiet + 1
    due = now + min(VISIT_SOON * 2.0**quiet, VISIT_LATE)
    services.ledger.release_job(job, due, fraction=fraction, quiet=quiet, status_sha=digest, told_at=now)


def _waiting_for(services: Services, job: Job, now: float) -> dict[str, Any] | None:
    """What holds the job up, in words for its user."""
    controls = services.budget.controls(job.plan.model)
    pause, wait = controls.pause, controls.model_wait
    if pause and (pause.until is None or pause.until > now):
        return {
            "code": pause.reason.value,
            "message": f"{WORDS[pause.reason]} (The API said {pause.code}.)",
            "until": moment(pause.until),
        }
    if wait and wait.until > now:
        words = (
            f"Workers AI has no capacity for {job.plan.model} now (it said {wait.code}); submits go on by themselves."
        )
        return {"code": "model_waits", "message": words, "until": moment(wait.until)}
    return None
