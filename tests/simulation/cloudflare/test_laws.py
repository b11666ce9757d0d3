"""Each law of completion events holds for a right history, and is broken by a wrong one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dropbatch.core.names import CONTROL_PK
from tests.simulation.cloudflare import laws
from tests.simulation.cloudflare.events import Events
from tests.simulation.cloudflare.laws import EventLaws
from tests.simulation.worlds.plans import Drop, Plan

KEY = ("JOB#a", "BATCH#00000000")
PULL = "/client/v4/accounts/a/queues/b/messages/pull"
RUN = "/client/v4/accounts/a/ai/run/@cf/a/b"
DROP = Drop(0.0, "a.jsonl", 1)
SOUND = Events()


class Given:
    """A world at one time, and what its writes and calls break."""

    def __init__(self, events=SOUND, calls=200):
        self.broken = set()
        self.kernel = SimpleNamespace(now=10_000.0)
        self.items = {}
        self.world = SimpleNamespace(
            kernel=self.kernel,
            calls_per_minute=calls,
            billed=[],
            is_spoilt=lambda: False,
            on_call=[],
            dynamodb=SimpleNamespace(watchers=[], items=self.items),
        )
        self.laws = EventLaws(
            SimpleNamespace(world=self.world, broken=lambda law, _detail: self.broken.add(law)),
            events,
        )

    def write(self, old, new, key=KEY):
        for watch in self.world.dynamodb.watchers:
            watch(key, old, new)

    def call(self, path):
        for tell in self.world.on_call:
            tell(path, "", b"")

    def bill(self, sha256="one", **more):
        self.items[KEY] = batch("done")
        one = {"request_id": "id", "model": "m", "time": 0.0, "completes_at": 10.0, "polls": 1}
        self.world.billed.append(one | {"sha256": sha256} | more)

    def judge(self, jobs=1, **plan):
        one = SimpleNamespace(upload=SimpleNamespace(key="a"), model="m")
        given = {"acts": (DROP,) * jobs, "events": self.laws.events} | plan
        self.laws.judge([one] * jobs, Plan(1, **given))
        return self.broken


def batch(state, told_at=0.0, **more):
    item = {
        "state": {"S": state},
        "submission": {"M": {"request_id": {"S": "id"}, "at": {"N": "5"}}},
        **more,
    }
    return item | ({"told_at": {"N": str(told_at)}} if told_at else {})


@pytest.fixture(autouse=True)
def all_judged(monkeypatch):
    monkeypatch.setenv("BATCH_DEADLINE_HOURS", "24")
    monkeypatch.setattr(laws, "STARTS", 0)


def test_event_makes_a_batch_due():
    given = Given()
    given.write(batch("queued", due_at={"N": "9"}), batch("queued", 7.0, due_at={"N": "7"}))
    assert given.broken == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (batch("queued"), batch("done", 7.0)),
        (batch("done"), batch("done", 7.0)),
        (batch("ready"), batch("ready", 7.0)),
        (batch("queued"), batch("queued", 7.0, polls={"N": "1"})),
    ],
)
def test_event_that_changes_more_is_found(old, new):
    given = Given()
    given.write(old, new)
    assert laws.TOLD in given.broken


def test_answer_after_an_event_is_no_event():
    given = Given()
    given.write(batch("queued", 7.0), batch("done", 7.0))
    given.write(batch("queued", 7.0), batch("ready"))
    assert given.broken == set()


OWNED = {"job_id": {"S": "a"}, "number": {"S": "00000000"}}


@pytest.mark.parametrize(
    ("old", "new", "broken"),
    [
        (None, OWNED, set()),
        (OWNED, OWNED | {"job_id": {"S": "b"}}, {laws.OWNED}),
        (OWNED, {}, {laws.OWNED}),
    ],
)
def test_id_that_changes_its_batch_is_found(old, new, broken):
    given = Given()
    given.write(old, new, ("ID#1", "BATCH"))
    assert given.broken == broken


def test_outstanding_batch_is_waited_for():
    given = Given()
    given.write(batch("submitting"), batch("queued"))
    given.kernel.now += 80_000
    given.call(PULL)
    given.write(batch("queued"), batch("done"))
    given.kernel.now += laws.IDLE_SECONDS
    given.call(PULL)
    assert given.broken == set()


def test_pull_without_an_outstanding_batch_is_found():
    given = Given()
    given.write(batch("queued"), batch("done"))
    given.kernel.now += laws.IDLE_SECONDS + 1
    given.call(RUN)
    assert given.broken == set()
    given.call(PULL)
    assert given.broken == {laws.IDLE}


@pytest.mark.parametrize(
    ("answers", "polls", "broken"),
    [
        (6, [1] * 100, set()),
        (6, [1] * 85 + [2] * 15, set()),
        (6, [1] * 84 + [2] * 16, {laws.CALLS}),
        (5, [9] * 100, set()),
    ],
)
def test_too_many_calls_are_found(answers, polls, broken):
    given = Given(calls=20)
    for _ in range(answers):
        given.write(batch("queued"), batch("done"))
    for number, count in enumerate(polls):
        given.bill(str(number), request_id=str(number), polls=count)
        accepted = {"M": {"request_id": {"S": str(number)}, "at": {"N": "5"}}}
        given.write(batch("submitting"), batch("queued") | {"submission": accepted})
    assert given.judge() == broken


@pytest.mark.parametrize(
    ("age", "waits", "broken"),
    [
        (16.0, [3.0] * 20, set()),
        (16.0, [5.5] * 20, {laws.SOON}),
        (16.0, [1.0] * 18 + [9.0] * 2, {laws.SOON}),
        (160.0, [7.0] * 20, set()),
        (160.0, [9.5] * 20, {laws.SOON}),
        (900.0, [18.0] * 20, set()),
        (16.0, [70.0] * 19, set()),
    ],
)
def test_answers_that_wait_long_are_found(age, waits, broken):
    given = Given(replace(SOUND, delay=0.5))
    for number, seconds in enumerate(waits):
        accepted = {
            "M": {"request_id": {"S": "id"}, "at": {"N": str(given.kernel.now - seconds - age)}}
        }
        given.bill(str(number), completes_at=given.kernel.now - seconds)
        given.write(batch("queued") | {"submission": accepted}, batch("done"))
        given.world.billed.clear()
    assert given.judge() == broken


@pytest.mark.parametrize(("scarce", "broken"), [(24.0, {laws.SOON}), (44.0, set())])
def test_answers_that_wait_for_calls_are_not_judged(scarce, broken):
    given = Given(replace(SOUND, delay=0.5))
    filled_at = {"filled_at": {"N": str((given.kernel.now + scarce - 30.0) * 1000)}}
    given.write(None, filled_at, (CONTROL_PK, "RATE"))
    for number in range(20):
        accepted = {"M": {"request_id": {"S": "id"}, "at": {"N": str(given.kernel.now - 46.0)}}}
        given.bill(str(number), completes_at=given.kernel.now - 30.0)
        given.write(batch("queued") | {"submission": accepted}, batch("done"))
        given.world.billed.clear()
    assert given.judge() == broken


def test_delays_at_few_calls_are_not_judged():
    given = Given(calls=20)
    given.laws.judged = [(100.0, 2.0)] * 20
    assert given.judge() == set()
