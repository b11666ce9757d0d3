"""What `ls` and `status` say about a job: in one line, and in several."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.cli.exits import in_options
from dropbatch.cli.reports import billed_again
from dropbatch.cli.rows import Cell, job_lines, terminal_width
from dropbatch.client.progress import duration
from dropbatch.client.records import read_failures
from dropbatch.client.stack import blocks
from dropbatch.core.names import FINAL_JOB_STATES, JOB_ID, job_record, job_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dropbatch.client.job import Job

FIRST_BYTES = 1 << 20
"""Bytes of `errors.jsonl` that are read for the first failure."""


def row(job: Job, status: Mapping[str, Any]) -> list[str]:
    """A job in one line, or on a narrow terminal in two."""
    counts = status.get("counts") or {}
    total = counts.get("total")
    done = counts.get("succeeded", 0) + counts.get("failed", 0)
    records = f"{done:,}" if total is None or total == done else f"{done:,}/{total:,}"
    failed = f"{counts['failed']:,} failed" if counts.get("failed") else ""
    waiting = (status.get("waiting_for") or {}).get("code", "")
    cells = (
        Cell(job.id, 25, rank=1, right=False),
        Cell(status["state"], 11, right=False),
        Cell(duration(_age(job)), 10, rank=3),
        Cell(records, 15, rank=2),
        Cell(failed, 12),
    )
    return job_lines(cells, job.path, waiting, terminal_width())


def _age(job: Job) -> float:
    """Seconds since the upload; the time is in the job's id."""
    return (
        max((datetime.now(UTC) - job_time(job.id)).total_seconds(), 0.0)
        if JOB_ID.fullmatch(job.id)
        else 0.0
    )


def details(job: Job, status: Mapping[str, Any]) -> Iterator[str]:
    """A job's file, model, age and cost, why it failed, and where its results are."""
    state = status["state"]
    # Or S3 tells the stack nothing of the upload.
    has_job = not (job.uploaded and status.get("error"))
    manifest = job.manifest() if has_job and state in FINAL_JOB_STATES else None
    record = manifest or job.stack.read_json(job_record(job.id)) or {}
    yield f"file     {job.path}"
    yield (
        f"model    {record.get('model') or 'none'}, format "
        f"{record.get('format') or 'not known yet'}"
    )
    yield f"age      {duration(_age(job))}{_took(manifest)}"
    if manifest and (cost := manifest.get("cost")):
        yield f"cost     ${cost['amount']}{', estimated' if cost['estimated'] else ''}"
    elif manifest:
        yield "cost     not known: the model's price is not"
    for one in billed_again(manifest or {}):
        yield f"billed   {one}"
    if error := (manifest or status).get("error"):
        yield f"because  {error['code']}: {in_options(error['message'])}"
    for note in status.get("notes") or []:
        yield f"note     {note['code']}: {note['message']}"
    if manifest and (first := _first_failure(job, manifest)):
        yield f"failed   {manifest['counts']['failed']:,} records; the first: {first}"
    yield f"results  s3://{job.stack.bucket}/{job.folder}"


def _took(manifest: Mapping[str, Any] | None) -> str:
    if not manifest:
        return ""
    began, ended = (
        datetime.fromisoformat(manifest[name]) for name in ("created_at", "completed_at")
    )
    return f", took {duration((ended - began).total_seconds())}"


def _first_failure(job: Job, manifest: Mapping[str, Any]) -> str:
    """The first line of a finished job's `errors.jsonl`."""
    entry = next((one for one in manifest["files"] if one["kind"] == "errors"), None)
    if entry is None:
        return ""
    size = min(entry["bytes"], FIRST_BYTES)
    head = b"".join(
        blocks(job.stack.s3, {"Bucket": job.stack.bucket, "Key": job.folder + entry["name"]}, size)
    )
    first = head.partition(b"\n")[0]
    try:
        failure = next(read_failures([first]))
        at = msgspec.json.decode(first).get("line")
    except (msgspec.MsgspecError, StopIteration):
        return "a line that is too long to show"
    where = f"line {at:,}" if at else f"record {failure.id:,}"
    return f"{where}: {failure.error.code}: {failure.error.message[:500]}"
