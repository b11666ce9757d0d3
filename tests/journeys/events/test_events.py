"""A job whose answers Cloudflare's events announce, from drop to manifest.

And what is left without them.
"""

import pytest

import functions.poll.handler
from local.workers_ai.faults import Fault
from shared.events.coming import Record
from tests.support.local_api import ACCOUNT, LocalApi, LocalQueue

BGE = "@cf/baai/bge-small-en-v1.5"
M2M = "@cf/meta/m2m100-1.2b"


def texts(count, word="text"):
    return [{"text": f"{word} {number}"} for number in range(count)]


def events_item(world):
    return next(item for item in world.items() if item["sk"]["S"].startswith("EVENTS#"))


@pytest.fixture
def on(start):
    """A Dropbatch that uses events."""
    return start(COMPLETION_EVENTS="yes", MAX_REQUESTS_PER_BATCH=20)


def test_job_sets_its_queue_up_and_reads_it(on, api):
    on.upload_records("a.jsonl", texts(50), model=BGE)

    on.settle()

    assert on.manifest()["counts"] == {"total": 50, "succeeded": 50, "failed": 0}
    (queue,) = api.queues
    assert queue["name"].startswith("dropbatch")
    assert queue["acked"] == queue["pulled"] > 0
    assert events_item(on)["queue_name"]["S"] == queue["name"]
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
    world.upload_records("a.jsonl", texts(3), model=BGE)
    world.settle()
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


def remove_by_hand(api):
    """Delete every queue of the account, and every subscription."""
    http, account = LocalApi(api).client, f"/accounts/{ACCOUNT}"
    for path, name in (("event_subscriptions/subscriptions", "id"), ("queues", "queue_id")):
        for one in http.get(f"{account}/{path}").json()["result"]:
            assert http.delete(f"{account}/{path}/{one[name]}").is_success


def switched_on(world):
    """Give the command `on`; what the next job then finds."""
    world.control("events", "on")
    world.deliver_all()
    world.pass_time(61)
    world.upload_records("b.jsonl", texts(3), model=BGE)
    world.settle(until=lambda: len(world.manifests()) == 2)
    return events_item(world)


def test_on_makes_anew_what_was_removed_by_hand(on, api):
    on.upload_records("a.jsonl", texts(3), model=BGE)
    on.settle()
    remove_by_hand(api)
    assert switched_on(on)["queue_id"]["S"]
    assert [one["pulled"] > 0 for one in api.queues] == [True]


def test_on_subscribes_model_that_was_refused(on, api):
    assert LocalQueue(LocalApi(api)).subscribe(BGE).is_success
    on.upload_records("a.jsonl", texts(3), model=BGE)
    on.settle()
    assert "id" not in events_item(on)[BGE]["M"]
    remove_by_hand(api)
    assert "id" in switched_on(on)[BGE]["M"]


def test_on_forgets_that_events_did_not_come(on):
    on.upload_records("a.jsonl", texts(3), model=BGE)
    on.settle()
    coming = functions.poll.handler.services().events.coming
    coming._put_aside(BGE, Record().put_aside(on.now(), on.now()))
    assert not coming.may_come(BGE, on.now(), on.now())
    switched_on(on)
    assert coming.may_come(BGE, on.now(), on.now())


def test_switching_off_and_on_again(on, api):
    on.upload_records("a.jsonl", texts(3), model=BGE)
    on.settle()
    on.control("events", "off")
    on.deliver_all()
    assert api.queues == []

    on.upload_records("b.jsonl", texts(3), model=BGE)
    on.settle(until=lambda: len(on.manifests()) == 2)
    assert api.queues == []

    on.control("events", "on")
    on.deliver_all()
    on.pass_time(61)
    on.upload_records("c.jsonl", texts(3), model=BGE)
    on.settle(until=lambda: len(on.manifests()) == 3)
    assert len(api.queues) == 1
