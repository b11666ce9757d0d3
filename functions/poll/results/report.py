"""Write a finished job's report page, with bounded memory and time.

A report never delays its job.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from dropbatch.core import names
from functions.poll.results.report_data import Failures, Timeline, failures_in
from functions.poll.results.report_page import job_page
from functions.poll.results.result_files import readable
from shared.errors import RetryableError
from shared.html_page import HTML_TYPE
from shared.models import BatchState
from shared.observability import count, logger

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.invocation import Invocation
    from shared.models import Job

MAX_ERRORS_BYTES = 16_000_000
"""Bytes of errors.jsonl that are read."""
MAX_BATCHES = 20_000
"""Batches whose times are read."""
MAX_AMBIGUOUS = 200
"""Batches with submits of unknown or doubtful outcome that are listed."""
MANIFEST_RESERVE_SECONDS = 20.0
"""Seconds left to the invocation below which no more batches are read."""


def write_report(invocation: Invocation, job: Job, manifest: dict[str, Any]) -> None:
    """Write `report.html`, unless it exists.

    Args:
        invocation: the running one.
        job: over, with its `completed_at`.
        manifest: the job's.

    Raises:
        StorageError: S3 or DynamoDB failed.
    """
    services = invocation.services
    try:
        timeline, ambiguous = _batches(invocation, job)
        page = job_page(manifest, timeline, _failures(services, job, manifest), ambiguous)
    except RetryableError:
        raise
    except Exception:  # noqa: BLE001 - a report matters less than the manifest that follows
        count("Errors")
        logger.exception("report not written", job_id=job.job_id)
        return
    services.store.put_if_absent(
        names.result(job.upload.key, job.job_id, "report.html"), page, kind=HTML_TYPE
    )


def _batches(invocation: Invocation, job: Job) -> tuple[Timeline, list[dict[str, Any]]]:
    """When batches were submitted and collected, and those that may be billed twice."""
    timeline = Timeline(job.created_at, job.completed_at or job.created_at)
    ambiguous: list[dict[str, Any]] = []
    read = 0
    for batch in islice(readable(invocation.services.ledger.batches(job.job_id)), MAX_BATCHES + 1):
        if read == MAX_BATCHES or not invocation.allows(MANIFEST_RESERVE_SECONDS):
            timeline.complete = False
            break
        read += 1
        if batch.state is BatchState.DIVIDED:
            continue
        submitted = batch.submissions[0].at if batch.submissions else None
        timeline.add(submitted, batch.completed_at if submitted and batch.ending is None else None)
        if (uncertain := batch.unknowable + batch.doubtful) and len(ambiguous) < MAX_AMBIGUOUS:
            ambiguous.append(
                {
                    "number": batch.number,
                    "requests": batch.requests,
                    "ambiguous": uncertain,
                    "request_id": batch.submissions[-1].request_id if batch.submissions else "",
                }
            )
    return timeline, ambiguous


def _failures(services: Services, job: Job, manifest: dict[str, Any]) -> Failures:
    """The failures at the beginning of errors.jsonl."""
    entry = next((file for file in manifest["files"] if file["name"] == "errors.jsonl"), None)
    if entry is None:
        return Failures()
    length = min(entry["bytes"], MAX_ERRORS_BYTES)
    key = names.result(job.upload.key, job.job_id, "errors.jsonl")
    return failures_in(services.store.blocks(key, 0, length), complete=length == entry["bytes"])
