"""What is written when a job is over: manifests, the notice, the record of a retry. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from dropbatch.core import names
from dropbatch.core.formats.bedrock import manifest_out
from functions.poll.divide import MAX_ISOLATION_SUBMITS
from functions.poll.format_of_job import Kind
from shared.job_status import iso_time
from shared.models import Batch, BatchState, Job
from shared.pacing.cost import cost_so_far


class FileEntry(NamedTuple):
    """A result file as the manifest lists it; too large a local one has no `sha256`."""

    name: str
    kind: Kind
    bytes: int
    sha256: str | None
    lines: int


def build_manifest(
    job: Job, batches: Iterable[Batch], files: Sequence[FileEntry]
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
        },
        "cost": _cost(job),
        "given_up_ids": job.sums.given_up,
        "unknowable_submits": job.sums.unknowable,
        "events": "used" if job.sums.told else "none",
        "batches": [
            batch_entry(batch) for batch in batches if batch.state is not BatchState.DIVIDED
        ],
        "isolation": {"submits": job.sums.pieces, "at_most": MAX_ISOLATION_SUBMITS},
        "files": [file._asdict() for file in files],
        "created_at": iso_time(job.created_at),
        "completed_at": iso_time(job.completed_at),
    }


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


def _cost(job: Job) -> dict[str, Any] | None:
    """What a job cost, estimated where no tokens were reported; None without a price."""
    usage, sums, model = job.sums.usage, job.sums, job.plan.known_model
    cost = cost_so_far(model, sums)
    if cost is None or (sums.succeeded and cost.amount == 0 and not usage.is_reported):
        return None
    return {**cost.to_manifest(), "uncollected_batches": sums.uncollected}


def event_detail(bucket: str, job: Job, manifest: dict[str, Any]) -> dict[str, Any]:
    """The notice of a job's end: the manifest without its lists, and the files' keys."""
    files = {file["kind"]: file["name"] for file in manifest["files"]} | {
        "manifest": "manifest.json"
    }
    members = (
        "job_id",
        "state",
        "error",
        "model",
        "format",
        "tags",
        "source",
        "counts",
        "usage",
        "cost",
    )
    return {
        **{name: manifest[name] for name in members},
        "results": {
            "bucket": bucket,
            **{
                kind: names.result(job.upload.key, job.job_id, name) for kind, name in files.items()
            },
        },
    }


def bedrock_manifest(job: Job) -> bytes:
    """`manifest.json.out`, as in Bedrock's batches."""
    usage, sums = job.sums.usage, job.sums
    total = job.total or 0
    return manifest_out(
        total, sums.succeeded, sums.failed, usage.prompt_tokens, usage.completion_tokens
    )


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
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
