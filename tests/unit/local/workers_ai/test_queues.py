"""Queues and event subscriptions of the local Workers AI: calls, leases, refusals."""

import pytest

from tests.support.local_api import ACCOUNT, LocalApi, LocalQueue, code


def test_queue_is_created_listed_and_deleted():
    world = LocalApi()
    queue = LocalQueue(world)
    (shown,) = world.client.get(queue.at(""), params={"name": "events"}).json()["result"]
    assert (shown["queue_id"], shown["queue_name"]) == (queue.id, "events")
    assert shown["settings"]["message_retention_period"] == 345_600
    (consumer,) = shown["consumers"]
    assert (consumer["type"], consumer["settings"]["max_retries"]) == ("http_pull", 3)
    assert world.client.get(queue.at(""), params={"name": "other"}).json()["result"] == []
    assert world.client.delete(queue.at(queue.id)).is_success
    assert code(queue.pull()) == (404, 10104)
    assert code(world.client.get(queue.at(queue.id))) == (404, 11000)


def test_queue_of_a_worker_cannot_be_pulled():
    world = LocalApi()
    queue = LocalQueue(world)
    consumer = world.client.get(queue.at(f"{queue.id}/consumers")).json()["result"][0][
        "consumer_id"
    ]
    assert world.client.delete(queue.at(f"{queue.id}/consumers/{consumer}")).is_success
    assert code(queue.pull()) == (400, 11015)
    assert code(world.client.delete(queue.at(f"{queue.id}/consumers/{consumer}"))) == (404, 11003)
    worker = {"type": "worker", "script_name": "reader"}
    assert world.client.post(queue.at(f"{queue.id}/consumers"), json=worker).is_success
    assert code(queue.pull()) == (400, 11015)


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({"queues_refused": "403/10000"}, (403, 10000)),
        ({"queues_refused": "405/7001"}, (405, 7001)),
        ({"queues_tokens": ["another"]}, (403, 10000)),
        ({"tokens": ["another"]}, (401, 10000)),
    ],
)
def test_callers_that_may_not_edit_queues(switches, expected):
    world = LocalApi(**switches)
    paths = [
        f"/accounts/{ACCOUNT}/queues",
        f"/accounts/{ACCOUNT}/event_subscriptions/subscriptions",
    ]
    assert [code(world.client.get(path)) for path in paths] == [expected, expected]


# ── messages ──────────────────────────────────────────────────────────────────────────────────────


def test_leased_message_comes_back_until_acked():
    world = LocalApi()
    queue = LocalQueue(world)
    queue.push({"a": 1})
    (first,) = queue.messages(visibility_timeout_ms=10_000)
    assert (first["attempts"], queue.bodies_of([first])) == (1, [{"a": 1}])
    assert queue.messages() == []
    world.now += 11
    (again,) = queue.messages()
    assert (again["id"], again["attempts"]) == (first["id"], 2)
    assert again["lease_id"] != first["lease_id"]
    late = queue.ack(first["lease_id"])
    assert (late["ackCount"], list(late["warnings"])) == (0, [first["lease_id"]])
    assert queue.ack(again["lease_id"])["ackCount"] == 1
    world.now += 100
    assert queue.messages() == []


def test_message_is_deleted_after_its_last_attempt():
    world = LocalApi()
    queue = LocalQueue(world, max_retries=2)
    queue.push({"a": 1})
    attempts = []
    for _ in range(5):
        attempts += [message["attempts"] for message in queue.messages(visibility_timeout_ms=1_000)]
        world.now += 2
    assert attempts == [1, 2, 3]
    assert world.api.queues[0]["dropped"] == 1


def test_backlog_is_pulled_a_hundred_at_a_time():
    world = LocalApi(global_limit=0)
    queue = LocalQueue(world)
    for _ in range(3):
        queue.push(*range(100))
    assert len(queue.messages(batch_size=None)) == 5
    pulled = queue.pull(batch_size=100).json()["result"]
    assert (len(pulled["messages"]), pulled["message_backlog_count"]) == (100, 300)
    assert queue.bodies_of(pulled["messages"]) != sorted(queue.bodies_of(pulled["messages"]))
    assert code(queue.pull(batch_size=101)) == (400, 10207)


@pytest.mark.parametrize(
    ("form", "body"), [("base64", "eyJhIjoxfQ=="), ("text", '{"a":1}'), ("object", {"a": 1})]
)
def test_bodies_come_in_each_form(form, body):
    queue = LocalQueue(LocalApi(event_bodies=form))
    queue.push({"a": 1})
    assert [message["body"] for message in queue.messages()] == [body]


# ── limits and faults ─────────────────────────────────────────────────────────────────────────────


def test_pulls_and_acknowledgements_do_not_count_against_the_limit():
    world = LocalApi(global_limit=4)
    queue = LocalQueue(world)  # Two calls.
    queue.push(1)
    for _ in range(5):
        queue.ack(*(message["lease_id"] for message in queue.messages()))
    assert [queue.subscribe().status_code for _ in range(2)][-1] != 429
    assert queue.subscribe().status_code == 429
    assert queue.pull().is_success


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "nothing/there/is", (400, 7000)),
        ("DELETE", "", (405, 7001)),
        ("POST", "", (400, 10207)),
    ],
)
def test_calls_that_are_wrong(method, path, expected):
    world = LocalApi()
    queue = LocalQueue(world)
    assert code(world.client.request(method, queue.at(path))) == expected
