"""Find jobs in the bucket: by id, by path, by upload, or all since a time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from fnmatch import translate
from itertools import chain, groupby
from pathlib import Path, PurePosixPath
from typing import Any

from dropbatch.client import aws
from dropbatch.client.job import Job, no_job
from dropbatch.client.sources import names_table, upload_name
from dropbatch.client.stack import Stack, pages_of
from dropbatch.client.upload import uploaded_as
from dropbatch.core import names
from dropbatch.errors import Error, NoJob, NotFound, UsageError

MAX_PARALLEL_READS = 16
NAMED_SECONDS = 60.0
"""Seconds to wait for a job that is only named, if its id is this young."""


def find_job(stack: Stack, name: str) -> Job:
    """Find the job that a name means.

    A name that begins with `inbox/` is that upload; one with a job id in it is that job; any other
    is the path of an upload. Its job is that of its newest version, created already or not.
    """
    if not name.isascii() and "\\ud" in ascii(name):  # A name that is no UTF-8 is no key.
        raise NotFound(f"There is no job {name!r} in {stack.bucket}.")
    path = name.removeprefix(f"s3://{stack.bucket}/").lstrip("/")
    ids = [] if path.startswith(names.INBOX) else _ANY_ID.findall(path)
    # The path of a result may have the id of another job in its upload's path.
    for job_id in reversed(ids):
        with suppress(NotFound):
            return Job.recorded(stack, job_id)
    if ids:
        soon = " If its file was just uploaded, name it by its path, or wait some seconds."
        hint = soon if may_come(path) else ""
        raise NotFound(f"There is no job {name} in {stack.bucket}.{hint}")
    path = path.removeprefix(names.INBOX).rstrip("/")
    tries = [path] if path else []
    tries += [str(PurePosixPath(path).with_suffix(".csv"))] if names_table(path) else []
    if Path(name).is_file():  # As it was put, perhaps from another folder.
        tries.append(upload_name(Path(name)))
    found = (_newest(stack, one) for one in tries)
    if job := next(filter(None, found), None) or _by_short_id(stack, name):
        return job
    raise NoJob(f"No upload {name!r} has a job in {stack.bucket}.")


def _newest(stack: Stack, path: str) -> Job | None:
    """The job of the newest version of an upload, created already or not."""
    newest = next(reversed(job_ids(stack, path)), "")
    upload = _uploaded(stack, path)
    if upload and upload.id[:_TIME] >= newest[:_TIME] and upload.id != newest:
        return upload.resolved()
    return Job.at(stack, path, newest) if newest else None


def _by_short_id(stack: Stack, name: str) -> Job | None:
    """The job whose id ends so, as a narrow terminal shows it."""
    if not _SHORT_ID.fullmatch(name):
        return None
    keys = (one["Key"] for page in pages_of(stack, names.JOB_RECORDS) for one in page)
    found = [key for key in keys if key.endswith(f"-{name}.json")]
    if len(found) > 1:
        raise UsageError(f"The ids of {len(found):,} jobs end in {name}. Write the whole id.")
    return Job.recorded(stack, found[0].rpartition("/")[2].removesuffix(".json")) if found else None


def may_come(name: str) -> bool:
    """Whether a name has an id so young that the stack may still create its job."""
    ids = [] if name.startswith(names.INBOX) else names.JOB_ID.findall(name)
    return bool(ids) and time.time() <= names.job_time(ids[-1]).timestamp() + NAMED_SECONDS


_ANY_ID = re.compile(rf"(?<![0-9A-Za-z]){names.JOB_ID.pattern}(?![0-9A-Za-z])")
_SHORT_ID = re.compile("[0-9a-f]{8}")
_TIME = len("20261121T093000Z")


def _uploaded(stack: Stack, path: str) -> Job | None:
    try:
        return Job.of_upload(stack, uploaded_as(stack, names.INBOX + path, {}))
    except NotFound:
        return None


def job_ids(stack: Stack, path: str) -> list[str]:
    """Ids of the jobs of one path, oldest first."""
    folder = Job.at(stack, path, "").folder.rstrip("/")
    with aws.explained():
        pages = stack.s3.get_paginator("list_objects_v2").paginate(
            Bucket=stack.bucket, Prefix=f"{folder}/", Delimiter="/"
        )
        prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
    found = [prefix.removesuffix("/").rpartition("/")[2] for prefix in prefixes]
    ids = sorted(name for name in found if names.JOB_ID.fullmatch(name))
    if folder.endswith(path):
        return ids
    # Jobs of paths that are too long for a folder share one.
    return [
        one for one in ids if (stack.read_json(names.job_record(one)) or {}).get("path") == path
    ]


def history(stack: Stack, since: datetime) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Jobs created since a time, oldest first, each with its status; `unknown` without one."""
    with aws.explained(), ThreadPoolExecutor(MAX_PARALLEL_READS) as threads:
        for page in _records_since(stack, since):
            yield from threads.map(lambda key: _entry(stack, key), [entry["Key"] for entry in page])


