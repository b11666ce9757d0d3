"""The process dies at each boundary in turn: before and after each call of AWS and of the API. Nothing may be lost.

The boundaries are found by recording a run, not by hand, so that a new call is covered the day it is added.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import cache

import botocore.client
import httpx
import pytest
from moto import mock_aws

from local.workers_ai import Behaviour, Fault, WorkersAI, expected_result, transport
from tests.world import World, make_world

M2M = "@cf/meta/m2m100-1.2b"
RECORDS = [{"text": f"hello {number}", "target_lang": "es"} for number in range(4)]
SHARES = 8
WRITES = frozenset({"PutObject", "PutItem", "UpdateItem", "DeleteItem", "SendMessageBatch", "PutEvents", "WorkersAI"})
UPLOAD = [RECORDS[0], RECORDS[1], None, RECORDS[2], RECORDS[3]]
"""None stands for a line that is no JSON; the API fails the last record."""


class DiedError(BaseException):
    """The process is gone: nothing in it may catch this."""


class Boundaries:
    """Every call that leaves the process, counted; at one of them the process dies."""

    def __init__(self, dies_at: int = 0, *, after: bool = False) -> None:
        self.dies_at = dies_at
        self.after = after
        self.passed: list[str] = []
        self.watching = False
        self.lock = threading.Lock()

    def cross(self, name, call):
        if not self.watching:
            return call()
        with self.lock:
            self.passed.append(name)
            mine = len(self.passed) == self.dies_at
        if mine and not self.after:
            raise DiedError
        answer = call()
        if mine:
            raise DiedError
        return answer


class Watched(httpx.BaseTransport):
    """The API behind a boundary."""

    def __init__(self, inner: httpx.BaseTransport, boundaries: Boundaries) -> None:
        self.inner = inner
        self.boundaries = boundaries

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.boundaries.cross("WorkersAI", lambda: self.inner.handle_request(request))


class Mortal(World):
    """A world whose function may die; its messages come again, as SQS promises."""

    boundaries: Boundaries

    def invoke(self, handler, event):
        self.boundaries.watching = not self.boundaries.dies_at or len(self.boundaries.passed) < self.boundaries.dies_at
        try:
            return super().invoke(handler, event)
        except DiedError:
            return {record["messageId"] for record in event.get("Records", [])}
        finally:
            self.boundaries.watching = False


def run(monkeypatch, boundaries: Boundaries) -> tuple[Mortal, WorkersAI]:
    """One small job with a bad line and a failed item, to its end."""
    api = WorkersAI(Behaviour(embedder="hash", latency=8.0), now=lambda: time.time())  # noqa: PLW0108 - the clock moves
    api.inject(Fault(kind="item_fails", contains="hello 3", marker="hello 3", code=5001, times=0))
    real = botocore.client.BaseClient._make_api_call

    def call(client, operation, arguments):
        return boundaries.cross(operation, lambda: real(client, operation, arguments))

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    with (
        mock_aws(),
        contextmanager(make_world)(Watched(transport(api), boundaries), monkeypatch, MAX_REQUESTS_PER_BATCH=3) as made,
    ):
        world = Mortal(**vars(made))
        world.boundaries = boundaries
        lines = [
            "nonsense" if record is None else httpx.Request("POST", "/", json=record).content.decode()
            for record in UPLOAD
        ]
        world.upload("a.jsonl", "\n".join(lines), model=M2M)
        world.settle(minutes=240)
        check(world)
    return world, api


def check(world: World) -> None:
    """Every record one line, the right answer, in order; the manifest true; nothing open."""
    lines, manifest, folder = world.lines(), world.manifest(), world.only_folder()
    assert [line["id"] for line in lines] == list(range(5))
    assert [line["success"] for line in lines] == [True, True, False, True, False]
    for line, record in zip(lines, UPLOAD, strict=True):
        assert not line["success"] or line["result"] == expected_result(M2M, record)
    assert manifest["counts"] == {"total": 5, "succeeded": 3, "failed": 2}
    assert world.status()["state"] == manifest["state"] == "completed"
    for file in manifest["files"]:
        content = world.read(f"{folder}/{file['name']}")
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["bytes"], file["sha256"])
    assert [error["id"] for error in world.lines("errors.jsonl")] == [2, 4]
    assert all("due_at" not in item for item in world.items() if item["pk"]["S"].startswith("JOB#"))
    told = [event["detail"] for event in world.notices()]
    assert told
    assert all((one["job_id"], one["counts"]) == (manifest["job_id"], manifest["counts"]) for one in told)


def billed_twice(api: WorkersAI) -> int:
    """Accepted submits beyond the first of each batch."""
    return sum(Counter(one["sha256"] for one in api.accepted).values()) - len({one["sha256"] for one in api.accepted})


@cache
def recorded() -> list[str]:
    """The boundaries of a run in which nobody dies."""
    boundaries = Boundaries()
    with pytest.MonkeyPatch.context() as patch:
        run(patch, boundaries)
    return boundaries.passed


def die(number: int, *, after: bool) -> None:
    """One run with a death at one boundary; says at which when something is lost."""
    boundaries = Boundaries(number, after=after)
    try:
        with pytest.MonkeyPatch.context() as patch:
            _, api = run(patch, boundaries)
        # Only a death between the API's yes and the table's may cost a second submit.
        around = boundaries.passed[max(number - 2, 0) : number]
        assert billed_twice(api) <= ("WorkersAI" in around)
    except Exception as error:
        raise AssertionError(f"death {'after' if after else 'before'} {number} {boundaries.passed[-1:]}") from error


@pytest.mark.parametrize("share", range(SHARES))
def test_nothing_is_lost_when_the_process_dies_after_a_write(share):
    """What is lost with a process depends only on what it had written: a death after each write covers them all."""
    writes = [number for number, name in enumerate(recorded(), 1) if name in WRITES]

    for number in writes[share::SHARES]:
        die(number, after=True)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_nothing_is_lost_when_the_process_dies_at_any_boundary(share, after):
    for number in range(1 + share, len(recorded()) + 1, SHARES):
        die(number, after=after)
