"""Jobs on moto that are visited at a fixed time: their batches, with parts, are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from dropbatch.core import names
from dropbatch.core.names import JobState
from functions.poll.visit import visit_job
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.ledger import Ledger
from shared.models import BatchState, DueKind, Job, Part, Records
from shared.pacing.budget import Budget
from shared.services import Invocation
from tests.support.aws.resources import client
from tests.support.doubles.ledger_items import BATCH, JOB, OneItem, T

PLENTY = 600.0
"""Seconds that a visit has left if none are given."""
LINE = b'{"id":0}\n'
_ordinals = count()


@dataclass(frozen=True, slots=True)
class Watched(Invocation):
    """An invocation of which a test says, whenever it is asked, how many seconds are left."""

    left: Callable[[], float]

    @property
    def seconds_left(self) -> float:
        """What the test says."""
        return self.left()


class Visited:
    """The services of a visit, as far as it uses them, and the one job that is visited.

    Attributes:
        told: the notices of the job's end.
    """

    def __init__(self, dynamodb: Any) -> None:
        self.dynamodb = dynamodb
        self.ledger = Ledger(dynamodb, "table")
        self.store = ObjectStore(client("s3"), "bucket")
        self.budget = Budget(dynamodb, "table", 3_000)
        self.notices = self
        self.settings = SimpleNamespace(cloudflare_account_id=JOB.plan.account)
        self.told: list[dict[str, Any]] = []
        self.job_id = f"20261121T093000Z-{next(_ordinals):08x}"

    def now(self) -> float:
        """The fixed time."""
        return T

    def publish_job_over(self, detail: dict[str, Any], _at: float) -> None:
        """Keep a notice instead of publishing it."""
        self.told.append(detail)

    def hold(self, *batches: tuple[int, int] | None, **changes: Any) -> Job:
        """Write the job and its batches.

        Args:
            batches: records of each that succeeded and that failed; None: one record that waits for
                its answer.
            changes: attributes of the job's item; by default it is due, and nobody has leased it.
        """
        made = replace(JOB, job_id=self.job_id, state=JobState.IN_PROGRESS)
        job = replace(made, **changes)
        self.item = OneItem(self.dynamodb, job)
        first_id = 0
        for place, counts in enumerate(batches):
            many = sum(counts) if counts else 1
            records = Records(first_id=first_id, requests=many, sendable=many, body_size=100)
            batch = replace(BATCH, job_id=self.job_id, number=f"{place:08}", records=records)
            if counts:
                part = self._part(batch.number, *counts)
                batch = replace(batch, state=BatchState.DONE, part=part, completed_at=T)
            due_at, work = (None, None) if counts else (T + 60, DueKind.POLL)
            assert self.ledger.create_batch(replace(batch, due_at=due_at, work=work))
            first_id += many
        return job

    def visit(self, remaining: float | Callable[[], float] = PLENTY) -> bool:
        """Visit the job; return whether no other run has leased it."""
        left = remaining if callable(remaining) else lambda: remaining
        return visit_job(Watched(cast("Any", self), T + left(), left), self.job_id)

    @property
    def job(self) -> Job:
        """The job as its item is now."""
        found = self.ledger.job(self.job_id)
        assert found
        return found

    @property
    def work(self) -> Any:
        """The kind of due work that the job is."""
        return self.item.read()["work"]["S"]

    def files(self) -> set[str]:
        """Names of the job's objects in its folder of results."""
        return set(self._names(names.result(JOB.upload.key, self.job_id, "")))

    def segments(self) -> set[str]:
        """Names of the segments of its result files."""
        return set(self._names(f"staging/{self.job_id}/segments/"))

    def read(self, name: str) -> bytes:
        """One object of its folder of results."""
        return self.store.get(names.result(JOB.upload.key, self.job_id, name))

    def _names(self, prefix: str) -> list[str]:
        found = client("s3").list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
        return [one["Key"].removeprefix(prefix) for one in found]

    def _part(self, number: str, succeeded: int, failed: int) -> Part:
        """A batch's part: an output line for each record."""
        key = keys.part(self.job_id, number, 1)
        lines = (succeeded + failed, failed, failed)
        self.store.put(key, LINE * sum(lines))
        output, errors, retry = (len(LINE) * many for many in lines)
        return Part(key, output, errors, retry, failed, succeeded, failed)
