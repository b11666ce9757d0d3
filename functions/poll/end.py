"""The end of a job: its result files, the manifest last, then its status, notice and final state.

Each step exists already or is repeated if a function dies, and the ledger's final state comes last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from dropbatch.core import names
from dropbatch.core.formats.bedrock import manifest_out
from dropbatch.core.names import JobState
from functions.poll.divide import MAX_ISOLATION_SUBMITS
from functions.poll.files import (
    STEP_SECONDS,
    ReadyBatches,
    append_segment,
    batch_entry,
    coverage_error,
    file_key,
    file_metadata,
    growing_key,
    has_segments,
    next_final_batches,
    progress_of,
    put_file,
    readable,
)
from functions.poll.result_lines import Kind, opening_of, result_file
from functions.poll.running_sha256 import RunningSha256, unfinished_bytes
from shared import keys
from shared.errors import InvariantError, ObjectNotFoundError, RefusedError
from shared.job_status import JSON_TYPE, final_status, for_people, iso_time, write_status
from shared.ledger import DueEntry, still_leased
from shared.models import Batch, BatchState, ErrorDetail, Job, ResultFileProgress
from shared.observability import count, logger
from shared.pacing.cost import cost_so_far
from shared.retry import MAX_CLAIMS, claim_seconds
from shared.services import Invocation, Services

MAX_DIGEST_READ_BYTES = 1 << 30  # Bytes of a file that are read once more for its digest
MAX_PARALLEL_COPIES = 8  # Server-side copies at the same time
MANIFEST_BATCHES = 1_000  # Batches that a manifest lists itself; else `batches.jsonl` does
MAX_REFUSED_SECONDS = 300.0  # In which an event that is refused for good is sent again
METRIC_OF_STATE = {
    JobState.COMPLETED: "JobsCompleted",
    JobState.FAILED: "JobsFailed",
    JobState.CANCELLED: "JobsCancelled",
}


def finalize(invocation: Invocation, job: Job, ahead: ReadyBatches) -> Job | None:
    """Every batch is final: write the files, the manifest last; the job if time ran out."""
    services = invocation.services
    if job.state is not JobState.FINALIZING:
        job = still_leased(services.ledger.begin_finalizing(job), job.job_id)
    if ahead.leaves:
        if not invocation.allows(STEP_SECONDS):
            return job
        job = append_segment(services, job, "output", ahead, final=True)
        if job.output.mark != ahead.leaves[-1].number:
            # An earlier run's segment, of fewer batches, counts; the next visit continues from it.
            return job
    if job.output.lines != job.total or job.sums.succeeded + job.sums.failed != job.total:
        raise coverage_error(job, f"{job.output.lines} lines for {job.total} records")
    for kind in _wanted(job):
        written = _write_file(invocation, job, kind)
        if written is None:
            return job
        job = written
    _close(invocation, job, _wanted(job))
    return None


def _close(invocation: Invocation, job: Job, kinds: list[Kind]) -> None:
    """The files exist: write the manifest, then status, notice, and the ledger's final state."""
    services = invocation.services
    if job.ended_at is None:
        pinned = services.ledger.update_leased_job(job, {"ended_at": services.now()})
        job = still_leased(pinned, job.job_id)
    job = replace(job, completed_at=job.ended_at)
    now, is_short = services.now(), job.sums.batches <= MANIFEST_BATCHES
    listed = readable(services.ledger.batches(job.job_id)) if is_short else ()
    manifest = build_manifest(job, listed, [file_entry(services, job, kind) for kind in kinds])
    if job.plan.format == "bedrock" and not job.error:
        _put_result(services, job, "manifest.json.out", bedrock_manifest(job))
    _put_result(services, job, "manifest.json", for_people(manifest))
    if job.retry_of:
        _put_retry_record(services, job, manifest)
    write_status(services, job, final_status(job))
    _announce(services, job, manifest, now)
    # The ledger comes last: until then the job is due again, and all of the above is repeated.
    is_complete = job.output.lines == job.total and kinds == _wanted(job)
    if _end(services, job, now, is_complete=is_complete):
        state, failed = job.final_state, job.sums.failed
        count(METRIC_OF_STATE[state])
        logger.info("job over", job_id=job.job_id, state=state, records=job.total, failed=failed)


