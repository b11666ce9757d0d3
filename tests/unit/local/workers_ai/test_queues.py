"""Queues and event subscriptions of the local Workers AI: calls, leases, refusals."""

import json

import pytest

from tests.support.local_api import ACCOUNT, BGE, TEXTS, LocalApi, LocalQueue, code

ELSEWHERE = "f" * 32


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


def test_settings_are_changed_within_bounds():
    world = LocalApi()
    queue = LocalQueue(world)
    settings = {"message_retention_period": 3600}
    changed = world.client.patch(queue.at(queue.id), json={"settings": settings}).json()["result"]
    assert changed["settings"]["message_retention_period"] == 3600
    refused = world.client.patch(
        queue.at(queue.id), json={"settings": {"message_retention_period": 59}}
    )
    assert code(refused) == (400, 10207)
    body = {"type": "http_pull", "settings": {"max_retries": 100}}
    consumer = world.client.get(queue.at(f"{queue.id}/consumers")).json()["result"][0][
        "consumer_id"
    ]
    assert world.client.put(queue.at(f"{queue.id}/consumers/{consumer}"), json=body).is_success
    assert (
        world.client.get(queue.at(f"{queue.id}/consumers")).json()["result"][0]["settings"][
            "max_retries"
        ]
        == 100
    )


def test_name_and_consumer_are_taken():
    world = LocalApi()
    queue = LocalQueue(world)
    assert code(world.client.post(queue.at(""), json={"queue_name": "events"})) == (409, 11009)
    assert code(
        world.client.post(queue.at(f"{queue.id}/consumers"), json={"type": "http_pull"})
    ) == (409, 11004)


def test_queue_belongs_to_its_account():
    world = LocalApi()
    queue = LocalQueue(world)
    assert world.client.get(queue.at("", ELSEWHERE)).json()["result"] == []
    assert code(world.client.post(queue.at(f"{queue.id}/messages/pull", ELSEWHERE))) == (404, 10104)


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


def test_refusal_may_be_a_page():
    reply = LocalApi(queues_refused="page").client.get(f"/accounts/{ACCOUNT}/queues")
    assert (reply.status_code, reply.headers["content-type"]) == (403, "text/html; charset=UTF-8")


def test_token_of_queues_alone_may_not_run_models():
    world = LocalApi(queues_tokens=["for-queues"])
    assert world.submit()
    world.client.headers["authorization"] = "Bearer for-queues"
    assert LocalQueue(world).pull().is_success
    assert code(world.run(BGE, {"requests": TEXTS})) == (401, 10000)


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


def test_message_is_given_back_with_a_delay():
    world = LocalApi()
    queue = LocalQueue(world)
    queue.push({"a": 1})
    (message,) = queue.messages(visibility_timeout_ms=1_000)
    body = {"retries": [{"lease_id": message["lease_id"], "delay_seconds": 20}]}
    assert queue.call("ack", body).json()["result"]["retryCount"] == 1
    world.now += 19
    assert queue.messages() == []
    world.now += 2
    assert [one["attempts"] for one in queue.messages()] == [2]


def test_message_expires_with_the_queues_retention():
    world = LocalApi()
    queue = LocalQueue(world)
    world.client.patch(queue.at(queue.id), json={"settings": {"message_retention_period": 60}})
    queue.push({"a": 1})
    world.now += 61
    assert queue.pull().json()["result"] == {"message_backlog_count": 0, "messages": []}


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


def test_message_of_over_128_kb_is_refused():
    queue = LocalQueue(LocalApi())
    assert code(queue.call("", {"body": "a" * 128_000, "content_type": "json"})) == (400, 10204)
    assert queue.call("", {"body": "a" * 127_998, "content_type": "json"}).is_success


@pytest.mark.parametrize(
    ("form", "body"), [("base64", "eyJhIjoxfQ=="), ("text", '{"a":1}'), ("object", {"a": 1})]
)
def test_bodies_come_in_each_form(form, body):
    queue = LocalQueue(LocalApi(event_bodies=form))
    queue.push({"a": 1})
    assert [message["body"] for message in queue.messages()] == [body]


def test_text_comes_as_text():
    queue = LocalQueue(LocalApi())
    queue.call("", {"body": "not JSON", "content_type": "text"})
    (message,) = queue.messages()
    assert (message["body"], message["metadata"]["CF-Content-Type"]) == ("not JSON", "text")


# ── limits and faults ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("counts", "refused"), [(True, True), (False, False)])
def test_pulls_count_against_the_limit_or_not(counts, refused):
    world = LocalApi(global_limit=5, pulls_count=counts)
    queue = LocalQueue(world)
    for _ in range(5):
        reply = queue.pull()
    assert reply.is_success is not refused
    assert ("ratelimit" in reply.headers) is refused
    assert world.client.get(queue.at("")).is_success is not refused


def test_calls_are_counted_by_kind():
    world = LocalApi()
    queue = LocalQueue(world)
    queue.pull()
    queue.ack()
    assert world.api.calls == {"queues": {"200": 2}, "pull": {"200": 1}, "ack": {"200": 1}}


def test_scripted_fault_strikes_queues_alone():
    world = LocalApi()
    queue = LocalQueue(world)
    world.client.post(
        "https://api.test/_local/faults", json={"kind": "html", "on": "queues", "contains": "/pull"}
    )
    assert world.submit()
    assert world.client.get(queue.at("")).is_success
    assert queue.pull().status_code == 502
    assert queue.pull().is_success
    assert world.api.struck == {"html": 1}


def test_fault_of_any_call_spares_queues():
    world = LocalApi(fault_rates={"any:html": 1.0})
    assert LocalQueue(world).pull().is_success


def test_faults_by_chance_strike_queues():
    world = LocalApi()
    queue = LocalQueue(world)
    world.api.switch(fault_rates={"queues:10250": 0.5})
    assert {queue.pull().status_code for _ in range(20)} == {200, 500}


def test_replies_tell_the_time():
    world = LocalApi()
    assert LocalQueue(world).pull().headers["date"] == "Mon, 12 Jan 1970 13:46:40 GMT"


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


def test_local_route_shows_the_queues():
    world = LocalApi()
    queue = LocalQueue(world)
    queue.push(1, 2)
    queue.ack(*(message["lease_id"] for message in queue.messages(batch_size=1)))
    shown = world.client.get("https://api.test/_local/queues").json()
    assert shown == [
        {"name": "events", "backlog": 1, "stored": 2, "pulled": 1, "acked": 1, "dropped": 0}
    ]
    assert json.dumps(world.api.queues) == json.dumps(shown)
