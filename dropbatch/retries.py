"""`retry`: a job's failed records, uploaded again as a new job."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dropbatch import aws
from dropbatch.errors import NotFound
from dropbatch.merging import kind_of
from dropbatch.uploads import Uploaded, answers_of, uploaded_as

if TYPE_CHECKING:
    from dropbatch.job import Job


def retry(job: Job) -> Uploaded:
    """Copy a job's retry file into `inbox/`, with its metadata.

    Raises:
        Error: the job is not over, or none of its records can be tried again.
    """
    manifest = job.manifest()
    names = [entry["name"] for entry in manifest["files"] if kind_of(entry) == "retry"]
    if not names:
        raise NotFound(f"Job {job.id} has no retry file: none of its records can be tried again.")
    source = {"Bucket": job.stack.bucket, "Key": job.folder + names[0]}
    path = retry_path(manifest["source"]["key"].removeprefix("inbox/"), PurePosixPath(names[0]).suffix)
    answers: list[dict[str, Any]]
    with aws.explained(), answers_of(job.stack, "CopyObject", "CompleteMultipartUpload") as answers:
        head = job.stack.s3.head_object(**source)
        metadata = {"retry-of": job.id} | head.get("Metadata", {})
        job.stack.s3.copy(
            source, job.stack.bucket, f"inbox/{path}", ExtraArgs={"Metadata": metadata, "MetadataDirective": "REPLACE"}
        )
    return uploaded_as(path, answers)


def retry_path(path: str, suffix: str) -> str:
    """The path of a retry: the upload's, with `.retry` and the retry file's suffix in place of its own suffixes."""
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(".gz").removesuffix(".zst")
    stem = (stem.rpartition(".")[0] or stem).removesuffix(".retry")
    return f"{folder}/{stem}.retry{suffix}".lstrip("/")
