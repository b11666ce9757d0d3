"""Keys of the ledger's items, and the entries of its `due` index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LIFE_SECONDS = 90 * 86_400
"""Seconds that an item is kept after its end; during that time a job's item is its tombstone."""


@dataclass(frozen=True, slots=True)
class DueEntry:
    """One entry of the `due` index.

    Attributes:
        job_id: the job.
        number: the batch's number; empty for the job itself.
        due_at: as read from the index; None if a message named the item.
    """

    job_id: str
    number: str
    due_at: float | None

    @property
    def key(self) -> dict[str, Any]:
        """The item's key."""
        return batch_key(self.job_id, self.number) if self.number else job_key(self.job_id)


def job_key(job_id: str) -> dict[str, Any]:
    """Key of a job's item."""
    return {"pk": {"S": f"JOB#{job_id}"}, "sk": {"S": "META"}}


def batch_key(job_id: str, number: str) -> dict[str, Any]:
    """Key of a batch's item."""
    return {"pk": {"S": f"JOB#{job_id}"}, "sk": {"S": f"BATCH#{number}"}}
