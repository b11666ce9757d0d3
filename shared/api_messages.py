"""The API's own error messages: stored in S3, like the prompts, because they may quote one.

The ledger holds only their key. They are not in logs, events or exceptions; users read them in
their result files.
"""

from __future__ import annotations

from dataclasses import replace

from shared import keys
from shared.aws.object_store import ObjectStore
from shared.errors import ObjectNotFoundError
from shared.models import Batch, ErrorDetail


def attach_api_message(
    store: ObjectStore, batch: Batch, fault: ErrorDetail, said: str
) -> ErrorDetail:
    """Store the API's message about a batch's latest submit, the first; the fault with its key."""
    if not said:
        return fault
    key = keys.api_message(batch.job_id, batch.number, batch.attempt)
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
