"""Find jobs in the bucket: by id, by path, by upload, or all since a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dropbatch import aws
from dropbatch import names as keys
from dropbatch.errors import NotFound
from dropbatch.job import Job, job_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dropbatch.stack import Stack

MAX_PARALLEL_READS = 16


def find_job(stack: Stack, name: str) -> Job:
    """Find a job by its id, by the path of its upload (its newest job), or by the path of one of its results.

    Raises:
        Error: there is no such job.
    """
    if keys.JOB_ID.fullmatch(name):
        record = stack.read_json(keys.job_record(name))
        if record is None:
            raise NotFound(f"There is no job {name} in {stack.bucket}.")
        return job_at(stack, record["path"], name)
    path = name.removeprefix(f"s3://{stack.bucket}/").lstrip("/")
    segments = path.split("/")
    for index, segment in enumerate(segments):
        if keys.JOB_ID.fullmatch(segment):
            return Job(stack, segment, "results/" + "/".join(segments[: index + 1]).removeprefix("results/") + "/")
    path = path.removeprefix("inbox/").removeprefix("results/").rstrip("/")
    ids = job_ids(stack, path) if path else []
    if not ids:
        raise NotFound(f"No upload {name!r} has a job in {stack.bucket}. `dropbatch ls` lists jobs.")
    return job_at(stack, path, ids[-1])


def job_ids(stack: Stack, path: str) -> list[str]:
    """Ids of the jobs of one path, oldest first."""
    folder = job_at(stack, path, "").folder.rstrip("/")
    with aws.explained():
        pages = stack.s3.get_paginator("list_objects_v2").paginate(
            Bucket=stack.bucket, Prefix=f"{folder}/", Delimiter="/"
        )
        prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
    names = [prefix.removesuffix("/").rpartition("/")[2] for prefix in prefixes]
    return sorted(name for name in names if keys.JOB_ID.fullmatch(name))


def history(stack: Stack, since: datetime) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Jobs created since a time, oldest first, each with its status (`state` is `unknown` without one)."""
    pages = stack.s3.get_paginator("list_objects_v2").paginate(
        Bucket=stack.bucket,
        Prefix=keys.JOB_RECORDS,
        StartAfter=f"{keys.JOB_RECORDS}{since.astimezone(UTC):%Y%m%dT%H%M%SZ}",
    )
    with aws.explained(), ThreadPoolExecutor(MAX_PARALLEL_READS) as threads:
        for page in pages:
            records = [entry["Key"] for entry in page.get("Contents", [])]
            yield from threads.map(lambda key: _entry(stack, key), records)


def _entry(stack: Stack, key: str) -> tuple[Job, dict[str, Any]]:
    job_id = key.removeprefix(keys.JOB_RECORDS).removesuffix(".json")
    record = stack.read_json(key) or {}
    job = job_at(stack, record.get("path", ""), job_id)
    return job, record | (stack.read_json(f"{job.folder}status.json") or {"state": "unknown"})
