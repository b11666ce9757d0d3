"""All services that `split` uses, as dictionaries: a process can die at each of their calls."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read.index import build_body
from functions.submit.read import lease_turn, take_turn
from functions.submit.stage import split
from shared.aws.object_store import ObjectStore
from shared.aws.queues import PollMessage, SubmitMessage, VisitMessage
from shared.errors import StorageError
from shared.models import Batch, ErrorDetail, Job, Upload
from shared.pacing.budget import Free
from shared.pacing.wake import LeftDue
from shared.services import Invocation

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")

RECORDS = [json.dumps({"text": f"record {number}"}).encode() for number in range(23)]
UPLOAD = b"".join(record + b"\n" for record in RECORDS)
SIZES = [1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 3]
"""Records of the batches, which grow from 1 to 4."""


class DiedError(BaseException):
    """The process is gone."""


class Fake:
    """All services that `split` uses.

    One call may be struck: the process dies, or the answer is lost.

    `given` has the arguments of the last call of each change of the job.
    """

    def __init__(self, *, first: int = 1, most: int = 4) -> None:
        self.objects: dict[str, SimpleNamespace] = {}
        self.batches: dict[str, Batch] = {}
        self.messages: list[str] = []
        self.visits: list[str] = []
        self.calls: list[str] = []
        self.statuses: list[dict[str, Any]] = []
        self.given: dict[str, Any] = {}
        self.strikes_at, self.mode, self.clock = 0, "", 1_000.0
        self.lock = threading.RLock()
        plan = SplitPlan("@cf/a/b", most, 9_500_000, "account", "jsonl", "plain", 0, first)
        upload = Upload("bucket", "inbox/a.jsonl", "version", "etag", len(UPLOAD))
        self.job = Job(
            job_id="job",
            state=JobState.SPLITTING,
            upload=upload,
            plan=plan,
            created_at=self.clock,
            due_at=0.0,
        )
        self.services: Any = SimpleNamespace(
            store=self,
            ledger=self,
            queues=self,
            budget=SimpleNamespace(burst=100, slot_seconds=0.6, free=self.free),
            left=LeftDue(),
            now=lambda: self.clock,
        )

    def run(self, *, leased: bool = False, remaining: float = 150.0) -> bool:
        """Run one turn; return whether the process survived."""
        try:
            job = self.job if leased else lease_turn(self.services, self.job)
            if job:
                take_turn(Invocation(self.services, self.clock + remaining), job, split)
        except (DiedError, StorageError):
            self.strikes_at = 0
            return False
        return True

    def run_to_the_end(self) -> None:
        """Run turns until the upload is split."""
        for _ in range(50):
            self.run()
            if self.job.state is not JobState.SPLITTING:
                return
        raise AssertionError("it never ends")

    def _call(self, name: str, effect: Callable[[], T]) -> T:
        with self.lock:
            self.calls.append(name)
            struck = self.strikes_at == len(self.calls)
            if struck and self.mode == "before":
                raise DiedError
            answer = effect()
            if struck:
                raise DiedError if self.mode == "after" else StorageError("no answer")
            return answer

    def free(self, _now: float) -> Free:
        """Calls that the rate budget has left."""
        return self._call("free", lambda: Free(100, 50, 90))

    # the store

    def read_version(self, key: str, version: str, etag: str, start: int, length: int) -> bytes:
        """Bytes of the upload."""
        return self._call("read", lambda: UPLOAD[start : start + length])

    def put_if_absent(
        self, key: str, body: bytes, metadata: dict[str, str] | None = None, kind: str = ""
    ) -> bool:
        """Write an object once."""

        def effect() -> bool:
            if key in self.objects:
                return False
            self.objects[key] = SimpleNamespace(body=body, metadata=metadata, etag=str(hash(body)))
            return True

        return self._call("put", effect)

    def head(self, key: str) -> SimpleNamespace | None:
        """A stored object."""
        return self._call("head", lambda: self.objects.get(key))

    existing = ObjectStore.existing

    def replace(self, key: str, body: bytes, etag: str, metadata: dict[str, str]) -> None:
        """Overwrite an object that no batch uses."""

        def effect() -> None:
            assert self.objects[key].etag == etag
            assert f"{key.split('/')[2]}" not in self.batches, "a batch names it"
            self.objects[key] = SimpleNamespace(body=body, metadata=metadata, etag=str(hash(body)))

        self._call("replace", effect)

    def put(self, key: str, body: bytes, kind: str) -> None:
        """Write the status."""
        self._call("status", lambda: self.statuses.append(json.loads(body)))

    # the ledger

    def lease_job(self, job: Job, now: float, until: float) -> Job | None:
        """The job, for this turn."""
        self.given["lease"] = (now, until)
        return self._call("lease", lambda: self.job)

    def update_leased_job(self, job: Job, changes: dict[str, Any]) -> Job | None:
        """Change the job."""

        def effect() -> Job:
            self.given["move"] = changes
            self.job = replace(self.job, **changes)
            return self.job

        return self._call("move", effect)

    def release_job(self, job: Job, due_at: float, **updates: Any) -> None:
        """The turn is over, but the upload is not."""

        def effect() -> None:
            self.job = replace(self.job, **updates)

        self.given["release"] = due_at
        self._call("release", effect)

    def retry_job(self, job: Job, due_at: float, claims: int) -> Job | None:
        """Release the lease of a turn that failed, if it is still this run's."""
        self.calls.append("retry")
        if job.lease_until != self.job.lease_until:
            return None
        self.job = replace(self.job, lease_until=0.0, due_at=due_at, claims=claims)
        return self.job

    def end_split(
        self,
        job: Job,
        total: int,
        error: ErrorDetail | None,
        due_at: float,
        *,
        to_end: bool,
        has_endings: bool,
    ) -> Job:
        """The upload is read, as far as it is used."""

        def effect() -> Job:
            self.given["end"] = (total, error, to_end)
            self.given["has_endings"] = has_endings
            self.job = replace(self.job, state=JobState.IN_PROGRESS, total=total, error=error)
            return self.job

        return self._call("end", effect)

    def last_batch(self, job_id: str) -> Batch | None:
        """The batch with the highest number."""
        return self._call("last", lambda: self.batches[max(self.batches)] if self.batches else None)

    def batch(self, job_id: str, number: str) -> Batch | None:
        """A batch."""
        return self._call("batch", lambda: self.batches.get(number))

    def create_batch(self, batch: Batch) -> Batch | None:
        """Create an item once."""

        def effect() -> Batch | None:
            if batch.number in self.batches:
                return None
            self.batches[batch.number] = batch
            self.check()
            return batch

        return self._call("create", effect)

    # the queue

    def send(self, message: VisitMessage | SubmitMessage | PollMessage) -> None:
        """Send a message: to submit a batch, to end one, or to end a job without any."""
        match message:
            case VisitMessage(job_id):
                self._call("visit", lambda: self.visits.append(job_id))
            case SubmitMessage(_, number):
                self._call("send", lambda: self.messages.append(number))
            case _:
                self._call("ended", lambda: None)

    def check(self) -> None:
        """Check what `split` resumes from."""
        expected = 0
        for number, (name, batch) in enumerate(sorted(self.batches.items())):
            assert name == f"{number:08d}"
            assert batch.records.first_id == expected
            expected += batch.records.requests
            held = self.objects[f"staging/job/{name}/request"].body
            assert held[: batch.records.body_size] == build_body(
                RECORDS[batch.records.first_id : expected]
            )
            assert batch.records.end == place(expected)

    def check_whole(self, sizes: list[int] | None = None) -> None:
        """Check that every record is in a batch."""
        self.check()
        assert (
            self.job.total
            == sum(batch.records.requests for batch in self.batches.values())
            == len(RECORDS)
        )
        if sizes:
            assert [batch.records.requests for _, batch in sorted(self.batches.items())] == sizes


def place(record: int) -> Checkpoint:
    """Where a record begins."""
    return Checkpoint(sum(len(one) + 1 for one in RECORDS[:record]), record, record)
