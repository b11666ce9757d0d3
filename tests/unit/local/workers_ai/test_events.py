"""Completion events of the local Workers AI."""

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


@pytest.mark.parametrize(
    ("per", "model", "status"),
    [("model", M2M, 200), ("model", BGE, 409), ("source", M2M, 409), ("any", BGE, 200)],
)
def test_how_many_subscriptions_there_may_be(per, model, status):
    queue = Subscribed(subscriptions_per=per)
    assert queue.subscribe(model, "second").status_code == status


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


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────


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
