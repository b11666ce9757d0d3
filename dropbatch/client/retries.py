"""`retry`: a job's failed records, uploaded again as a new job."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dropbatch.client import aws
from dropbatch.client.uploads import Uploaded, copy, uploaded_as
from dropbatch.core import names
from dropbatch.core.models import model_advice
from dropbatch.core.options import metadata_of
from dropbatch.core.task_token import token_metadata
from dropbatch.errors import NotFound, NothingToRetry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dropbatch.client.job_files import JobFiles


def retry(job: JobFiles, options: Mapping[str, object], task_token: str | None = None) -> Uploaded:
    """Copy a job's retry file into `inbox/`, with its metadata.

    Warns of an earlier retry, and of an odd model.

    Args:
        job: it must be over.
        options: replace those of the job.
        task_token: of the execution that waits for the retry.

    Raises:
        NotFound: the job is not over, or none of its records can be tried again.
        UsageError: an option is unknown or has a wrong value, or the token is none.
    """
    given = metadata_of(options, token_metadata(task_token))
    manifest = job.manifest()
    files = [entry["name"] for entry in manifest["files"] if entry["kind"] == "retry"]
    if not files:
        failed = manifest["counts"]["failed"]
        why = "none of its failed records can be tried again" if failed else "no record failed"
        raise NothingToRetry(f"Job {job.id} has no retry file: {why}.")
    stack = job.stack
    source = job.folder + files[0]
    key = names.INBOX + retry_path(job.path, PurePosixPath(files[0]).suffix)
    _warn_of_another(job, key)
    if advice := model_advice(given.get("model") or manifest["model"] or "", stack.catalog):
        warnings.warn(advice, stacklevel=3)
    found = stack.ask("head_object", source)
    if found is None:
        raise NotFound(f"The retry file of job {job.id} was deleted.")
    metadata = {"retry-of": job.id} | found["Metadata"] | given
    return copy(
        stack, {"Bucket": stack.bucket, "Key": source}, found["ContentLength"], key, metadata
    )


def _warn_of_another(job: JobFiles, key: str) -> None:
    """Warn if the job was retried, whether that retry is over or not."""
    others = retry_ids(job)
    with suppress(NotFound):
        newest = uploaded_as(job.stack, key, {})
        if newest.metadata.get("retry-of") == job.id:
            others.append(newest.job_id(job.stack.bucket))
    if others:
        warnings.warn(
            f"Job {job.id} is retried already, by job {others[-1]}. All its failed records "
            "are sent and billed again. "
            f"A retry of job {others[-1]} sends what that one leaves over.",
            stacklevel=4,
        )


def retry_ids(job: JobFiles) -> list[str]:
    """Ids of the finished jobs that tried a job's failed records again."""
    with aws.explained():
        pages = job.stack.s3.get_paginator("list_objects_v2").paginate(
            Bucket=job.stack.bucket, Prefix=f"{job.folder}retries/"
        )
        found = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    ids = [key.rpartition("/")[2].removesuffix(".json") for key in found]
    return [one for one in ids if names.JOB_ID.fullmatch(one)]


def retry_path(path: str, suffix: str) -> str:
    """The path of a retry.

    The upload's, with `.retry` and the retry file's suffix in place of its own suffixes.

    It is shortened if it would be longer than paths may be.
    """
    folder, slash, name = path.rpartition("/")
    stem = name.removesuffix(".gz").removesuffix(".zst")
    stem = (stem.rpartition(".")[0] or stem).removesuffix(".retry")
    room = names.MAX_PATH_BYTES - len(f"{folder}{slash}.retry{suffix}".encode())
    return f"{folder}{slash}{stem.encode()[:room].decode(errors='ignore')}.retry{suffix}"
