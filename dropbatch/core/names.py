"""Names that the stack and its users share: the keys of objects, the ids and states of jobs.

Job, batch and attempt determine every key. Nothing is found by listing.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from enum import StrEnum

INBOX = "inbox/"
"""Where users put uploads."""
MAX_KEY_BYTES = 1_024
"""Maximum bytes of an S3 key."""
STACK_CONTROL = "control/stack"
SCHEMA = "v2"
"""Of the table's items: a change that older code must not work on raises it."""
CONTROL_PK = f"{SCHEMA}#CONTROL"
"""Partition key of the items that are no job's: pauses, the rate, times, events."""
JOB_RECORDS = "results/_jobs/"
"""One small object for each job, written when the job is created: path, model, format."""
JOB_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")
_JOB_CONTROL = re.compile(f"control/jobs/({JOB_ID.pattern})")
_MANIFEST = re.compile(f"results/.+/({JOB_ID.pattern})/manifest\\.json", re.DOTALL)
MAX_PATH_BYTES = 900
"""Bytes of a path under `inbox/` that leave room for `results/<path>/<job_id>/<file>`."""

JOB_ID_CHOICES = 8
_ATTACHMENT = re.compile(
    r"(?:.*/)?(?:images/.*\.(?:png|jpe?g|gif|webp)|audio/.*\.(?:wav|mp3|aac|flac|ogg|m4a|webm))",
    re.DOTALL | re.IGNORECASE,
)


class JobState(StrEnum):
    """States of a job; the last three are final."""

    SPLITTING = "splitting"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})


def job_id(
    bucket: str, key: str, version: str, etag: str, last_modified: datetime, choice: int = 0
) -> str:
    """The id of the job for one upload, the same for every event of it.

    `choice`: which 8 hexadecimal digits of the digest; 0 unless another upload has that id.
    """
    digest = hashlib.sha256(f"{bucket}\0{key}\0{version}\0{etag}".encode()).hexdigest()
    return f"{last_modified.astimezone(UTC):%Y%m%dT%H%M%SZ}-{digest[8 * choice : 8 * choice + 8]}"


def job_time(job: str) -> datetime:
    """When a job's upload was written: the time in its id."""
    return datetime.strptime(job[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def upload_path(key: str) -> str:
    """The path of an upload's key, under `inbox/`."""
    return key.removeprefix(INBOX)


def is_attachment(path: str) -> bool:
    """Whether a path is that of a picture or sound that records may name, and of no upload."""
    return _ATTACHMENT.fullmatch(path) is not None


def long_options(name: str) -> str:
    """The key of options for which an upload's metadata has no room; their content names them."""
    return f"{INBOX}_options/{name}.json"


def is_upload(key: str) -> bool:
    """Whether a key names an upload: no folder, and no segment that begins with `_` or `.`.

    Pictures in a folder `images`, and sounds in a folder `audio`, are none.
    """
    path = upload_path(key)
    return (
        key.startswith(INBOX)
        and bool(path)
        and not path.endswith("/")
        and not is_attachment(path)
        and not any(s[:1] in {"_", "."} for s in path.split("/"))
    )


def job_control(job: str) -> str:
    """Key of the object with a user's command for a job."""
    return f"control/jobs/{job}"


def controlled_job(key: str) -> str | None:
    """The job that a key under `control/` names; None if it names none."""
    matched = _JOB_CONTROL.fullmatch(key)
    return matched[1] if matched else None


def named_job(text: str) -> str | None:
    """The job that a text names, by its id or the key of its manifest; None if it names none."""
    if JOB_ID.fullmatch(text):
        return text
    matched = _MANIFEST.fullmatch(text)
    return matched[1] if matched else None


def result(upload_key: str, job: str, name: str) -> str:
    """Key of one result file of a job."""
    path = upload_path(upload_key)
    return f"results/{'_long' if len(path.encode()) > MAX_PATH_BYTES else path}/{job}/{name}"


def denied_notice(upload_key: str) -> str:
    """Key of the object that shows an upload for which S3 refuses even HEAD."""
    return result(upload_key, "status.json", "").removesuffix("/")


def job_record(job: str) -> str:
    """Key of the object with the path of a job's upload; a listing of these is the history."""
    return f"{JOB_RECORDS}{job}.json"


def encryption(kms_key: str = "") -> dict[str, str]:
    """Arguments of S3's writes: what the bucket does by default, which organizations want said."""
    if kms_key:
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}
    return {"ServerSideEncryption": "AES256"}
