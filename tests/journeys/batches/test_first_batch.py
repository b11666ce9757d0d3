"""The invocation that reads a small upload submits its first batch, too, whatever becomes of it."""

import time

from functions.poll.tick import TICK_SECONDS
from local.workers_ai import Behaviour, WorkersAI
from shared.aws.queues import SUBMIT_GRACE_SECONDS
from shared.errors import StorageError
from shared.models import Wait
from shared.pacing.budget import Budget
from shared.retry import longest_jittered
from tests.support.journeys.deaths import SUBMIT, Boundaries, mortal_world, strike_each
from tests.support.journeys.placed_items import services_of
from tests.support.translations import M2M, greetings

LATE = SUBMIT_GRACE_SECONDS + 60.0 + TICK_SECONDS
"""Seconds after which a batch is submitted at the latest whose invocation died before it was claimed: it is due, a tick
comes, and here its message is delivered after the tick.
"""


def dropped(start, **settings):
    world = start(**settings)
    world.reads_and_submits = True
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    return world


def test_upload_and_its_only_batch_take_one_invocation(start, api):
    world = dropped(start)
    world.deliver("UploadQueue")

    assert len(api.accepted) == 1
    assert world.deliver("SubmitQueue") == 0
    world.settle()
    assert world.manifest()["counts"]["succeeded"] == 3


def test_other_batches_are_submitted_by_others(start, api):
    world = dropped(start, MAX_REQUESTS_PER_BATCH=1)
    world.deliver("UploadQueue")

    assert len(api.accepted) == 1
    assert world.deliver("SubmitQueue") == 2
    assert len(api.accepted) == 3


def test_upload_that_has_waited_makes_room_for_the_next(start, api):
    """Few uploads are read at the same time: while others wait, none of them waits for the API."""
    world = dropped(start)
    world.reads_and_submits = False
    world.deliver("UploadQueue")

    assert api.accepted == []
    assert world.deliver("SubmitQueue") == 1
    assert len(api.accepted) == 1


def test_no_submit_begins_without_time_for_its_outcome(start, api, monkeypatch):
    world = dropped(start)
    monkeypatch.setattr("functions.submit.messages.BEGIN_SUBMIT_SECONDS", 150.0)
    world.deliver("UploadQueue")

    assert api.accepted == []
    assert world.deliver("SubmitQueue") == 1


def test_upload_delivered_twice_is_submitted_once(start, api):
    world = dropped(start)
    world.deliver("UploadQueue", times=2)
    world.settle()

    assert len(api.accepted) == 1


def test_first_batch_takes_a_call_of_the_budget(start, api):
    """Without one it waits for the next, as any other."""
    world = dropped(start, API_CALLS_PER_MINUTE=1)
    assert not isinstance(services_of().budget.permit_submit(M2M, time.time(), first=True), Wait)
    world.deliver("UploadQueue")

    assert api.accepted == []
    assert world.deliver("SubmitQueue") == 0
    assert float(world.item("BATCH#")["due_at"]["N"]) - time.time() <= longest_jittered(5.0)


def test_fault_of_its_submit_does_not_fail_the_upload(start, api, monkeypatch):
    world = dropped(start)
    world.wakes = True

    def hang(*_args, **_named):
        raise StorageError("DynamoDB: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Budget, "permit_submit", hang)
        world.deliver("UploadQueue")

    assert world.refused == []
    assert api.accepted == []
    batch = world.item("BATCH#")
    assert batch["claims"]["N"] == "1"
    assert float(batch["due_at"]["N"]) - time.time() <= 2.5
    assert world.deliver("SubmitQueue") == 0
    world.pass_time(3)
    world.deliver("PollQueue")  # A wake-up.
    assert world.deliver("SubmitQueue") == 1
    assert len(api.accepted) == 1


def run_with(boundaries: Boundaries) -> tuple[int, float]:
    """A job whose upload's invocation may be struck.

    How often its batch was billed, and seconds until it was.
    """
    api = WorkersAI(Behaviour(embedder="hash", latency=8.0), now=lambda: time.time())  # noqa: PLW0108 - the clock moves
    with mortal_world(api, boundaries, COMPLETION_EVENTS="no") as world:
        world.reads_and_submits = world.wakes = True
        world.upload_records("a.jsonl", greetings(1), model=M2M)
        boundaries.passed.clear()
        began = time.time()
        world.deliver("UploadQueue")
        boundaries.strikes = lambda _number, _name: False
        world.settle()
        assert world.manifest()["counts"] == {"total": 1, "succeeded": 1, "failed": 0}
        return len(api.accepted), api.accepted[0]["time"] - began


def test_death_after_cutting_loses_and_doubles_nothing():
    boundaries = Boundaries()
    run_with(boundaries)
    passed = boundaries.passed
    post = passed.index(SUBMIT) + 1
    cut = next(at for at in range(post, 0, -1) if passed[at - 1] == "PutItem")
    claim = next(at for at in range(post, 0, -1) if passed[at - 1] == "UpdateItem")
    deaths = [cut, claim - 1, claim, post, post + 1]

    found = strike_each([(at, "after") for at in deaths], run_with)

    # Twice only if its answer was not recorded.
    assert [billed for billed, _ in found] == [1, 1, 1, 2, 1]
    unclaimed, begun = found[:2], found[3:]
    assert max(seconds for _, seconds in unclaimed) <= LATE
    assert max(seconds for _, seconds in begun) <= 1.0
