"""Many jobs dropped together."""

import dataclasses
import time

import pytest

import functions.poll.handler

BGE = "@cf/baai/bge-small-en-v1.5"


@pytest.fixture
def begin(start, monkeypatch):
    """Start a world in which messages are delivered also while a tick waits between two rounds."""

    def begun(calls):
        world = start(API_CALLS_PER_MINUTE=calls)
        services = functions.poll.handler.services()

        def sleep(seconds):
            world.traveller.shift(seconds)
            role, world.permissions.role = world.permissions.role, ""
            for queue in ("UploadQueue", "SubmitQueue", "PollQueue"):
                world.deliver(queue, most=25)
            world.permissions.role = role

        monkeypatch.setattr(
            functions.poll.handler, "services", lambda: dataclasses.replace(services, sleep=sleep)
        )
        return world

    return begun


@pytest.mark.parametrize(
    ("jobs", "calls"),
    [
        (20, 20),
        pytest.param(80, 20, marks=pytest.mark.slow),
        pytest.param(12, 1, marks=pytest.mark.slow),
        pytest.param(30, 5, marks=pytest.mark.slow),
        pytest.param(200, 200, marks=pytest.mark.slow),
        pytest.param(150, 60, marks=pytest.mark.slow),
    ],
)
def test_jobs_dropped_together_start_in_time(begin, api, jobs, calls):
    world = begin(calls)
    for number in range(jobs):
        world.upload_records(f"f{number:04d}.jsonl", [{"text": f"t{number}"}], model=BGE)
    dropped = time.time()
    while len(api.accepted) < jobs:
        began = time.time()
        world.deliver("UploadQueue")
        world.deliver("SubmitQueue")
        world.tick()
        world.pass_time(max(60 - time.time() + began, 0))
        assert time.time() - dropped < 60 * (4 + 4 * jobs / calls)

    last = max(one["time"] for one in api.accepted)
    assert (last - dropped) / 60 <= 2 + 2 * jobs / calls
