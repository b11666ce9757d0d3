"""A split that was decided is carried out, whoever dies after any call, and whatever changes meanwhile."""

from collections import Counter
from contextlib import ExitStack

import pytest

import functions.poll.batch.poll_batch
import functions.poll.handler
import functions.poll.schedule.advance_job
import functions.submit.handler
from functions.poll.batch import bisect_batch
from shared.models import ErrorDetail
from tests.support.journeys.deaths import Boundaries, mortal_world

pytestmark = pytest.mark.slow  # They take minutes together.


M2M = "@cf/meta/m2m100-1.2b"


def greetings(count, *bad):
    """Requests, some of which the API refuses."""
    return [{"text": f"hello {number}.", "target_lang": 7 if number in bad else "es"} for number in range(count)]


def failed(world):
    return [line["id"] for line in world.lines() if not line["success"]]


def batches(world):
    """Items of all batches by number, as the ledger has them."""
    ledger = functions.poll.handler.services().ledger
    (job_id,) = {item["pk"]["S"][4:] for item in world.items() if item["pk"]["S"].startswith("JOB#")}
    return {batch.number: batch for batch in ledger.batches(job_id)}


# ── whatever dies on the way ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def mortal(api):
    with ExitStack() as kept:
        yield lambda **settings: kept.enter_context(mortal_world(api, Boundaries(), **settings))


def stop_the_job(services, job):
    services.ledger.fail_job(job, ErrorDetail("unknown_model", "gone"), services.now())


def use_up_the_bound(services, job):
    used = bisect_batch.Isolation(bisect_batch.MAX_ISOLATION_SUBMITS)
    while services.ledger.note_isolation(job, used) is None:
        job = services.ledger.job(job.job_id)


def believe_that_all_fail(services, job):
    known = bisect_batch.Isolation(0, (), {"5006": bisect_batch.UNIFORM})
    while services.ledger.note_isolation(job, known) is None:
        job = services.ledger.job(job.job_id)


def interrupt(world, number, change):
    """Let the tick that splits the only batch die after a call, change what the decision depended on, go on."""
    world.upload_records("a.jsonl", greetings(3, 1), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    world.boundaries.strike(number, "after")
    world.tick()
    died = bool(world.boundaries.struck)
    world.boundaries.strike(0, "after")
    services = functions.poll.handler.services()
    decided = batches(world)["00000000"].pieces == 3
    change(services, services.ledger.job(batches(world)["00000000"].job_id))
    world.settle(minutes=60 * 24)
    return died, decided


@pytest.mark.parametrize("change", [stop_the_job, use_up_the_bound, believe_that_all_fail])
@pytest.mark.parametrize(
    "numbers", [range(12, 46, 7), pytest.param(range(1, 60), marks=pytest.mark.slow)], ids=["some", "each"]
)
def test_decided_split_is_carried_out(mortal, api, numbers, change):
    seen = Counter()
    for number in numbers:
        api.calls.clear()
        with ExitStack() as kept:
            world = kept.enter_context(mortal_world(api, Boundaries()))
            died, decided = interrupt(world, number, change)
            seen[died, decided] += 1
            found = batches(world)
            leaves = [one for one in found.values() if one.state == "done"]
            assert [(one.first_id, one.requests) for one in leaves] in ([(0, 3)], [(0, 1), (1, 1), (2, 1)])
            assert (found["00000000"].state == "halved") == (len(leaves) == 3)
            assert not decided or len(leaves) == 3
            assert [line["id"] for line in world.lines()] == [0, 1, 2]
    assert seen[True, True] > 0
    assert seen[True, False] > 0
