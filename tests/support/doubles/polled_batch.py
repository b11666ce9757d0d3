"""One batch of two records on moto, accepted; a test chooses what the API answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, cast

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from dropbatch.core.names import JobState
from dropbatch.core.read.index import RecordIndex, build_body
from functions.poll.poll import poll_batch
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.ledger import Ledger
from shared.models import Batch, Job, Records, Submission
from shared.pacing.breaker import Known, Permit, control_key
from shared.pacing.budget import Budget
from shared.services import Invocation, Services
from shared.staged_batch import encode_index
from shared.workers_ai.replies import Reply
from shared.workers_ai.results import Answer, parse_answer
from tests.support.aws.resources import client
from tests.support.doubles.ledger_items import BATCH, JOB, T

RECORDS = [b'{"text":"one"}', b'{"text":"two"}']
BODY = build_body(RECORDS)
ACCEPTED = T - 100
"""When the API accepted the batch."""
NEXT_POLL = 100.0
"""Seconds to the next poll of a pending batch, according to the times of its model."""
NO_PROBE = Permit()
_item = '{"id":%d,"success":true,"result":{"translated_text":"x"}}'
INCOMPLETE = parse_answer(f'{{"responses":[{_item % 0}]}}'.encode())
"""It lacks the second record's item."""
RUNNING = parse_answer(f'{{"responses":[{_item % 0}],"status":"running"}}'.encode())
"""The second record's item is to come."""
COMPLETE = parse_answer(f'{{"responses":[{_item % 0},{_item % 1}]}}'.encode())
_ids = count(1)


@dataclass
class Doubles:
    """The API, the queues, the times and the settings for the batch."""

    batch_deadline_hours: float = 24
    ambiguous_submit: str = "resubmit"
    cloudflare_account_id: str = JOB.plan.account
    reply: Reply | Exception | None = None
    asked: list[tuple[str, float]] = field(default_factory=list)
    """Id and seconds of each poll."""
    ages: list[float] = field(default_factory=list)
    """Ages for which the next poll was requested."""
    took: list[tuple[float, float]] = field(default_factory=list)
    """For each batch that was finished: its age when it was last pending, and now."""

    @contextmanager
    def poll(self, model: str, request_id: str, seconds: float, sent: int) -> Iterator[Reply]:
        self.asked.append((request_id, seconds))
        if isinstance(self.reply, Exception):
            raise self.reply
        assert self.reply is not None
        yield self.reply

    def send(self, message: object, delay: float = 0) -> None:
        """Nobody receives it."""

    send_all = send

    def next_poll(self, model: str, number: str, age: float, now: float) -> float:
        self.ages.append(age)
        return NEXT_POLL

    def note(self, model: str, after: float, by: float, now: float) -> None:
        self.took.append((after, by))


OF_RECORDS = {one.name for one in fields(Records)}
"""Attributes of a batch that are its records'."""


class PolledBatch:
    """The batch and its job, each with its differences from `ledger_items`."""

    def __init__(self, dynamodb: Any, job: dict[str, Any] | None = None, **batch: Any) -> None:
        made = replace(JOB, job_id=f"20261121T093000Z-{next(_ids):08x}", state=JobState.IN_PROGRESS)
        self.job: Job = replace(made, **(job or {}))
        own = {name: batch.pop(name) for name in OF_RECORDS & batch.keys()}
        two: dict[str, Any] = {"requests": 2, "sendable": 2, "body_size": len(BODY)} | own
        records, submission = replace(BATCH.records, **two), Submission("id", 1, ACCEPTED)
        accepted = replace(BATCH, job_id=self.job.job_id, records=records, submission=submission)
        self.seen = replace(accepted, **batch)
        """The batch as the process that found it due has read it."""
        self.doubles = Doubles()
        double = cast("Any", self.doubles)
        ledger, store = Ledger(dynamodb, "table"), ObjectStore(client("s3"), "bucket")
        known = Known(dynamodb, "table")
        budget = Budget(dynamodb, "table", 200)
        self.services = Services(
            *(double, ledger, store, double, double, budget, double, double, double, known),
            now=lambda: T,
            sleep=lambda _: None,
        )
        for name in ("PAUSE", "RATE", "RATE#OUTSTANDING", "STACK", "KNOWN"):
            dynamodb.delete_item(TableName="table", Key=cast("Any", control_key(name)))
        ledger.create_job(self.job)
        ledger.create_batch(self.seen)
        index = encode_index(RecordIndex([len(one) for one in RECORDS], [(0, 1)]))
        # Straight into moto's memory: few tests read it.
        staged = keys.staged(self.job.job_id, self.seen.number)
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object("bucket", staged, BODY + index)

    def polled(
        self,
        reply: Reply | Exception | None = None,
        permit: Permit | None = NO_PROBE,
        left: float = 900,
    ) -> bool:
        """Poll it once, with this many seconds left; return whether it is then done."""
        self.doubles.reply = reply
        return poll_batch(Invocation(self.services, T + left), self.job, self.seen, permit)

    @property
    def now(self) -> Batch:
        """The batch as it is now."""
        found = self.services.ledger.batch(self.job.job_id, self.seen.number)
        assert found is not None
        return found

    def store_reply(self, ordinal: int, attempt: int = 1, reply: Answer = COMPLETE) -> None:
        """Put a reply where the poll of this ordinal stores it."""
        key = keys.raw(self.job.job_id, self.seen.number, attempt, ordinal)
        self.services.store.put_if_absent(key, reply.body)
