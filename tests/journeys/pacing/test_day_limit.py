"""A stack whose jobs may not cost more in a day: who waits reads why, and the next day or an operator ends it."""

import pytest

import functions.submit.handler
from shared.pacing.controls import PauseReason
from tests.support.translations import M2M, all_good, greetings

LIMIT = "0.00002"
"""Dollars: about three of the batches of two records."""


def is_shown(world):
    """Whether a job says that it waits for the day's limit."""
    return (world.status()["waiting_for"] or {}).get("code") == "day_limit"


@pytest.fixture
def poor(start):
    """A Dropbatch that has spent what it may spend today, with a job that waits."""
    world = start(MAX_REQUESTS_PER_BATCH=2, MAX_COST_PER_DAY=LIMIT)
    world.upload_records("a.jsonl", greetings(12), model=M2M)
    world.settle(minutes=30, until=lambda: is_shown(world) and world.status()["waiting_for"]["until"])
    return world


def day(world):
    """The day's item, in wire form."""
    (item,) = [one for one in world.items() if one["sk"]["S"].startswith("COST#")]
    return item


def test_waiting_job_says_until_when_and_what_to_do(poor, api):
    waiting = poor.status()["waiting_for"]

    assert waiting["until"] == "2026-11-22T00:00:00Z"
    assert "MaxCostPerDay" in waiting["message"]
    assert "API response" not in waiting["message"]
    assert 0 < sum(one["count"] for one in api.accepted) < 12
    assert int(day(poor)["spent"]["N"]) <= 22_000


def test_resume_lets_job_end_today(poor):
    poor.control("stack", "run")
    poor.settle(minutes=30)

    assert all_good(poor, 12)
    assert day(poor)["lifted"] == {"BOOL": True}


def test_higher_limit_counts_within_minutes(poor, monkeypatch):
    monkeypatch.setattr(functions.submit.handler.services().day_limit, "limit", 1_000_000_000)
    poor.settle(minutes=30)

    assert all_good(poor, 12)


def test_pause_of_the_day_is_no_pause_of_the_next(poor):
    pauses = [one for one in poor.items() if one["sk"]["S"] == "PAUSE"]

    assert [(one["reason"]["S"], float(one["until"]["N"])) for one in pauses] == [
        (PauseReason.DAY_LIMIT.value, 1_795_305_600.0)
    ]


@pytest.fixture
def reserved(start, api):
    """A Dropbatch whose outstanding batches may cost all of today's money, with a job that waits for them."""
    world = start(MAX_REQUESTS_PER_BATCH=2, MAX_COST_PER_DAY=LIMIT)
    api.switch(latency=7_200.0)
    world.upload_records("a.jsonl", greetings(12), model=M2M)
    world.settle(minutes=5, until=lambda: is_shown(world))
    return world


def test_job_that_waits_for_what_others_cost_says_so(reserved):
    waiting = reserved.status()["waiting_for"]

    assert waiting["until"] is None
    assert "when these are finished" in waiting["message"]


def test_resume_lets_it_submit_at_once(reserved, api):
    assert 0 < len(api.accepted) < 12
    reserved.control("stack", "run")

    reserved.settle(minutes=10, until=lambda: len(api.accepted) == 12)


def test_pause_of_an_earlier_day_does_not_lift_the_limit_of_a_later_one(poor):
    for _ in range(3):
        poor.pass_time(24 * 60 * 60)
        poor.settle(minutes=30, until=lambda: poor.all_over() or is_shown(poor))
    assert poor.all_over()
    poor.control("stack", "pause")
    poor.deliver_all()
    poor.control("stack", "run")
    poor.deliver_all()

    assert [one for one in poor.items() if one["sk"]["S"] == "PAUSE"], "no other pause has replaced it"
    assert not [one for one in poor.items() if "lifted" in one and one["lifted"]["BOOL"]]


@pytest.mark.parametrize("model", [M2M, "@cf/deepgram/aura-2-en"], ids=["with a price", "without"])
def test_limit_of_0_sends_nothing_until_resume(start, api, model):
    world = start(MAX_REQUESTS_PER_BATCH=5, MAX_COST_PER_DAY="0")
    world.upload_records("a.jsonl", greetings(12), model=model)
    world.settle(minutes=10, until=lambda: is_shown(world))
    for _ in range(20):
        world.pass_time(60)
        world.tick()
        world.deliver_all()
    assert api.accepted == []

    world.control("stack", "run")
    world.settle(minutes=30, until=lambda: len(api.accepted) == 3)

    assert sorted(one["count"] for one in api.accepted) == [2, 5, 5]
