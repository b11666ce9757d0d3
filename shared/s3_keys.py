"""Every object key Dropbatch uses, determined by job, batch and attempt. Nothing is found by listing."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

INBOX = "inbox/"
MAX_PATH_BYTES = 900
"""Bytes of a path under `inbox/` that leave room for `results/<path>/<job_id>/<file>` within S3's 1,024."""

JOB_ID_CHOICES = 8


def job_id(bucket: str, key: str, version: str, etag: str, last_modified: datetime, choice: int = 0) -> str:
    """The id of the job for one upload, the same for every event of it.

    Args:
        bucket: the upload's bucket.
        key: its decoded key.
        version: its version id.
        etag: its ETag, without quotes.
        last_modified: of that version.
        choice: which 8 hexadecimal digits of the digest: 0 unless another upload holds that id.
    """
    digest = hashlib.sha256(f"{bucket}\0{key}\0{version}\0{etag}".encode()).hexdigest()
    return f"{last_modified.astimezone(UTC):%Y%m%dT%H%M%SZ}-{digest[8 * choice : 8 * choice + 8]}"


def is_upload(key: str) -> bool:
    """Whether a key under `inbox/` names an upload: no folder marker, no segment that begins with `_` or `.`."""
    path = key.removeprefix(INBOX)
    return (
        key.startswith(INBOX)
        and bool(path)
        and not path.endswith("/")
        and not any(s[:1] in {"_", "."} for s in path.split("/"))
    )


def result(upload_key: str, job: str, name: str) -> str:
    """Key of one result file of a job."""
    path = upload_key.removeprefix(INBOX)
    return f"results/{'_long' if len(path.encode()) > MAX_PATH_BYTES else path}/{job}/{name}"


def staged(job: str, number: str, round_: int = 0) -> str:
    """A batch's request body with its sidecar behind it, in one object so that they cannot disagree.

    Of a later round, the body of the records tried again, with their places in the first behind it.
    """
    return f"staging/{job}/{number}/request{f'-{round_}' if round_ else ''}"


def receipt(job: str, number: str, attempt: int) -> str:
    """The request_id of an accepted submit that the table refused to take."""
    return f"staging/{job}/{number}/receipt-{attempt}"


def api_message(job: str, number: str, attempt: int) -> str:
    """What the API said when it refused a submit, or failed what it had accepted."""
    return f"staging/{job}/{number}/said-{attempt}"


def raw(job: str, number: str, attempt: int, ordinal: int) -> str:
    """A finished reply as the API sent it; ordinal 0 is the submit itself, others are polls."""
    return f"staging/{job}/{number}/raw-{attempt}-{ordinal}"


def part(job: str, number: str, attempt: int) -> str:
    """A batch's result lines: output, errors and retry sections in one object."""
    return f"staging/{job}/{number}/part-{attempt}"


def segment(job: str, kind: str, ordinal: int, growing: int = 0) -> str:
    """Joined sections of consecutive parts; as long as a segment grows, its every length is an object of its own."""
    return f"staging/{job}/segments/{kind}-{ordinal:05d}{f'-{growing:05d}' if growing else ''}"
