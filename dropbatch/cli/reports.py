"""Report pages of jobs, and the reports of validations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dropbatch import aws
from dropbatch.downloads import CHUNK_BYTES
from dropbatch.errors import Error, NotFound
from dropbatch.jobs import job_of_upload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dropbatch.job import Job
    from dropbatch.stack import Stack
    from dropbatch.uploads import Uploaded

VALIDATION_SECONDS = 3_600.0
READ_SECONDS = 1.0


def save_report(job: Job, path: Path) -> Path:
    """Download a finished job's report page.

    Raises:
        Error: the job is not over, or has no report.
    """
    from botocore.exceptions import ClientError

    stack = job.stack
    job.manifest()
    key = f"{job.folder}report.html"
    with aws.explained():
        try:
            body = stack.s3.get_object(Bucket=stack.bucket, Key=key)["Body"]
        except ClientError as error:
            if not aws.is_missing(stack.s3, stack.bucket, key, error):
                raise
            raise NotFound(f"Job {job.id} has no report: it ended before reports were written.") from error
        with path.open("wb") as file:
            for chunk in body.iter_chunks(CHUNK_BYTES):
                file.write(chunk)
    return path


def wait_for_validation(stack: Stack, uploaded: Uploaded) -> dict[str, Any]:
    """Wait for the report of a validation and return it.

    Raises:
        Error: there is no report after an hour.
    """
    deadline = time.monotonic() + VALIDATION_SECONDS
    while time.monotonic() < deadline:
        job = job_of_upload(stack, uploaded.path, uploaded.version, uploaded.etag, folder="validate")
        if job and (report := stack.read_json(f"{job.folder}report.json")):
            return report
        time.sleep(READ_SECONDS)
    raise Error(f"There is no report of {uploaded.path} yet. `dropbatch doctor` looks for the cause.")


def validation_lines(report: dict[str, Any]) -> Iterator[str]:
    """A validation's report as text."""
    if error := report.get("error"):
        yield f"{error['code']}: {error['message']}"
        return
    yield f"format    {report['format']}"
    yield f"model     {report['model'] or 'none'}"
    yield f"records   {report['records']:,} in {report['bytes']:,} bytes"
    yield f"batches   {report['batches']:,}, about {report['calls']:,} calls"
    yield f"estimate  {_estimate(report['estimate'])}"
    if longest := report["longest"]:
        where = f", line {longest['line']:,}" if longest["line"] else ""
        yield f"longest   {longest['bytes']:,} bytes{where}"
    if report["repeated"]:
        yield f"repeated  {report['repeated']:,} references"
    yield f"bad       {report['bad']:,}"
    for bad in report["bad_first"]:
        where = f"line {bad['line']:,}" if bad["line"] else f"record {bad['id']:,}"
        yield f"  {where}: {bad['code']}: {bad['message']}"


def _estimate(estimate: dict[str, Any]) -> str:
    """Tokens and cost; what is unknown is left out."""
    parts = [
        f"{estimate[name]:,} {name.replace('_', ' ')}"
        for name in ("input_tokens", "output_tokens")
        if estimate[name] is not None
    ]
    if cost := estimate["cost"]:
        parts.append(f"${cost['amount']} at the prices of {cost['priced_at']}")
    return ", ".join(parts) or "none: the model's price is unknown"