def _announce(services: Services, job: Job, manifest: dict[str, Any], now: float) -> None:
    """Publish that a job is over, at least once: before the ledger's final state."""
    try:
        services.notices.publish_job_over(event_detail(services.store.bucket, job, manifest), now)
    except RefusedError as error:
        if job.ended_at is None or now - job.ended_at < MAX_REFUSED_SECONDS:
            raise
        logger.error("event not published", job_id=job.job_id, reason=str(error))
        count("Errors")


def _end(services: Services, job: Job, now: float, *, is_complete: bool) -> bool:
    """Write a job's final state; what is staged for it stays if its results lack something."""
    clean_at = now + CLEAN_AFTER_SECONDS if is_complete else None
    return services.ledger.end_job(job, job.final_state, now, clean_at) is not None


def _put_result(services: Services, job: Job, name: str, body: bytes) -> None:
    key = names.result(job.upload.key, job.job_id, name)
    services.store.put_if_absent(key, body, kind=JSON_TYPE)


def _put_retry_record(services: Services, job: Job, manifest: dict[str, Any]) -> None:
    """Record in the folder of the job that was retried that this one has tried its failures."""
    try:
        parent = msgspec.json.decode(services.store.get(job.retry_of), type=dict[str, Any])
    except (ObjectNotFoundError, RefusedError, msgspec.MsgspecError):
        parent = None
    key = f"{job.retry_of.removesuffix('manifest.json')}retries/{job.job_id}.json"
    services.store.put_if_absent(key, retry_record(job, manifest, parent), kind=JSON_TYPE)


def give_up(invocation: Invocation, job: Job) -> None:
    """End a job that could not be finished for days: `failed`; its answers stay in staging."""
    services = invocation.services
    if services.store.head(names.result(job.upload.key, job.job_id, "manifest.json")):
        # Only what comes after it failed. A job that was given up before may lack files.
        is_complete = job.error is None and job.output.lines == job.total
        _end(services, job, services.now(), is_complete=is_complete)
        return
    message = (
        "Dropbatch could not finish this job; the poll function's log shows why. All answers are "
        f"kept for 60 days under staging/{job.job_id}/. Please report this."
    )
    error = ErrorDetail("internal", message)
    job = still_leased(services.ledger.begin_finalizing(job, error=error), job.job_id)
    kinds = []
    for kind in _wanted(job):
        try:
            written = _write_file(invocation, job, kind)
        except (InvariantError, ObjectNotFoundError):
            logger.exception("file not written", job_id=job.job_id, kind=kind)
            continue
        if written is None:
            return
        job = written
        kinds.append(kind)
    _close(invocation, job, kinds)


def _write_file(invocation: Invocation, job: Job, kind: Kind) -> Job | None:
    """Complete one result file; return the job afterwards, None if time ran out."""
    while progress_of(job, kind).mark != job.output.mark:
        if not invocation.allows(STEP_SECONDS):
            return None
        behind = next_final_batches(invocation.services, job, kind)
        job = append_segment(invocation.services, job, kind, behind, final=behind.last)
    return assemble_file(invocation, job, kind)


def _wanted(job: Job) -> list[Kind]:
    """The files to write: a completed job's output, the others only if they are not empty."""
    wanted: dict[Kind, bool] = {
        "output": job.error is None or job.output.size > 0,
        "errors": job.sums.errors_size > 0,
        "retry": job.sums.retry_size > 0,
        "batches": job.sums.batches > MANIFEST_BATCHES,
    }
    return [kind for kind, is_wanted in wanted.items() if is_wanted]


# ── its files ─────────────────────────────────────────────────────────────────────────────────────


