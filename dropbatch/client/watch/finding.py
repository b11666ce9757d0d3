"""Many jobs by one name: those whose paths begin alike or match a pattern.

A call a page of a listing, not a job.
"""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING

from dropbatch.client.job import Job
from dropbatch.client.job_files import no_job
from dropbatch.client.transfer.objects import pages_of
from dropbatch.core import names
from dropbatch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dropbatch.client.stack import Stack

_PATTERN = re.compile(r"[*?\[]")
_RESULTS = "results/"
_OWN = ("_jobs/", "_long/")
"""Folders of results that are no path of an upload."""


def is_many(name: str) -> bool:
    """Whether a name may mean several jobs: it ends in a slash, or has `*`, `?` or `[`."""
    return name.endswith("/") or bool(_PATTERN.search(name))


def jobs_under(stack: Stack, prefix: str) -> Iterator[Job]:
    """The jobs whose uploads' paths begin with a prefix, by path, the oldest of each path first.

    Those of paths that are too long for a folder of results are not among them.
    """
    return (one for one in _under(stack, prefix) if isinstance(one, Job))


def _under(stack: Stack, prefix: str) -> Iterator[Job | str]:
    """The same, and the paths of notices: of uploads without a job.

    A path's jobs come before its notice.
    """
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
    """The newest job of each path that a name means: a prefix that ends in a slash, or a pattern.

    An upload of which S3 tells the stack nothing has no job: it is an error.

    In a pattern, `*` matches any characters, also slashes; a name that ends in a slash means all
    below it.
    """
    path = name.removeprefix(f"s3://{stack.bucket}/").lstrip("/")
    path = path.removeprefix(names.INBOX if path.startswith(names.INBOX) else _RESULTS)
    found = _PATTERN.search(path)
    prefix = path[: found.start()] if found else path
    matches = re.compile(translate(path)).match if found else lambda _: True
    newest: Job | None = None
    for job in _under(stack, prefix):
        if isinstance(job, str):
            if matches(job) and (error := _told(stack, job)):
                yield error
            continue
        if newest and newest.path != job.path and matches(newest.path):
            yield newest
        newest = job
    if newest and matches(newest.path):
        yield newest


def _told(stack: Stack, path: str) -> Error | None:
    """What the notice of an upload tells; None if it got its job since."""
    try:
        notice = stack.read_json(names.denied_notice(names.INBOX + path))
    except Error as error:
        return error
    return no_job(path, notice) if notice and not notice.get("job_id") else None
