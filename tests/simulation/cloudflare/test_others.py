"""Others in the account: what they do is done, and is not taken for this stack's."""

import json
from dataclasses import replace

from tests.simulation.cloudflare import events
from tests.simulation.cloudflare.events import Events, Hand, draw_events, draw_hands
from tests.simulation.cloudflare.others import QUEUES, SUBSCRIPTIONS, OtherStack, by_hand
from tests.simulation.worlds.plans import Drop, Plan, draw, smaller
from tests.simulation.worlds.runs import run
from tests.simulation.worlds.users import MODELS, drop
from tests.simulation.worlds.world import simulated
from tests.support.aws.resources import TOKEN

FEW = {"MAX_REQUESTS_PER_BATCH": 2}


def test_other_stack_repeats_submits_at_its_own_cost():
    with simulated(1, **FEW) as world:
        OtherStack(world, 1.0)
        drop(world, "a.jsonl", 5)
        world.settle(600)
        assert (len(world.billed), len(world.foreign_ids), len(world.api.accepted)) == (3, 3, 6)
        assert len({one["sha256"] for one in world.api.accepted}) == 3


def test_world_beside_another_stack_breaks_no_law():
    plan = Plan(
        3,
        settings=tuple(FEW.items()),
        acts=(Drop(0.0, "a.jsonl", 17),),
        events=Events(repeated=0.5),
    )
    assert run(replace(plan, events=replace(plan.events, is_on=False))).violations == ()


class Dashboard:
    """A world whose account has a queue with a subscription."""

    def __init__(self, world):
        self.world = world
        self.queue = self.call("POST", QUEUES, {"queue_name": "events"})["queue_id"]
        self.call("POST", f"{QUEUES}/{self.queue}/consumers", {"type": "http_pull"})
        self.call(
            "POST",
            SUBSCRIPTIONS,
            {
                "name": "one",
                "source": {"type": "workersAi.model", "model_name": MODELS[0]},
                "destination": {"type": "queues.queue", "queue_id": self.queue},
                "events": ["batch.queued"],
            },
        )

    def call(self, method, path, body=None):
        headers = {"authorization": f"Bearer {TOKEN}"}
        sent = b"" if body is None else json.dumps(body).encode()
        return json.loads(self.world.api.handle(method, path, "", headers, sent).body)["result"]

    def pull(self):
        return self.call("POST", f"{QUEUES}/{self.queue}/messages/pull", {"batch_size": 100})


def test_hands_do_what_they_say():
    with simulated(1) as world:
        dashboard = Dashboard(world)
        by_hand(world, "garbage")
        assert dashboard.pull()["message_backlog_count"] == 1_000
        by_hand(world, "disable")
        assert [one["enabled"] for one in dashboard.call("GET", SUBSCRIPTIONS)] == [False]
        by_hand(world, "refuse")
        by_hand(world, "disable")
        assert dashboard.call("GET", QUEUES) is None
        by_hand(world, "refuse")
        by_hand(world, "worker consumer")
        consumers = dashboard.call("GET", f"{QUEUES}/{dashboard.queue}/consumers")
        assert consumers[0]["type"] == "worker"
        assert dashboard.pull() is None
        by_hand(world, "delete queue")
        assert dashboard.call("GET", QUEUES) == []


def test_functions_without_events_have_worlds_without(monkeypatch):
    monkeypatch.setattr(events, "ARE_SUPPORTED", False)
    assert not any(draw_events(seed) for seed in range(50))


def test_half_of_the_worlds_have_events_and_half_of_these_sound_ones(monkeypatch):
    monkeypatch.setattr(events, "ARE_SUPPORTED", True)
    drawn = [one for one in map(draw_events, range(400)) if one is not None]
    assert 160 < len(drawn) < 240
    assert 60 < sum(one.is_sound for one in drawn) < 160
    plans = [plan for plan in map(draw, range(400)) if plan.events is not None]
    assert {hand.what for plan in plans for hand in plan.acts if isinstance(hand, Hand)} <= {
        *events.HANDS
    }
    assert any(plan.events.is_sound and plan.faults for plan in plans)
    assert any(draw_hands(seed) for seed in range(20))


def test_plan_with_events_is_written_and_made_smaller():
    plan = Plan(3, events=Events(lost=0.5, ids="bare"))
    assert list(plan.lines())[1] == "events: lost 0.5, ids bare"
    assert [one.events for one in smaller(plan)] == [None, Events(ids="bare"), Events(lost=0.5)]