def assemble_file(invocation: Invocation, job: Job, kind: Kind) -> Job | None:
    """Make a file from its segments; return the job afterwards, None if time ran out."""
    store, key = invocation.services.store, file_key(job, kind)
    if not has_segments(progress_of(job, kind)):
        if not progress_of(job, kind).size:  # Otherwise it was put whole.
            put_file(invocation.services, job, kind, opening_of(store, job, kind))
        return job
    if store.head(key) is not None:
        return job
    job, copied = _resume_upload(invocation.services, job, kind)
    progress = progress_of(job, kind)
    sources = [keys.segment(job.job_id, kind, ordinal) for ordinal in range(progress.segments)]
    if progress.growing:
        sources.append(growing_key(job, kind, progress))
    missing = [(number, source) for number, source in enumerate(sources, 1) if number not in copied]
    with ThreadPoolExecutor(MAX_PARALLEL_COPIES) as threads:
        for start in range(0, len(missing), MAX_PARALLEL_COPIES):
            if not invocation.allows(STEP_SECONDS):
                return None
            chosen = missing[start : start + MAX_PARALLEL_COPIES]
            list(
                threads.map(
                    lambda copy: store.upload_part_copy(key, progress.upload, *copy), chosen
                )
            )
    copies = store.list_parts(key, progress.upload)
    size = sum(copy.size for copy in copies)
    if len(copies) != len(sources) or size != progress.size:
        words = f"the segments of {kind} hold {size} bytes, expected {progress.size}"
        raise coverage_error(job, words)
    store.complete_multipart_upload(key, progress.upload, copies)
    return job


def _resume_upload(services: Services, job: Job, kind: Kind) -> tuple[Job, set[int]]:
    """The job with the upload of a file, begun if there is none, and which copies it has."""
    progress, key = progress_of(job, kind), file_key(job, kind)
    if progress.upload:
        with suppress(ObjectNotFoundError):  # S3 removes unfinished uploads after a week.
            return job, {copy.number for copy in services.store.list_parts(key, progress.upload)}
    content_type = result_file(job, kind).content_type
    upload = services.store.create_multipart_upload(key, file_metadata(job, kind), content_type)
    changed = services.ledger.update_leased_job(job, {kind: replace(progress, upload=upload)})
    return still_leased(changed, job.job_id), set()


