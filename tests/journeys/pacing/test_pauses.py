"""Pauses and waits end by themselves, are bounded and shown; what is tried in vain is told."""

import json
import time

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, greetings

pytestmark = pytest.mark.slow  # They take minutes together.

HOUR = 3_600.0


def run_until(world, moment):
    world.settle(minutes=60 * 24 * 30, until=lambda: time.time() >= moment)


def counted(capsys, name):
    """What the metric came to in what was logged since this was last asked."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith('{"_aws"')]
    values = [json.loads(line).get(name, []) for line in lines]
    return sum(sum(value) if isinstance(value, list) else value for value in values)


def test_long_holds_are_reported_and_raise_alarm(world, api, capsys):
    api.inject(Fault(kind="971", on="submit", retry_after=999_999_999, times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    began = time.time()
    run_until(world, began + 1_500)

    waiting = world.status()["waiting_for"]
    assert waiting["code"] == "too_many_calls"
    assert "ApiCallsPerMinute" in waiting["message"]
    assert waiting["until"] is not None
    assert counted(capsys, "StuckItems") == 0

    run_until(world, began + 2 * HOUR)
    assert counted(capsys, "StuckItems") > 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"kind": "bare", "status": 402}, "billing"),
        ({"kind": "html", "status": 404}, "WorkersAiBaseUrl"),
    ],
    ids=str,
)
def test_long_failing_submits_raise_alarm(world, api, capsys, fault, said):
    api.inject(Fault(on="submit", times=0, **fault))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    began = time.time()
    run_until(world, began + 600)
    assert world.status()["waiting_for"] is None

    run_until(world, began + 3_000)
    waiting = world.status()["waiting_for"]
    assert (waiting["code"], waiting["until"]) == ("submits_fail", None)
    assert said in waiting["message"]
    assert counted(capsys, "StuckItems") == 0

    run_until(world, began + 2 * HOUR)
    assert counted(capsys, "StuckItems") > 0

    api.clear_faults()
    world.settle()
    assert all_good(world, 3)
    assert world.status()["waiting_for"] is None


def test_model_without_capacity_for_an_hour_raises_alarm(world, api, capsys):
    api.inject(Fault(kind="3040", on="submit", times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    began = time.time()
    run_until(world, began + 3_000)
    assert counted(capsys, "StuckItems") == 0

    run_until(world, began + 2 * HOUR)
    assert counted(capsys, "StuckItems") > 0


MINUTE = 60.0


def looks(world, minutes):
    """What `waiting_for` says after each tick: the minute since the drop, and the code or None."""
    began, seen = world.now(), []
    while world.now() < began + minutes * MINUTE:
        world.deliver_all()
        world.tick()
        world.deliver_all()
        waiting = world.status()["waiting_for"]
        seen.append(((world.now() - began) / MINUTE, waiting and waiting["code"]))
        world.pass_time(MINUTE - world.now() % MINUTE)
    return seen


@pytest.mark.parametrize("retry_after", [-1, 300])
def test_rate_limit_is_shown_without_flickering(world, api, retry_after):
    api.inject(
        Fault(kind="error", on="submit", code=971, status=429, times=0, retry_after=retry_after)
    )
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    seen = looks(world, 30)
    shown = [minute for minute, code in seen if code == "too_many_calls"]

    assert 14 < shown[0] < 18
    assert {code for minute, code in seen if minute < shown[0]} == {None}
    assert shown == [minute for minute, _ in seen if minute >= shown[0]]

    api.clear_faults()
    world.settle()
    assert all_good(world, 6)
