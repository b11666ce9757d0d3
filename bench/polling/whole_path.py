"""Counts polls on the whole path: both functions on moto, the local Workers AI, one clock that advances by seconds.

`tests.support.journeys.world` advances its clock minute by minute. Here a tick waits in steps of a second, and the
queues' messages are delivered in each step, as AWS does while a tick runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

import pytest
from moto import mock_aws

import functions.poll.handler
import functions.submit.handler
from local.workers_ai import Behaviour, WorkersAI, transport
from shared.bootstrap import services
from tests.support.aws.resources import QUEUES
from tests.support.journeys.world import World, make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "@cf/meta/m2m100-1.2b"
MAX_MINUTES = 60


@dataclasses.dataclass(frozen=True)
class Job:
    """Figures of a job, for each batch: its polls, and its seconds from ready to collected."""

    polls: list[int]
    delays: list[float]


def jobs(count: int, batches: int, soonest: float, latest: float, seed: int = 1) -> list[Job]:
    """Run jobs with batches of one record, 20 minutes apart, on a model that is new before the first.

    Args:
        count: the number of jobs.
        batches: the batches of each job.
        soonest: the least seconds that a batch takes.
        latest: the most seconds that a batch takes; times are spread evenly between the two.
        seed: the seed of the API's random numbers.
    """
    middle, half = (soonest + latest) / 2, (latest - soonest) / 2
    behaviour = Behaviour(latency=middle, latency_kind="uniform", latency_spread=half / middle, seed=seed)
    api = WorkersAI(behaviour, now=lambda: time.time())  # noqa: PLW0108 - the clock moves
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        making = contextlib.contextmanager(make_world)(transport(api), patch, MAX_REQUESTS_PER_BATCH=1)
        with making as world, _by_seconds(world, patch):
            return [_run(world, api, f"{number}.jsonl", batches) for number in range(count)]


def _run(world: World, api: WorkersAI, name: str, batches: int) -> Job:
    records = [{"text": f"{name} {number}", "target_lang": "es"} for number in range(batches)]
    world.upload_records(name, records, model=MODEL)
    began, minute = time.time(), 0.0
    world.deliver_all()
    while not world.all_over():
        assert time.time() - began < MAX_MINUTES * 60
        if time.time() // 60 > minute:
            minute = time.time() // 60
            world.tick()
        world.deliver_all()
        world.pass_time(1)
    ended = [event for event in api.events if event["type"].endswith("succeeded")]
    ready = {event["payload"]["requestId"]: event["metadata"]["eventTimestamp"] for event in ended}
    job = Job([], [])
    for item in world.items():
        if item["sk"]["S"].startswith("BATCH#") and float(item["created_at"]["N"]) >= began:
            (submission,) = item["submissions"]["L"]
            job.polls.append(int(item["polls"]["N"]))
            job.delays.append(float(item["completed_at"]["N"]) - ready[submission["M"]["request_id"]["S"]])
    assert len(job.polls) == batches
    world.pass_time(1_200 - time.time() % 60)
    return job


@contextlib.contextmanager
def _by_seconds(world: World, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """While a tick waits, deliver messages every second."""

    def sleep(seconds: float) -> None:
        ends = time.time() + seconds
        while time.time() < ends:
            world.pass_time(min(1.0, ends - time.time()))
            role, world.permissions.role = world.permissions.role, ""
            for queue in QUEUES:
                world.deliver(queue)
            world.permissions.role = role

    everything = dataclasses.replace(services(), sleep=sleep)
    for module in (functions.poll.handler, functions.submit.handler):
        patch.setattr(module, "services", lambda: everything)
    yield
