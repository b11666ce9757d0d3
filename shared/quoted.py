"""The API's own words on a refusal: kept in S3, where prompts are, because they may quote one.

The ledger says only where they lie, and so does nothing else that is logged, told or raised. Users read them in their
result files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared import keys
from shared.store import NotThereError

if TYPE_CHECKING:
    from shared.store import Store
    from shared.words import Batch, Fault


def quoting(store: Store, batch: Batch, fault: Fault, said: str) -> Fault:
    """A fault of a batch with what the API said to its latest submit kept beside it; what was kept first stays.

    Raises:
        StorageError: S3 refused or broke off.
    """
    if not said:
        return fault
    key = keys.said(batch.job_id, batch.number, batch.attempt)
    store.put_once(key, said.encode(errors="replace"))
    return replace(fault, said=key)


def in_full(store: Store, fault: Fault) -> str:
    """A fault's message with the words of the API that it names; for result files only.

    Raises:
        StorageError: S3 refused or broke off.
    """
    if not fault.said:
        return fault.message
    try:
        return f"{fault.message}: {store.get(fault.said).decode()}"
    except NotThereError:
        return fault.message
