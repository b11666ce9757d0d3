"""Completion events of the local Workers AI.

What each batch sends to whom, and what goes wrong on the way.
"""

import pytest

from local.workers_ai import Fault
from tests.support.local_api import ACCOUNT, BGE, LocalApi, LocalQueue, code

M2M = "@cf/meta/m2m100-1.2b"


class Subscribed(LocalQueue):
    """A queue that hears of one model."""

    def __init__(self, **switches):
        super().__init__(LocalApi(global_limit=0, **switches))
        self.subscription = self.subscribe().json()["result"]

    def heard(self):
        """The events that have come, as type and id, and are acknowledged."""
        return [
            (body["type"].rpartition(".")[2], body["payload"]["requestId"]) for body in self.taken()
        ]


def test_batch_sends_queued_and_succeeded():
    queue = Subscribed()
    request_id = queue.world.submit()
    assert queue.taken() == []
    queue.world.now += 1
    (queued,) = queue.taken()
    assert queued == {
        "type": "cf.workersAi.model.batch.queued",
        "source": {"type": "workersAi.model", "modelName": BGE},
        "payload": {"requestId": f"req-{request_id}"},
        "metadata": {
            "accountId": ACCOUNT,
            "eventSubscriptionId": queue.subscription["id"],
            "eventSchemaVersion": 1,
            "eventTimestamp": "1970-01-12T13:46:40.000Z",
        },
    }
    queue.world.now += 1
    assert queue.taken() == []
    queue.world.now += 1
    assert queue.heard() == [("succeeded", f"req-{request_id}")]
    queue.world.now += 1_000
    assert queue.taken() == []


def test_failed_batch_says_why():
    queue = Subscribed()
    queue.world.api.inject(Fault(kind="batch_fails", code=3040, message="busy"))
    queue.world.submit()
    queue.world.now += 10
    (failed,) = [body for body in queue.taken() if body["type"].endswith("failed")]
    assert (
        failed["payload"].items()
        >= {"message": "busy", "internalCode": 3040, "httpCode": 429}.items()
    )


@pytest.mark.parametrize(
    ("switches", "name", "form"),
    [
        ({"event_names": "without_cf"}, "workersAi.model.batch.queued", "req-{}"),
        ({"event_names": "short", "event_ids": "bare"}, "batch.queued", "{}"),
        ({"request_id_form": "req", "event_ids": "bare"}, "cf.workersAi.model.batch.queued", "{}"),
        (
            {"request_id_form": "req", "event_ids": "as_sent"},
            "cf.workersAi.model.batch.queued",
            "req-{}",
        ),
    ],
)
def test_names_and_ids_have_other_forms(switches, name, form):
    queue = Subscribed(**switches)
    request_id = queue.world.submit().removeprefix("req-")
    queue.world.now += 1
    (body,) = queue.taken()
    assert (body["type"], body["payload"]["requestId"]) == (name, form.format(request_id))


def test_stuck_batch_sends_its_last_event_when_it_ends():
    queue = Subscribed()
    queue.world.api.inject(Fault(kind="stuck", seconds=100))
    queue.world.submit()
    queue.world.now += 100
    assert [what for what, _ in queue.heard()] == ["queued"]
    queue.world.now += 10
    assert [what for what, _ in queue.heard()] == ["succeeded"]


def test_answer_in_the_reply_sends_no_event():
    queue = Subscribed()
    queue.world.api.inject(Fault(kind="sync_answer"))
    queue.world.run(BGE, {"requests": [{"text": "a"}]})
    queue.world.now += 100
    assert queue.taken() == []


# ── subscriptions ─────────────────────────────────────────────────────────────────────────────────


def test_subscription_is_listed_changed_and_deleted():
    queue = Subscribed()
    world, path = queue.world, f"{queue.subscriptions}/{queue.subscription['id']}"
    assert world.client.get(queue.subscriptions, params={"queue_id": queue.id}).json()[
        "result"
    ] == [queue.subscription]
    assert (
        world.client.get(queue.subscriptions, params={"queue_id": "0" * 32}).json()["result"] == []
    )
    assert queue.subscription["source"] == {"type": "workersAi.model", "model_name": BGE}
    assert queue.subscription["events"] == ["batch.queued", "batch.succeeded", "batch.failed"]
    assert world.client.patch(path, json={"enabled": False}).json()["result"]["enabled"] is False
    world.submit()
    world.now += 10
    assert queue.taken() == []
    assert world.client.delete(path).is_success
    assert code(world.client.get(path)) == (404, 11901)


def test_only_asked_events_of_the_model_come():
    queue = Subscribed()
    path = f"{queue.subscriptions}/{queue.subscription['id']}"
    queue.world.client.patch(path, json={"events": ["cf.workersAi.model.batch.succeeded"]})
    queue.world.submit(M2M, [{"text": "a", "target_lang": "es"}])
    request_id = queue.world.submit()
    queue.world.now += 10
    assert queue.heard() == [("succeeded", f"req-{request_id}")]


def test_subscription_hears_what_happens_after_it():
    queue = LocalQueue(LocalApi())
    queue.world.submit()
    queue.subscribe()
    queue.world.now += 10
    assert [body["type"].rpartition(".")[2] for body in queue.taken()] == ["succeeded"]


@pytest.mark.parametrize(
    ("per", "model", "status"),
    [("model", M2M, 200), ("model", BGE, 409), ("source", M2M, 409), ("any", BGE, 200)],
)
def test_how_many_subscriptions_there_may_be(per, model, status):
    queue = Subscribed(subscriptions_per=per)
    assert queue.subscribe(model, "second").status_code == status


