"""A ledger of one item on moto, and the job and the batches with which tests begin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dropbatch.core.names import JobState
from dropbatch.core.plan import SplitPlan
from shared.aws.attribute_values import attribute
from shared.ledger import DueEntry, Ledger
from shared.models import Batch, BatchState, DueKind, ErrorDetail, Job, Part, Records, Upload

M2M = "@cf/meta/m2m100-1.2b"
T = 1_795_253_400.0
"""Now, in Unix seconds."""
UPLOAD = Upload("bucket", "inbox/a.jsonl", "v", "e", 100)
JOB = Job(
    job_id="20261121T093000Z-0000000a",
    state=JobState.SPLITTING,
    upload=UPLOAD,
    plan=SplitPlan(M2M, 500, 9_500_000, "account"),
    created_at=T,
    due_at=T,
)
BATCH = Batch(
    job_id=JOB.job_id,
    number="00000000",
    state=BatchState.QUEUED,
    records=Records(first_id=0, requests=3, sendable=3, body_size=100),
    created_at=T,
    attempt=1,
    due_at=T,
    work=DueKind.POLL,
)
READY = replace(BATCH, state=BatchState.READY, work=DueKind.SUBMIT)
SPLIT = replace(
    READY, isolating=ErrorDetail("rejected", "the reason"), cause="5006", work=DueKind.POLL
)
SUBMITTING = replace(READY, state=BatchState.SUBMITTING)
REASON = ErrorDetail("rejected", "the reason")
PART = Part("part", 1, 0, 0, 0, 1, 0)


def due_entry(held: Job | Batch) -> DueEntry:
    """The item as the index of what is due has it."""
    return DueEntry(held.job_id, getattr(held, "number", ""), held.due_at or 0.0)


class OneItem:
    """A ledger of one item, which others may change."""

    def __init__(self, dynamodb: Any, held: Job | Batch) -> None:
        self.dynamodb, self.ledger = dynamodb, Ledger(dynamodb, "table")
        number = f"BATCH#{held.number}" if isinstance(held, Batch) else "META"
        self.key = {"pk": {"S": f"JOB#{held.job_id}"}, "sk": {"S": number}}
        self.remove()
        if isinstance(held, Batch):
            assert self.ledger.create_batch(held) == held
        else:
            assert self.ledger.create_job(held) == held

    def remove(self) -> None:
        """Delete the item."""
        self.dynamodb.delete_item(TableName="table", Key=self.key)

    def read(self) -> Any:
        """The item in wire form."""
        return self.dynamodb.get_item(TableName="table", Key=self.key, ConsistentRead=True).get(
            "Item"
        )

    def change(self, name: str, value: object) -> None:
        """Set one attribute, as another process would."""
        self.dynamodb.update_item(
            TableName="table",
            Key=self.key,
            UpdateExpression="SET #name = :new",
            ExpressionAttributeNames={"#name": name},
            ExpressionAttributeValues={":new": attribute(value)},
        )