def file_entry(services: Services, job: Job, kind: Kind) -> dict[str, Any]:
    """A file, as the manifest lists it; `sha256` is null if somebody has deleted it meanwhile."""
    progress = progress_of(job, kind)
    entry = {"name": result_file(job, kind).name, "kind": kind, "lines": progress.lines}
    if progress.size:
        digest = None
        with suppress(ObjectNotFoundError):
            digest = _digest_of(services, file_key(job, kind), progress)
        return {**entry, "bytes": progress.size, "sha256": digest}
    content = opening_of(services.store, job, kind)
    return {**entry, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _digest_of(services: Services, key: str, progress: ResultFileProgress) -> str | None:
    """A file's SHA-256; where Python keeps no running one, None, or a small file is read again."""
    if progress.sha:
        rest = unfinished_bytes(progress.size)
        tail = services.store.get(key, progress.size - rest, rest)
        return RunningSha256(progress.sha, tail).hexdigest()
    if progress.size > MAX_DIGEST_READ_BYTES:
        return None
    digest = hashlib.sha256()
    for block in services.store.sections([(key, 0, progress.size)]):
        digest.update(block)
    return digest.hexdigest()


# ── the manifest, the notice, the record of a retry ───────────────────────────────────────────────


TOLD = ("job_id", "state", "error", "model", "format", "tags", "source", "counts", "usage", "cost")


def build_manifest(
    job: Job, batches: Iterable[Batch], files: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The manifest of a job that is over."""
    usage = job.sums.usage
    return {
        "job_id": job.job_id,
        "state": job.final_state.value,
        "error": {"code": job.error.code, "message": job.error.message} if job.error else None,
        "model": job.plan.model or None,
        "format": job.plan.format or None,
        "tags": job.tags,
        "source": {
            "bucket": job.upload.bucket,
            "key": job.upload.object_key,
            "version": job.upload.version,
            "etag": job.upload.etag,
            "bytes": job.upload.size,
        },
        "read_to_end": job.reading.to_end,
        "counts": {"total": job.total, "succeeded": job.sums.succeeded, "failed": job.sums.failed},
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
        },
        "cost": _cost(job),
        "incomplete": job.sums.incomplete,
        "given_up_ids": job.sums.given_up,
        "unknowable_submits": job.sums.unknowable,
        "events": "used" if job.sums.told else "none",
        "batches": [batch_entry(one) for one in batches if one.state is not BatchState.DIVIDED],
        "isolation": {"submits": job.sums.pieces, "at_most": MAX_ISOLATION_SUBMITS},
        "files": files,
        "created_at": iso_time(job.created_at),
        "completed_at": iso_time(job.completed_at),
    }


def _cost(job: Job) -> dict[str, Any] | None:
    """What a job cost, estimated where no tokens were reported; None without a price."""
    usage, sums, model = job.sums.usage, job.sums, job.plan.known_model
    cost = cost_so_far(model, sums)
    if cost is None or (sums.succeeded and cost.amount == 0 and not usage.is_reported):
        return None
    return {**cost.to_manifest(), "uncollected_batches": sums.uncollected}


def event_detail(bucket: str, job: Job, manifest: dict[str, Any]) -> dict[str, Any]:
    """The notice of a job's end: the manifest without its lists, and the files' keys."""
    files = {file["kind"]: file["name"] for file in manifest["files"]}
    files["manifest"] = "manifest.json"
    results = {kind: names.result(job.upload.key, job.job_id, one) for kind, one in files.items()}
    told = {name: manifest[name] for name in TOLD}
    return {**told, "results": {"bucket": bucket, **results}}


def bedrock_manifest(job: Job) -> bytes:
    """`manifest.json.out`, as in Bedrock's batches."""
    sums, total = job.sums, job.total or 0
    tokens = sums.usage.prompt_tokens, sums.usage.completion_tokens
    return manifest_out(total, sums.succeeded, sums.failed, *tokens)


def retry_record(job: Job, manifest: dict[str, Any], parent: dict[str, Any] | None) -> bytes:
    """What a retry leaves in the folder of its parent, whose manifest may not be readable."""
    files = (parent or {}).get("files") or []
    lines = next(
        (file.get("lines") for file in files if "retry" in (file.get("kind"), file["name"][:5])),
        None,
    )
    record = {
        "job_id": job.job_id,
        "manifest": names.result(job.upload.key, job.job_id, "manifest.json"),
        "state": manifest["state"],
        "counts": manifest["counts"],
        "joined_by": "line" if lines == job.total else "reference",
        "completed_at": manifest["completed_at"],
    }
    return for_people(record)


# ── what is staged ────────────────────────────────────────────────────────────────────────────────
# It costs money, and nobody needs it an hour after the job's end: no function that reads it runs so
# long. What S3 refuses to delete for three days is left to the bucket's lifecycle rule.

CLEAN_AFTER_SECONDS = 3_600.0
CLAIM_SECONDS = 180.0


def clean(services: Services, due: DueEntry, ends: float) -> None:
    """Delete a job's staged objects, at least 1,000, and more until `ends`, Unix seconds."""
    ledger, now = services.ledger, services.now()
    claims = ledger.claims_of(due)
    if claims >= MAX_CLAIMS:
        ledger.forget_cleanup(due)
        logger.error("staged objects left to the lifecycle rule", job_id=due.job_id)
        return
    until = float(int(now + claim_seconds(claims, CLAIM_SECONDS)))
    if not ledger.set_aside(due, claims + 1, until):
        return  # Somebody else has it, or the index was out of date.
    claimed = replace(due, due_at=until)
    try:
        while page := services.store.versions(keys.staging(due.job_id)):
            services.store.delete(page)
            if services.now() >= ends:
                ledger.set_aside(claimed, 0, services.now())
                return
    except RefusedError as refusal:
        reason = str(refusal)
        logger.warning("staging left to the lifecycle rule", job_id=due.job_id, reason=reason)
    ledger.forget_cleanup(claimed)