def test_name_of_a_subscription_is_taken():
    queue = Subscribed(subscriptions_per="any")
    assert code(queue.subscribe(M2M)) == (409, 11902)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"events": ["batch.done"]}, (400, 10207)),
        ({"events": []}, (400, 10207)),
        ({"source": {"type": "r2"}}, (400, 10207)),
        ({"destination": {"queue_id": "0" * 32}}, (404, 11000)),
    ],
)
def test_subscriptions_that_are_refused(changes, expected):
    assert code(LocalQueue(LocalApi()).subscribe(**changes)) == expected


@pytest.mark.parametrize(("stay", "left"), [(True, 1), (False, 0)])
def test_subscription_outlives_its_queue_or_not(stay, left):
    queue = Subscribed(subscriptions_stay=stay)
    queue.world.client.delete(queue.at(queue.id))
    queue.world.submit()
    queue.world.now += 10
    assert len(queue.world.client.get(queue.subscriptions).json()["result"]) == left


def test_replies_may_show_full_names():
    assert (
        Subscribed(subscription_names="full").subscription["events"][0]
        == "cf.workersAi.model.batch.queued"
    )


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────


def test_delays_are_drawn_and_change_the_order():
    queue = Subscribed(
        event_delay=20.0, event_delay_kind="lognormal", event_delay_spread=1.0, latency=1.0
    )
    ids = [f"req-{queue.world.submit(requests=[{'text': str(number)}])}" for number in range(30)]
    heard = []
    for _ in range(60):
        queue.world.now += 5
        heard += queue.heard()
    assert sorted(heard) == sorted((what, one) for one in ids for what in ("queued", "succeeded"))
    orders = [[one for what, one in heard if what == name] for name in ("queued", "succeeded")]
    assert orders[0] != ids
    assert any(heard.index(("succeeded", one)) < heard.index(("queued", one)) for one in ids)


def test_delay_of_one_event():
    queue = Subscribed(event_delays={"queued": 3_600.0}, event_delay=0.0)
    queue.world.submit()
    queue.world.now += 3_599
    assert [what for what, _ in queue.heard()] == ["succeeded"]
    queue.world.now += 1
    assert [what for what, _ in queue.heard()] == ["queued"]


@pytest.mark.parametrize(
    ("fault", "heard"),
    [
        ({"kind": "event_lost"}, {"queued": 0, "succeeded": 0}),
        ({"kind": "event_lost", "message": "succeeded"}, {"queued": 1, "succeeded": 0}),
        ({"kind": "event_twice", "message": "queued"}, {"queued": 2, "succeeded": 1}),
        ({"kind": "event_late", "message": "queued"}, {"queued": 0, "succeeded": 1}),
        ({"kind": "event_late", "seconds": 30.0}, {"queued": 1, "succeeded": 1}),
        ({"kind": "event_false"}, {"queued": 1, "failed": 1}),
        ({"kind": "event_early"}, {"queued": 1, "succeeded": 1}),
    ],
)
def test_faults_of_events(fault, heard):
    queue = Subscribed()
    queue.world.api.inject(Fault(**fault))
    request_id = queue.world.submit()
    queue.world.now += 100
    found = [what for what, _ in queue.heard()]
    assert {what: found.count(what) for what in heard} == heard
    assert len(found) == sum(heard.values())
    assert len(queue.world.poll(request_id).json()["result"]["responses"]) == 20


def test_early_event_comes_while_the_batch_is_pending():
    queue = Subscribed(event_delay=0.0)
    queue.world.api.inject(Fault(kind="event_early"))
    request_id = queue.world.submit()
    assert ("succeeded", f"req-{request_id}") in queue.heard()
    assert queue.world.poll(request_id).json()["result"]["status"] == "queued"


def test_event_may_precede_the_reply_to_the_submit():
    queue = Subscribed(event_delay=0.0, latency=0.0)
    queue.world.api.inject(Fault(kind="accept_then_hang"))
    with pytest.raises(Exception, match="timed out"):
        queue.world.submit()
    assert sorted(what for what, _ in queue.heard()) == ["queued", "succeeded"]


def test_messages_of_others_come_beside():
    queue = Subscribed(foreign_events=10.0, event_delay=0.0)
    ids = {f"req-{queue.world.submit(requests=[{'text': str(number)}])}" for number in range(20)}
    queue.world.now += 10
    messages = []
    while pulled := queue.messages(batch_size=100):
        queue.ack(*(message["lease_id"] for message in pulled))
        messages += pulled
    assert 400 < len(messages) <= 480
    whole = [body for body in queue.bodies_of(messages) if isinstance(body, dict)]
    events = [body for body in whole if body.get("payload", {}).get("requestId") in ids]
    assert len(events) == 40
    assert max(len(message["body"]) for message in messages) > 170_000


def test_same_seed_sends_the_same():
    def run():
        queue = Subscribed(
            foreign_events=2.0, event_delay_kind="lognormal", fault_rates={"event_lost": 0.3}
        )
        for number in range(10):
            queue.world.submit(requests=[{"text": str(number)}])
        queue.world.now += 100
        return queue.messages(batch_size=100)

    assert run() == run()


# ── references ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("models", "status"), [([BGE], 400), (["*"], 400), ([M2M], 200)])
def test_model_that_takes_no_references(models, status):
    world = LocalApi(refuse_reference=models)
    assert world.run(BGE, {"requests": [{"text": "a"}]}).status_code == 200
    reply = world.run(BGE, {"requests": [{"text": "a", "external_reference": "b"}]})
    assert reply.status_code == status
    assert status == 200 or code(reply) == (400, 5006)
