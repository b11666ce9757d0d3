"""One job and one batch in a ledger on moto; all else that a submit calls is a plain fake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import functions.submit.submit
from functions.submit.submit import submit_batch
from shared.errors import ObjectNotFoundError
from shared.ledger import Ledger
from shared.models import Batch, BatchState, ErrorDetail, Job, Wait
from shared.pacing.breaker import Pause, PauseReason, Permit
from shared.pacing.wake import LeftDue
from shared.services import Invocation
from shared.workers_ai.client import TokenState
from shared.workers_ai.replies import Accepted, Rejected, Reply
from tests.support.doubles.ledger_items import JOB, READY, OneItem, T

BODY = b'{"requests":[]}'
DUE = replace(READY, records=replace(READY.records, body_size=len(BODY)), paused=2.0)
UNKNOWN = ErrorDetail(
    "submit_unknown",
    "It is unknown whether Workers AI accepted this request, so it was not sent again.",
)
FIRST_ASK = 30.0
"""Seconds from each acceptance to the first poll, according to the completion times."""
MODEL_WAITS_SECONDS, RATE_LIMIT_SECONDS = 20.0, 40.0
"""How long the budget makes a model, or every call, wait."""


class Submitting:
    """What `submit_batch` works on."""

    def __init__(self, dynamodb: Any) -> None:
        self.dynamodb, self.clock, self.ends = dynamodb, T, T + 200
        self.counted: list[str] = []
        self.reply: Reply = Accepted("id")
        self.permit: Permit | Wait = Permit()
        self.token = TokenState.GOOD
        self.read_takes = 0.0
        self.posts: list[tuple[str, bytes, float]] = []
        self.at_post: Batch | None = None
        self.messages: list[tuple[object, float]] = []
        self.budget_calls: list[tuple[Any, ...]] = []
        self.objects: dict[str, bytes] = {}
        self.put_fails = 0
        self.puts: list[str] = []
        self.left = LeftDue()
        self.ledger = Ledger(dynamodb, "table", self.left.note)
        self.services: Any = SimpleNamespace(
            settings=SimpleNamespace(
                ambiguous_submit="resubmit", cloudflare_account_id=JOB.plan.account
            ),
            ledger=self.ledger,
            store=SimpleNamespace(get=self._get, head=self._head, put_if_absent=self._put),
            queues=SimpleNamespace(
                send=lambda message, delay=0: self.messages.append((message, delay))
            ),
            api=SimpleNamespace(submit=self._submit, check_token=lambda: self.token),
            budget=SimpleNamespace(
                permit_submit=self._permit_submit,
                permit_check=lambda now: True,
                pause=self._pause,
                limit_rate=self._limit_rate,
            ),
            lift=lambda *words: self.budget_calls.append(("lift", *words)),
            left=self.left,
            events=None,
            times=SimpleNamespace(first_poll=lambda model, number, now: FIRST_ASK),
            now=lambda: self.clock,
            sleep=self.pass_time,
        )

    def begin_with(self, job: Job, batch: Batch) -> None:
        """Put the items that the function finds, and the batch's staged object."""
        self.job_item, self.item = OneItem(self.dynamodb, job), OneItem(self.dynamodb, batch)
        self.job_id, self.number = batch.job_id, batch.number
        self.objects[self.key("request")] = BODY + b"the index"

    def key(self, name: str) -> str:
        """Key of one of the batch's objects."""
        return f"staging/{self.job_id}/{self.number}/{name}"

    def run(self) -> None:
        """Process the batch's message."""
        submit_batch(Invocation(self.services, self.ends), self.job_id, self.number)

    def pass_time(self, seconds: float) -> None:
        """Move the clock."""
        self.clock += seconds

    @property
    def batch(self) -> Batch:
        """The batch as it is now."""
        found = self.ledger.batch(self.job_id, self.number)
        assert found
        return found

    @property
    def job(self) -> Job:
        """The job as it is now."""
        found = self.ledger.job(self.job_id)
        assert found
        return found

    def settle_elsewhere(self) -> None:
        """Let another function begin a later submit of the batch."""
        self.item.change("attempt", 9)
        self.item.change("state", BatchState.SUBMITTING)

    def _head(self, key: str) -> SimpleNamespace | None:
        return SimpleNamespace(metadata={}) if key in self.objects else None

    def _get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.clock += self.read_takes
        if key not in self.objects:
            raise ObjectNotFoundError(key)
        return self.objects[key][start : None if length is None else start + length]

    def _put(self, key: str, body: bytes) -> bool:
        self.puts.append(key.rpartition("/")[2])
        if self.put_fails:
            self.put_fails -= 1
            raise ObjectNotFoundError(key)
        self.objects[key] = body
        return True

    @contextmanager
    def _submit(self, model: str, body: bytes, seconds: float, requests: int) -> Iterator[Reply]:
        self.posts.append((model, body, seconds))
        self.at_post = self.batch
        yield self.reply

    def _permit_submit(self, model: str, now: float, *, first: bool) -> Permit | Wait:
        self.budget_calls.append(("permit", model, now, first))
        return self.permit

    def _pause(
        self, reason: PauseReason, now: float, code: str, permit: Permit, model: str = ""
    ) -> Pause:
        told = (reason, now, code, model or permit)
        self.budget_calls.append(("pause", *told))
        step = 2 * permit.pause.step if permit.pause else MODEL_WAITS_SECONDS
        return Pause(reason, "nonce", now, now + step, step)

    def _limit_rate(self, *words: object) -> float:
        self.budget_calls.append(("limit_rate", *words[:2]))
        return self.clock + RATE_LIMIT_SECONDS


def begun(
    dynamodb: Any,
    monkeypatch: pytest.MonkeyPatch,
    batch: Batch = DUE,
    reply: Reply | None = None,
    **job: Any,
) -> Submitting:
    """A job and a batch whose submit gets a reply; a time within bounds is always their middle."""
    monkeypatch.setattr("random.uniform", lambda least, most: (least + most) / 2)
    at = Submitting(dynamodb)
    at.begin_with(replace(JOB, **job), batch)
    at.reply = reply or at.reply
    monkeypatch.setattr(functions.submit.submit, "count", at.counted.append)
    return at


def told(status: int, code: int | None, message: str = "") -> Rejected:
    """A rejection in the API's own JSON."""
    return Rejected(status, code, message, enveloped=True)


def sent(batch: Batch, **changes: Any) -> Batch:
    """A batch as it is after its submit was settled with no answer."""
    return replace(batch, attempt=batch.attempt + 1, fence=T + 230, claims=0, **changes)
