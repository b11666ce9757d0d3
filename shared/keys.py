"""The keys of what the functions stage for a job: job, batch and attempt determine each one."""

from __future__ import annotations

from dataclasses import replace

from shared.aws.object_store import ObjectStore
from shared.errors import ObjectNotFoundError
from shared.models import Batch, ErrorDetail


def raw(job: str, number: str, attempt: int, ordinal: int) -> str:
    """Key of a finished reply as the API sent it; ordinal 0 is the submit's, others of polls."""
    return f"staging/{job}/{number}/raw-{attempt}-{ordinal}"


def part(job: str, number: str, attempt: int) -> str:
    """Key of a batch's result lines: output, errors and retry sections in one object."""
    return f"staging/{job}/{number}/part-{attempt}"


def segment(job: str, kind: str, ordinal: int, growing: int = 0) -> str:
    """Key of the joined sections of consecutive parts; one that grows is a new object each time."""
    return f"staging/{job}/segments/{kind}-{ordinal:05d}{f'-{growing:05d}' if growing else ''}"


def staged(job: str, number: str) -> str:
    """Key of a batch's request body, originals and index: one object (`shared.staged_batch`)."""
    return f"staging/{job}/{number}/request"


def receipt(job: str, number: str, attempt: int) -> str:
    """Key of the request_id of an accepted submit that the table did not record."""
    return f"staging/{job}/{number}/receipt-{attempt}"


def api_message(job: str, number: str, attempt: int) -> str:
    """Key of the API's message when it refused a submit, or failed an accepted batch."""
    return f"staging/{job}/{number}/said-{attempt}"


def staging(job: str) -> str:
    """The prefix of everything staged for a job."""
    return f"staging/{job}/"


def answer_columns(job: str) -> str:
    """Key of the columns that a table's answers have besides `answer`, a JSON array."""
    return f"staging/{job}/header-answers"


def header(job: str) -> str:
    """Key of a table's first row, as it was written."""
    return f"staging/{job}/header"


# ── the API's own error messages ──────────────────────────────────────────────────────────────────

# They may quote a prompt. So they are in S3 and in result files, and in no log, event or item.


def attach_api_message(
    store: ObjectStore, batch: Batch, fault: ErrorDetail, said: str
) -> ErrorDetail:
    """Store the API's message about a batch's latest submit, the first; the fault with its key."""
    if not said:
        return fault
    key = api_message(batch.job_id, batch.number, batch.attempt)
    store.put_if_absent(key, said.encode(errors="replace"))
    return replace(fault, said=key)


def full_message(store: ObjectStore, fault: ErrorDetail) -> str:
    """A fault's message, followed by the API's own; for result files only."""
    if not fault.said:
        return fault.message
    try:
        return f"{fault.message}: {store.get(fault.said).decode()}"
    except ObjectNotFoundError:
        return fault.message
