"""A queue that misbehaves: jobs complete as without events, and events are used again soon."""

from collections import Counter
from statistics import mean

import pytest

from local.workers_ai import Behaviour, Fault
from tests.simulation.cloudflare.events import Events
from tests.simulation.cloudflare.laws import EventLaws
from tests.simulation.cloudflare.others import OTHER_TOKEN, QUEUES, SUBSCRIPTIONS, by_hand, call
from tests.simulation.explore.stories import Slow
from tests.simulation.worlds.judges import Laws
from tests.simulation.worlds.users import MODELS, drop
from tests.simulation.worlds.world import simulated
from tests.support.aws.resources import ACCOUNT

SETTINGS = {"MAX_REQUESTS_PER_BATCH": 2, "COMPLETION_EVENTS": "yes"}
FORTY = {"latency": 40.0, "latency_kind": "uniform", "latency_spread": 0.5}


class Seen:
    """A world in which jobs are dropped, and what was called."""

    def __init__(self, world):
        self.world = world
        self.laws = EventLaws(Laws(world), Events())
        self.pulled: list[float] = []
        self.refused: list[float] = []
        self.jobs = 0
        world.on_answer.append(self._answered)

    def _answered(self, path, _headers, _body, reply):
        if "/queues" not in path and "/event_subscriptions/" not in path:
            return
        now = self.world.kernel.now
        if reply.status != 200:
            self.refused.append(now)
        elif path.endswith("/pull"):
            self.pulled.append(now)

    def job(self, batches=8, seconds=1_800.0):
        """Run a job to its end; seconds from ready to collected, on average."""
        before = len(self.laws.waits)
        drop(self.world, f"{self.jobs}.jsonl", 2 * batches)
        self.jobs += 1
        assert self.world.settle(seconds), "the job did not end"
        return mean(self.laws.waits[before:])

    def items(self, start):
        """Items whose sort key begins so."""
        return [item for (_, sk), item in self.world.dynamodb.items.items() if sk.startswith(start)]

    def judge(self):
        """Nothing pauses, nothing is broken, and few calls were refused in each minute."""
        assert self.items("PAUSE") == []
        assert self.laws.laws.violations == []
        minutes = Counter(at // 60 for at in self.refused)
        assert max(minutes.values(), default=0) <= 25


@pytest.fixture
def seen(request):
    behaviour = Behaviour(embedder="hash").changed(getattr(request, "param", FORTY))
    with simulated(1, None, behaviour, **SETTINGS) as world:
        world.api.switch(tokens=(*world.api.behaviour.tokens, OTHER_TOKEN))
        yield Seen(world)


FORMS = (
    *({"request_id_form": form} for form in ("uuid", "req", "mixed")),
    *({"clock_ahead": seconds, "event_ids": "mixed"} for seconds in (300.0, -300.0)),
)


@pytest.mark.parametrize("seen", [FORTY | form for form in FORMS], indirect=True, ids=str)
def test_events_bring_answers_within_seconds(seen):
    """Whatever ids look like, and whichever clock is ahead."""
    seen.job(1)
    assert seen.job() < 5
    seen.judge()


@pytest.mark.parametrize(
    "seen", [{"latency": 5.0}, {"latency": 5.0, "clock_ahead": -300.0}], indirect=True, ids=str
)
def test_event_that_comes_before_its_id_is_stored_comes_again(seen):
    seen.job(1)
    seen.job(1)
    Slow(seen.world, "BATCH#00000000", "#submission = :to_submission", seconds=8.0)
    seen.job(4)
    assert max(seen.laws.waits[-4:]) < 45
    seen.judge()


@pytest.mark.parametrize("seen", [{"latency": 300.0}], indirect=True)
def test_event_of_an_id_that_was_given_up_changes_nothing(seen, monkeypatch):
    monkeypatch.setenv("BATCH_DEADLINE_HOURS", "0.07")
    drop(seen.world, "a.jsonl", 2)
    seen.world.run(400.0)
    (batch,) = seen.items("BATCH#")
    assert batch["given_up"] == {"N": "1"}
    assert len(seen.pulled) > 0
    assert "told_at" not in batch


def slower(seed):
    """Seconds, and calls of each of 40 batches, of a model that became slower after two jobs."""
    behaviour = Behaviour(embedder="hash").changed({"latency": 4.0, "latency_kind": "uniform"})
    with simulated(seed, None, behaviour, **SETTINGS) as world:
        seen = Seen(world)
        seen.job(1)
        seen.job(1)
        world.api.switch(latency=47.5, latency_spread=0.895)
        before = len(world.billed)
        waited = seen.job(40)
        seen.judge()
        return waited, 1 + mean(one["polls"] for one in world.billed[before:])


def test_model_that_became_slower_costs_two_calls():
    waited, calls = zip(*map(slower, (1, 2, 3)), strict=True)
    assert mean(waited) <= 4
    assert max(calls) <= 2.15


FAULTS = {
    "the queue is deleted": lambda world: by_hand(world, "delete queue"),
    "a Worker reads the queue": lambda world: by_hand(world, "worker consumer"),
    "subscriptions are disabled": lambda world: by_hand(world, "disable"),
    "messages that are no events": lambda world: by_hand(world, "garbage"),
    "the permission is taken away": lambda world: by_hand(world, "refuse"),
    "foreign events by the thousand": lambda world: world.api.switch(foreign_events=100.0),
    "each event comes twice": lambda world: world.api.switch(fault_rates={"event_twice": 1.0}),
    "each event is lost": lambda world: world.api.switch(fault_rates={"event_lost": 1.0}),
    "pulls hang": lambda world: world.inject(
        Fault(kind="hang", on="queues", contains="/messages/pull", times=0)
    ),
    "acknowledgements are refused": lambda world: world.inject(
        Fault(kind="10207", status=400, on="queues", contains="/messages/ack", times=0)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_jobs_complete_as_without_events(seen, name):
    seen.job(1)
    seen.job()
    seen.world.run(600)
    drop(seen.world, "during.jsonl", 16)
    seen.world.run(10)
    FAULTS[name](seen.world)
    assert seen.world.settle(900)
    seen.job()  # The safety net finds its answers, if events stopped.
    assert seen.job() < 40  # As by polls alone, of a model that takes 20 to 60 s.
    seen.judge()


def test_answer_that_waited_for_its_event_teaches_no_time(seen):
    seen.job(1)
    seen.job(1)
    known = seen.items("RATE#TIMES")
    FAULTS["each event is lost"](seen.world)
    assert seen.job(1) > 60
    assert seen.items("RATE#TIMES") == known


def used_again_after(seen, seconds):
    """Whether events are read again at most so many seconds after now."""
    began = seen.world.kernel.now
    while seen.world.kernel.now < began + seconds:
        seen.job(1)
        seen.world.run(60)
    before = len(seen.pulled)
    seen.job(1)
    return len(seen.pulled) > before


def test_queue_that_is_gone_is_made_anew(seen):
    seen.job()
    by_hand(seen.world, "delete queue")
    assert used_again_after(seen, 420)
    assert seen.job() < 5
    assert len(call(seen.world, "GET", QUEUES)) == 1
    assert len(call(seen.world, "GET", SUBSCRIPTIONS)) == 1
    seen.judge()


def test_consumer_that_was_removed_is_made_anew(seen):
    seen.job()
    (queue,) = call(seen.world, "GET", QUEUES)
    (one,) = queue["consumers"]
    call(seen.world, "DELETE", f"{QUEUES}/{queue['queue_id']}/consumers/{one['consumer_id']}")
    assert used_again_after(seen, 420)
    seen.judge()


def test_permission_that_is_given_again_is_used_within_an_hour(seen):
    seen.job()
    by_hand(seen.world, "refuse")
    seen.job()
    by_hand(seen.world, "refuse")
    assert used_again_after(seen, 3_600)
    seen.judge()


def test_pulls_are_tried_again_within_two_minutes(seen):
    seen.job()
    seen.world.inject(Fault(kind="10250", on="queues", contains="/messages/pull", times=1))
    seen.job()
    before = len(seen.pulled)
    seen.world.run(60)
    assert seen.job() < 6
    assert len(seen.pulled) > before
    seen.judge()


@pytest.mark.parametrize("seen", [{"latency": 60.0}], indirect=True)
def test_second_stack_of_an_account_calls_as_without_events(seen):
    queue = call(seen.world, "POST", QUEUES, {"queue_name": "first"})["queue_id"]
    call(
        seen.world,
        "POST",
        SUBSCRIPTIONS,
        {
            "name": "first",
            "source": {"type": "workersAi.model", "model_name": MODELS[0]},
            "destination": {"type": "queues.queue", "queue_id": queue},
            "events": ["batch.succeeded"],
        },
    )
    seen.job(1)
    assert seen.pulled == []
    assert seen.items("ID") == []
    assert len(seen.world.call_times) + len(seen.world.queue_times) <= 12
    (known,) = seen.items(f"EVENTS#{ACCOUNT}")
    assert "another subscription" in known[MODELS[0]]["M"]["problem"]["S"]
    before = len(seen.world.queue_times)
    seen.job(1)
    assert len(seen.world.queue_times) == before
    seen.judge()


def test_tick_removes_what_is_not_used_any_more(seen):
    seen.job()
    seen.world.redeploy(COMPLETION_EVENTS="no")
    seen.world.run(130)
    assert call(seen.world, "GET", QUEUES) == call(seen.world, "GET", SUBSCRIPTIONS) == []
    assert seen.items("EVENTS") == []
    before = len(seen.world.queue_times)
    seen.job()
    assert len(seen.world.queue_times) == before
