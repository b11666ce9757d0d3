"""The API's own words on a refusal: kept in S3, where prompts are, because they may quote one.

The ledger says only where they lie, and so does nothing else that is logged, told or raised. Users read them in their
result files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared import s3_keys as keys
from shared.aws.object_store import ObjectNotFoundError

if TYPE_CHECKING:
    from shared.aws.object_store import ObjectStore
    from shared.models import Batch, ErrorDetail


def attach_api_message(store: ObjectStore, batch: Batch, fault: ErrorDetail, said: str) -> ErrorDetail:
    """A fault of a batch with what the API said to its latest submit kept beside it; what was kept first stays.

    Raises:
        StorageError: S3 refused or broke off.
    """
    if not said:
        return fault
    key = keys.api_message(batch.job_id, batch.number, batch.attempt)
    store.put_if_absent(key, said.encode(errors="replace"))
    return replace(fault, said=key)


def full_message(store: ObjectStore, fault: ErrorDetail) -> str:
    """A fault's message with the words of the API that it names; for result files only.

    Raises:
        StorageError: S3 refused or broke off.
    """
    if not fault.said:
        return fault.message
    try:
        return f"{fault.message}: {store.get(fault.said).decode()}"
    except ObjectNotFoundError:
        return fault.message
