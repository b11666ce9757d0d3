"""Jobs as the bucket shows them: find one by id or path, read its status and manifest, list all of them."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dropbatch import aws
from dropbatch import names as keys
from dropbatch.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dropbatch.stack import Stack

MAX_PARALLEL_READS = 16


@dataclass(frozen=True)
class Job:
    """A job and the folder of its results, which ends in a slash."""

    id: str
    folder: str

    @property
    def path(self) -> str:
        """The upload's path under `inbox/`."""
        return self.folder.removeprefix("results/").removesuffix(f"{self.id}/").rstrip("/")


def job_at(path: str, job_id: str) -> Job:
    """The job of an upload."""
    return Job(job_id, keys.result(keys.INBOX + path, job_id, ""))


def find_job(stack: Stack, name: str) -> Job:
    """Find a job by its id, by the path of its upload (its newest job), or by the path of one of its results.

    Raises:
        Error: there is no such job.
    """
    if keys.JOB_ID.fullmatch(name):
        record = read_json(stack, keys.job_record(name))
        if record is None:
            raise NotFound(f"There is no job {name} in {stack.bucket}.")
        return job_at(record["path"], name)
    path = name.removeprefix(f"s3://{stack.bucket}/").lstrip("/")
    segments = path.split("/")
    for index, segment in enumerate(segments):
        if keys.JOB_ID.fullmatch(segment):
            return Job(segment, "results/" + "/".join(segments[: index + 1]).removeprefix("results/") + "/")
    path = path.removeprefix("inbox/").removeprefix("results/").rstrip("/")
    ids = job_ids(stack, path) if path else []
    if not ids:
        raise NotFound(f"No upload {name!r} has a job in {stack.bucket}. `dropbatch ls` lists jobs.")
    return job_at(path, ids[-1])


def job_ids(stack: Stack, path: str) -> list[str]:
    """Ids of the jobs of one path, oldest first."""
    folder = job_at(path, "").folder.rstrip("/")
    with aws.explained():
        pages = stack.s3.get_paginator("list_objects_v2").paginate(
            Bucket=stack.bucket, Prefix=f"{folder}/", Delimiter="/"
        )
        prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
    names = [prefix.removesuffix("/").rpartition("/")[2] for prefix in prefixes]
    return sorted(name for name in names if keys.JOB_ID.fullmatch(name))


def job_of_upload(stack: Stack, path: str, version: str, etag: str, *, folder: str = "inbox") -> Job | None:
    """The job of one version of an upload; None if it has none yet.

    A job's id ends in 8 hexadecimal digits of a digest of the upload, so that no object has to be read.

    Args:
        stack: the stack.
        path: of the upload, under its folder.
        version: its version id.
        etag: its ETag, without quotes.
        folder: `inbox` or `validate`.
    """
    digest = hashlib.sha256(f"{stack.bucket}\0{folder}/{path}\0{version}\0{etag}".encode()).hexdigest()
    endings = {digest[start : start + 8] for start in range(0, len(digest), 8)}
    path = path if folder == "inbox" else f"_{folder}/{path}"
    matching = [one for one in job_ids(stack, path) if one.rpartition("-")[2] in endings]
    return job_at(path, matching[-1]) if matching else None


def read_json(stack: Stack, key: str) -> dict[str, Any] | None:
    """A JSON object of the bucket; None if it does not exist."""
    from botocore.exceptions import ClientError

    with aws.explained():
        try:
            body = stack.s3.get_object(Bucket=stack.bucket, Key=key)["Body"].read()
        except ClientError as error:
            if aws.is_missing(stack.s3, stack.bucket, key, error):
                return None
            raise
    found: dict[str, Any] = json.loads(body)
    return found


def status_of(stack: Stack, job: Job) -> dict[str, Any]:
    """A job's status.json.

    Raises:
        Error: there is no such job.
    """
    found = read_json(stack, f"{job.folder}status.json")
    if found is None:
        raise NotFound(f"There is no job {job.id} under {job.folder}.")
    return found


def manifest_of(stack: Stack, job: Job) -> dict[str, Any]:
    """A finished job's manifest.

    Raises:
        Error: the job does not exist, or is not over.
    """
    found = read_json(stack, f"{job.folder}manifest.json")
    if found is None:
        status_of(stack, job)
        raise NotFound(f"Job {job.id} is not over yet. Wait for it with `dropbatch wait {job.id}`.")
    return found


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
    record = read_json(stack, key) or {}
    job = job_at(record.get("path", ""), job_id)
    return job, record | (read_json(stack, f"{job.folder}status.json") or {"state": "unknown"})
