"""A job whose answers Cloudflare's events announce, from drop to manifest.

And what is left without them.
"""

import pytest

from dropbatch.client.stack import events_of
from functions.poll import handler
from local.workers_ai.faults import Fault
from shared.events.state import OVERDUE, ModelEvents
from tests.support.local_api import LocalApi, LocalQueue
from tests.support.translations import M2M

BGE = "@cf/baai/bge-small-en-v1.5"


def texts(count, word="text"):
    return [{"text": f"{word} {number}"} for number in range(count)]


def events_item(world):
    return next(item for item in world.items() if item["sk"]["S"].startswith("EVENTS#"))


@pytest.fixture
def on(start):
    """A Dropbatch that uses events."""
    world = start(COMPLETION_EVENTS="yes", MAX_REQUESTS_PER_BATCH=20)
    world.wakes = True
    return world


def test_job_sets_its_queue_up_and_reads_it(on, api):
    on.upload_records("a.jsonl", texts(50), model=BGE)

    on.settle()

    assert on.manifest()["counts"] == {"total": 50, "succeeded": 50, "failed": 0}
    (queue,) = api.queues
    assert queue["name"].startswith("dropbatch")
    assert queue["acked"] == queue["pulled"] > 0
    assert events_item(on)["queue_id"]["S"]
    assert len(api.accepted) == 3


def test_second_job_and_model_use_the_same_queue(on, api):
    for path, model in (("a.jsonl", BGE), ("b.jsonl", BGE), ("c.jsonl", M2M)):
        records = texts(3) if model == BGE else [{"text": "x", "target_lang": "es"}]
        on.upload_records(path, records, model=model)
        on.settle()

    assert len(api.queues) == 1
    assert {name for name in events_item(on) if name.startswith("@")} == {BGE, M2M}


def test_without_events_nothing_is_asked(start, api):
    world = start(COMPLETION_EVENTS="no")
    world.run("a.jsonl", texts(3), model=BGE)
    assert not {"queues", "subscriptions", "pull", "ack"} & api.calls.keys()
    assert not [
        item
        for item in world.items()
        if item["sk"]["S"].startswith("EVENTS#") or item["pk"]["S"][:3] == "ID#"
    ]


@pytest.mark.parametrize("refused", ["401/10000", "403/10000", "404/7003", "405/7001", "page"])
def test_refused_queues_change_no_job(on, api, refused):
    """No pause, no failed record; told in the control item."""
    api.switch(queues_refused=refused)
    on.upload_records("a.jsonl", texts(50), model=BGE)

    on.settle()

    assert on.manifest()["counts"]["succeeded"] == 50
    assert on.pauses() == []
    assert api.queues == []
    assert events_item(on)["refusal"]["S"]
    assert sum(api.calls["queues"].values()) == 1


@pytest.mark.parametrize(
    "kind", ["event_lost", "event_late", "event_twice", "event_early", "event_false"]
)
def test_job_ends_whatever_happens_to_events(on, api, kind):
    api.inject(Fault(kind=kind, times=3))
    on.upload_records("a.jsonl", texts(50), model=BGE)

    on.settle()

    assert on.manifest()["counts"]["succeeded"] == 50
    assert len(api.accepted) == 3


def test_operator_sees_the_model_of_which_another_stack_has_the_events(on, api):
    assert LocalQueue(LocalApi(api)).subscribe(BGE).is_success
    on.upload_records("a.jsonl", texts(3), model=BGE)
    on.settle()

    found = list(events_of({"COMPLETION_EVENTS": "yes"}, events_item(on)))
    assert found[0][0] == "ok"
    assert any("another subscription" in text and BGE in text for _, text in found)


@pytest.fixture
def item(on):
    """The control item of events."""
    return handler.services().events.item


def test_one_of_two_that_pull_or_set_up_at_once_does_it(item):
    item.change({"pull_at": 5.0})
    assert [item.claim_pull(5.0, 7.0, 1.0) for _ in range(2)] == [True, False]
    assert [item.claim_set_up(5.0, 20.0) for _ in range(2)] == [True, False]


def test_pull_is_planned_unless_a_sooner_one_is_and_may_come(item):
    for at, now, pull_at in ((50.0, 40.0, 50.0), (60.0, 41.0, 50.0), (45.0, 42.0, 45.0)):
        item.expect_pull(at, now)
        assert (item.state().pull_at, item.state().youngest_at) == (pull_at, now)
    item.expect_pull(200.0, 45.0 + OVERDUE + 1)
    assert item.state().pull_at == 200.0


def test_event_of_a_subscription_that_was_replaced_is_not_noted(item):
    item.note_model(BGE, ModelEvents("one"))
    before = item.state()
    item.note_model(BGE, ModelEvents("two"))
    item.note_told(before, BGE, 9_000.0)
    assert item.state().models[BGE] == ModelEvents("two")