def newest(
    stack: Stack, since: datetime, limit: int, wanted: Callable[[dict[str, Any]], bool]
) -> list[tuple[Job, dict[str, Any]]]:
    """The newest jobs created since a time whose status is wanted, oldest first, each with it."""
    records = [entry["Key"] for entry in chain.from_iterable(_records_since(stack, since))]
    found: list[tuple[Job, dict[str, Any]]] = []
    with ThreadPoolExecutor(MAX_PARALLEL_READS) as threads:
        while records and len(found) < limit:
            some = records[-max(limit, MAX_PARALLEL_READS) :]
            del records[-len(some) :]
            entries = list(threads.map(lambda key: _entry(stack, key), some))
            found += [one for one in reversed(entries) if wanted(one[1])]
    return found[:limit][::-1]


def _records_since(stack: Stack, since: datetime) -> Iterator[list[dict[str, Any]]]:
    after = f"{names.JOB_RECORDS}{since.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    return pages_of(stack, names.JOB_RECORDS, after)


_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def time_of(since: str | date) -> datetime:
    """A time in the past, in UTC: `30m`, `12h`, `7d`, `2w` before now, or a date or time, here."""
    text = str(since)
    try:
        if text[-1:] in _UNITS and text[:-1].isdigit():
            return datetime.now(UTC) - timedelta(**{_UNITS[text[-1]]: int(text[:-1])})
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is no time. Write 30m, 12h, 7d, 2w, or a date such as 2026-11-21."
        ) from None


def _entry(stack: Stack, key: str) -> tuple[Job, dict[str, Any]]:
    job_id = key.removeprefix(names.JOB_RECORDS).removesuffix(".json")
    record = _read(stack, key)
    job = Job.at(stack, record.get("path", ""), job_id)
    return job, {"state": "unknown"} | record | _read(stack, f"{job.folder}status.json")


def _read(stack: Stack, key: str) -> dict[str, Any]:
    """An object of the bucket; empty if it expired or was changed, which hides no other job."""
    try:
        return stack.read_json(key) or {}
    except Error as error:
        if type(error) is not Error:  # AWS denies it, or cannot be reached.
            raise
        return {}


_PATTERN = re.compile(r"[*?\[]")
_RESULTS = "results/"
_OWN = ("_jobs/", "_long/")
"""Folders of results that are no path of an upload."""


def is_many(name: str) -> bool:
    """Whether a name may mean several jobs: it ends in a slash, or has `*`, `?` or `[`."""
    return name.endswith("/") or bool(_PATTERN.search(name))


def jobs_under(stack: Stack, prefix: str) -> Iterator[Job]:
    """The jobs whose uploads' paths begin with a prefix, by path, the oldest of each path first."""
    return (one for one in _under(stack, prefix) if isinstance(one, Job))


def _under(stack: Stack, prefix: str) -> Iterator[Job | str]:
    """The same, and after a path's jobs that of its notice: of an upload without a job."""
    last = ""
    for page in pages_of(stack, _RESULTS + prefix):
        for entry in page:
            folder, _, name = entry["Key"].rpartition("/")
            if name not in {"status.json", "manifest.json"} or folder == last:
                continue
            inner = folder.removeprefix(_RESULTS)
            path, _, job_id = inner.rpartition("/")
            if f"{inner}/".startswith(_OWN):
                continue
            if names.JOB_ID.fullmatch(job_id):
                last = folder
                yield Job.at(stack, path, job_id)
            elif name == "status.json":
                yield inner


def newest_jobs(stack: Stack, name: str) -> Iterator[Job | Error]:
    """The newest job of each path under a prefix, or that matches a pattern (`*`: slashes too).

    That of an upload of the last hour may not be created yet. An upload of which S3 tells the stack
    nothing has no job: it is an error.
    """
    path = name.removeprefix(f"s3://{stack.bucket}/").lstrip("/")
    path = path.removeprefix(names.INBOX if path.startswith(names.INBOX) else _RESULTS)
    found = _PATTERN.search(path)
    prefix = path[: found.start()] if found else path
    matches = re.compile(translate(path)).match if found else lambda _: True
    coming = {path: time for path, time in _new_uploads(stack, prefix) if matches(path)}
    for path, found_there in groupby(_under(stack, prefix), _path_of):
        if not matches(path):
            continue
        newest = None
        for one in found_there:
            if isinstance(one, Job):
                newest = one
            elif error := _notice_of(stack, path):
                coming.pop(path, None)
                yield error
        if newest and newest.id > coming.get(path, ""):
            coming.pop(path, None)
            yield newest
    yield from filter(None, (_newest(stack, path) for path in coming))


def _path_of(found: Job | str) -> str:
    return found if isinstance(found, str) else found.path


def _new_uploads(stack: Stack, prefix: str) -> Iterator[tuple[str, str]]:
    """Paths of uploads of the last hour, and what the ids of their jobs begin with."""
    since = datetime.now(UTC) - timedelta(hours=1)
    for one in chain.from_iterable(pages_of(stack, names.INBOX + prefix)):
        if one["LastModified"] > since and names.is_upload(one["Key"]):
            yield names.upload_path(one["Key"]), f"{one['LastModified']:%Y%m%dT%H%M%SZ}"


def _notice_of(stack: Stack, path: str) -> Error | None:
    try:
        notice = stack.read_json(names.denied_notice(names.INBOX + path))
    except Error as error:
        return error
    return no_job(path, notice) if notice and not notice.get("job_id") else None
