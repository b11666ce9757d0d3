"""Batches of a stack whose events are pulled: the table on moto, Cloudflare's queues in memory."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from shared.events.set_up import subscribe
from shared.models import Batch, Submission
from tests.integration.shared.events.conftest import Stack
from tests.support.doubles.ledger_items import BATCH, T

M3 = "@cf/baai/bge-m3"
_jobs = count(1)


class Told(Stack):
    """A stack that is set up, with an outstanding batch `id` that is due in a minute."""

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        subscribe(self.services, M3)
        self.cloudflare.calls.clear()
        self.begin()

    def begin(self, **changes: Any) -> None:
        """Put another batch, with its differences, and note its id."""
        seen = replace(
            BATCH,
            submissions=(Submission("id", 1, T - 100),),
            due_at=T + 60,
            number=f"{next(_jobs):08d}",
        )
        self.batch_before: Batch = replace(seen, **changes)
        ledger, events = self.services.ledger, self.services.events
        ledger.create_batch(self.batch_before)
        if self.batch_before.submissions:
            events.ids.assign(
                "id", seen.job_id, seen.number, self.batch_before.submissions[-1].round, T
            )

    @property
    def batch(self) -> Batch:
        """The batch as it is now."""
        found = self.services.ledger.batch(self.batch_before.job_id, self.batch_before.number)
        assert found
        return found


@pytest.fixture
def told(table: Any) -> Told:
    table.delete_item(TableName="table", Key={"pk": {"S": "ID#id"}, "sk": {"S": "ID"}})
    return Told(table)
