"""Between two calls of one invocation another runs whole: a duplicate, a tick, or all others while it sleeps.

What a function read may be old when it writes, and only the condition of the write can tell. In the everyday run
something comes before some of the writes of a job, chosen by a seed; `-m slow` takes each call of every kind of job.
"""

from __future__ import annotations

import json
import random
from contextlib import contextmanager

import pytest

import functions.submit.handler
from tests.support.journeys.deaths import ONE_ROUND_SECONDS, WRITES, Boundaries, Mortal, strike_each
from tests.support.journeys.scenarios import JOURNEYS, Journey, greeting, recorded, run

SMALL = Journey((greeting(0), "nonsense", greeting(2)), (None, "invalid_json", None))
SPLIT_IN_TWO = JOURNEYS["a record refused at submit"]
M2M = "@cf/meta/m2m100-1.2b"
LONGER_THAN_ANY_CLAIM = 400.0
SHARES = 3
"""A long test is cut in so many, for several processors to share."""


def all_others_go_on(world: Mortal) -> None:
    """The function sleeps until nothing that it claimed is its own; others do its work."""
    world.pass_time(LONGER_THAN_ANY_CLAIM)
    for _ in range(3):
        world.tick()
        world.deliver_all()


def everything_due(world: Mortal) -> None:
    world.deliver_all()
    world.tick(ONE_ROUND_SECONDS)


MEANWHILE = {
    "the same event again": Mortal.invoke_again,
    "everything that is due": everything_due,
    "all others, while it sleeps": all_others_go_on,
}


@pytest.mark.parametrize("share", [*(pytest.param(share, marks=pytest.mark.slow) for share in (0.2, 0.5)), 1.0])
@pytest.mark.parametrize("what", ["the same event again", "everything that is due"])
@pytest.mark.parametrize("journey", [SMALL, SPLIT_IN_TWO], ids=["plain", "refused"])
def test_job_is_paid_once_whatever_precedes_a_write(journey, what, share):
    chance, boundaries = random.Random(f"{what} {share}"), Boundaries()
    boundaries.strike_where(lambda number, name: name in WRITES and chance.random() < share, "interrupted")

    seen = run(journey, boundaries, MEANWHILE[what])

    assert boundaries.struck
    assert seen.extra == 0


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, 8))])
def test_sleeping_function_repeats_nothing(number):
    chance, boundaries = random.Random(number), Boundaries()
    boundaries.strike_where(lambda at, name: name in WRITES and chance.random() < 0.15, "interrupted")

    run(SMALL, boundaries, all_others_go_on)

    assert boundaries.struck


def records(count):
    return [{"text": f"hello {number}", "target_lang": "es"} for number in range(count)]


def submit_again(world):
    """The batch's message comes once more while the first invocation is at work."""
    role, world.permissions.role = world.permissions.role, ""
    try:
        (batch,) = (item for item in world.items() if item["sk"]["S"] == "BATCH#00000000")
        message = {"do": "submit", "job_id": batch["job_id"]["S"], "number": "00000000"}
        world.sqs.send_message(QueueUrl=world.queues["SubmitQueue"], MessageBody=json.dumps(message))
        world.deliver("SubmitQueue")
    finally:
        world.permissions.role = role


def test_message_during_post_submits_nothing(world, api, monkeypatch):
    services = functions.submit.handler.services()
    submit, posts = services.api.submit, []

    @contextmanager
    def slow(*arguments, **named):
        posts.append(arguments)
        if len(posts) == 1:
            world.pass_time(20)
            submit_again(world)
        with submit(*arguments, **named) as reply:
            yield reply

    monkeypatch.setattr(type(services.api), "submit", lambda _, *arguments, **named: slow(*arguments, **named))
    world.upload_records("a.jsonl", records(3), model=M2M)

    world.settle()

    assert len(posts) == len(api.accepted) == 1
    assert world.manifest()["batches"][0]["unknowable_submits"] == 0


def test_message_before_claim_submits_once(world, api, monkeypatch):
    store = type(functions.submit.handler.services().store)
    get, bodies = store.get, []

    def slow(self, key, *arguments):
        if key.endswith("/request"):
            bodies.append(key)
            if len(bodies) == 1:
                submit_again(world)
        return get(self, key, *arguments)

    monkeypatch.setattr(store, "get", slow)
    world.upload_records("a.jsonl", records(3), model=M2M)

    world.settle()

    assert len(bodies) >= 2
    assert len(api.accepted) == 1


def test_late_status_does_not_replace_final_one(world, monkeypatch):
    store = type(functions.submit.handler.services().store)
    put, written = store.put, []

    def late(self, key, *arguments, **named):
        written.append(key)
        if len(written) == 1:
            role, world.permissions.role = world.permissions.role, ""
            all_others_go_on(world)
            world.permissions.role = role
        return put(self, key, *arguments, **named)

    monkeypatch.setattr(store, "put", late)
    world.upload_records("a.jsonl", records(3), model=M2M)

    world.settle()

    assert written[0].endswith("/status.json")
    assert len(world.manifests()) == 1
    assert (world.status()["state"], world.status()["counts"]["succeeded"]) == ("completed", 3)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("what", MEANWHILE)
@pytest.mark.parametrize("name", JOURNEYS)
def test_job_is_whole_whatever_precedes_a_call(name, what, share):
    """Each comes before each write, and one of them, in turn, before each of the other calls."""

    def run_once(boundaries: Boundaries) -> None:
        seen = run(JOURNEYS[name], boundaries, MEANWHILE[what])
        # Who sleeps for longer than its claim loses an answer that the API gives only once.
        assert seen.extra == 0 or what == "all others, while it sleeps" or JOURNEYS[name].answers_once

    turn = list(MEANWHILE).index(what)
    calls = enumerate(recorded(name), 1)
    chosen = [number for number, call in calls if call in WRITES or number % len(MEANWHILE) == turn]
    strike_each([(number, "interrupted") for number in chosen[share::SHARES]], run_once)
