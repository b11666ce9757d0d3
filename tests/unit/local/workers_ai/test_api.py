"""The local Workers AI's protocol: who may ask, what a submit and a poll answer, and how the switches change it."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from local.workers_ai import Behaviour, WorkersAI, expected_result, transport

ACCOUNT = "0123456789abcdef0123456789abcdef"
BGE = "@cf/baai/bge-small-en-v1.5"
M2M = "@cf/meta/m2m100-1.2b"
KIMI = "@cf/moonshotai/kimi-k2.6"
OSS = "@cf/openai/gpt-oss-20b"
TEXTS = [{"text": f"text {index}", "external_reference": f"row-{index}"} for index in range(20)]


class World:
    """One local API with a clock that stands still, and a client of it."""

    def __init__(self, **switches):
        self.now = 1_000_000.0
        self.api = WorkersAI(Behaviour(embedder="hash").changed(switches), now=lambda: self.now)
        self.client = httpx.Client(
            transport=transport(self.api),
            base_url="https://api.test/client/v4",
            headers={"authorization": "Bearer local-token"},
        )

    def run(self, model, body, query="?queueRequest=true", account=ACCOUNT, **more):
        return self.client.post(f"/accounts/{account}/ai/run/{model}{query}", json=body, **more)

    def submit(self, model=BGE, requests=TEXTS):
        reply = self.run(model, {"requests": requests})
        assert reply.is_success, reply.text
        return reply.json()["result"]["request_id"]

    def poll(self, request_id, model=BGE, query=""):
        return self.run(model, {"request_id": request_id}, query)

    def finished(self, request_id, model=BGE):
        self.now += 10
        return self.poll(request_id, model).json()["result"]


def code(reply):
    return reply.status_code, reply.json()["errors"][0]["code"]


# ── submit ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_submit_is_queued_in_documented_envelope():
    reply = World().run(BGE, {"requests": TEXTS})
    request_id = reply.json()["result"]["request_id"]
    assert reply.status_code == 200
    assert reply.json() == {
        "result": {"status": "queued", "request_id": request_id, "model": BGE},
        "success": True,
        "errors": [],
        "messages": [],
    }


def test_repeated_body_is_billed_twice():
    world = World()
    assert world.submit() != world.submit()
    assert [entry["count"] for entry in world.api.accepted] == [20, 20]
    assert world.api.accepted[0]["sha256"] == world.api.accepted[1]["sha256"]


def test_ids_do_not_depend_on_order_of_submits():
    one, other = World(), World()
    first, second = one.submit(requests=TEXTS[:1]), one.submit(requests=TEXTS[1:])
    assert {other.submit(requests=TEXTS[1:]), other.submit(requests=TEXTS[:1])} == {first, second}


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (BGE, {}, (400, 5006)),
        (BGE, {"requests": []}, (400, 5006)),
        (BGE, {"requests": [{"texts": "a"}]}, (400, 5006)),
        (BGE, {"requests": [{"text": 1}]}, (400, 5006)),
        (BGE, {"requests": ["a"]}, (400, 5006)),
        (BGE, {"requests": {"text": "a"}}, (400, 5006)),
        (BGE, [1], (400, 5006)),
        (M2M, {"requests": [{"text": "a"}]}, (400, 5006)),
        (KIMI, {"requests": [{"input": "a"}]}, (400, 5006)),
        ("@cf/no/such-model", {"requests": TEXTS}, (400, 5007)),
        ("@cf/baai/bge-reranker-base", {"requests": TEXTS}, (400, 8007)),
    ],
)
def test_rejected_body_is_not_billed(model, body, expected):
    world = World()
    assert code(world.run(model, body)) == expected
    assert world.api.accepted == []


def test_gpt_oss_refuses_chat_requests_with_one_of():
    reply = World().run(OSS, {"requests": [{"messages": [{"role": "user", "content": "a"}]}]})
    assert code(reply) == (400, 5006)
    assert "oneOf" in reply.text


def test_model_without_queue_says_so():
    world = World(no_batch_models=["@cf/baai/bge-m3"], unqueueable_status=422)
    reply = world.run("@cf/baai/bge-m3", {"requests": TEXTS})
    assert code(reply) == (422, 8007)
    assert "does not support request queuing" in reply.text


def test_body_of_ten_million_bytes_is_too_large():
    world = World()
    start, end = b'{"requests":[{"text":"', b'"}]}'
    for size, status in ((10_000_000, 413), (9_999_999, 200)):
        content = start + b"a" * (size - len(start) - len(end)) + end
        path = f"/accounts/{ACCOUNT}/ai/run/{BGE}?queueRequest=true"
        assert world.client.post(path, content=content).status_code == status


def test_missing_wrapper_may_fail_later():
    world = World(missing_requests="fail_later")
    request_id = world.run(BGE, {"text": "a"}).json()["result"]["request_id"]
    world.now += 10
    assert code(world.poll(request_id)) == (400, 3030)


def test_bad_requests_can_be_accepted_and_fail_later():
    world = World(validation="fail_later", batch_failure="error")
    request_id = world.submit(requests=[{"texts": "a"}])
    assert world.finished(request_id)["status"] == "error"


def test_without_query_model_answers_immediately():
    world = World()
    reply = world.run(M2M, {"text": "a", "target_lang": "es"}, query="")
    assert reply.json()["result"] == {"translated_text": "[es] a"}


def test_switched_replies_to_submit():
    world = World(submit_status=202, submit_model=False, request_id_form="req", envelope=False)
    reply = world.run(BGE, {"requests": TEXTS})
    assert reply.status_code == 202
    assert set(reply.json()) == {"status", "request_id"}
    assert reply.json()["request_id"].startswith("req-")


# ── poll ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("query", ["", "?queueRequest=true"])
def test_batch_is_queued_then_running_then_finished(query):
    world = World(latency=10)
    request_id = world.submit()
    seen = []
    for seconds in (0, 4, 4, 4):
        world.now += seconds
        seen.append(world.poll(request_id, query=query).json()["result"])
    assert [result.get("status") for result in seen] == ["queued", "queued", "running", None]
    assert set(seen[0]) == {"status", "request_id"}
    assert {"responses", "usage"} <= set(seen[3])


def test_items_are_reordered_with_references():
    world = World()
    items = world.finished(world.submit())["responses"]
    assert [item["id"] for item in items] != list(range(20))
    for item in items:
        assert item["external_reference"] == f"row-{item['id']}"
        assert item["result"] == expected_result(BGE, TEXTS[item["id"]])


def test_missing_reference_is_null():
    world = World()
    model = "@cf/baai/bge-m3"
    requests = [{"query": "q", "contexts": [{"text": "a", "external_reference": "inner"}]}]
    (item,) = world.finished(world.submit(model, requests), model)["responses"]
    assert item["external_reference"] is None


def test_newer_models_answer_in_shape_b():
    requests = [{"messages": [{"role": "user", "content": "hello"}]}]
    world = World()
    result = world.finished(world.submit(KIMI, requests), KIMI)
    assert [item["index"] for item in result["results"]] == [0]
    assert "usage" not in result
    world.api.switch(shapes={"*": "A"})
    assert "responses" in world.finished(world.submit(KIMI, requests), KIMI)


def test_finished_batch_is_readable_until_retention():
    world = World(retention=100)
    request_id = world.submit()
    assert world.finished(request_id) == world.finished(request_id)
    world.now += 200
    assert code(world.poll(request_id)) == (404, 10404)


def test_results_can_be_read_limited_number_of_times():
    world = World(answers_per_batch=1)
    request_id = world.submit()
    assert "responses" in world.finished(request_id)
    assert world.poll(request_id).status_code == 404


@pytest.mark.parametrize(
    "other", [{"model": "@cf/baai/bge-base-en-v1.5"}, {"account": "f" * 32}, {"request_id": "unknown"}]
)
def test_id_is_known_only_where_it_was_given(other):
    world = World()
    asked = {"model": BGE, "account": ACCOUNT, "request_id": world.submit(), **other}
    reply = world.run(asked["model"], {"request_id": asked["request_id"]}, account=asked["account"])
    assert reply.status_code == 404


def test_switched_pending_replies():
    world = World(pending_status=202, pending_model=True, queued_word="in_progress")
    reply = world.poll(world.submit())
    assert reply.status_code == 202
    assert reply.json()["result"]["status"] == "in_progress"
    assert reply.json()["result"]["model"] == BGE
    world.api.switch(pending_empty=True)
    assert world.poll(world.submit()).json()["result"] == {}


def test_switched_forms_of_finished_batch():
    world = World(completed_status="completed", nested_result=True, missing_reference="absent", shuffle=False)
    result = world.finished(world.submit(requests=[{"text": "a"}]))
    assert result["status"] == "completed"
    assert result["responses"][0]["result"]["result"] == expected_result(BGE, {"text": "a"})
    assert "external_reference" not in result["responses"][0]


def test_large_bodies_are_spooled_and_answered():
    world = World(memory=0)
    assert len(world.finished(world.submit())["responses"]) == 20


# ── latency ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "lowest", "highest"), [("uniform", 5, 15), ("lognormal", 0, 200)])
def test_latencies_spread_around_their_median(kind, lowest, highest):
    world = World(latency=10, latency_kind=kind)
    for _ in range(100):
        world.submit()
    took = sorted(entry["completes_at"] - entry["time"] for entry in world.api.accepted)
    assert lowest <= took[0] < took[50] < took[-1] <= highest
    assert 7 < took[50] < 13


def test_latency_by_model_and_by_item():
    world = World(model_latency={BGE: 3}, latency_per_item=0.5)
    world.submit()
    assert world.api.accepted[0]["completes_at"] - world.now == 13


# ── the edge ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        ("Bearer wrong", (401, 10000)),
        ("Bearer two words", (400, 9106)),
        ("wrong", (400, 9106)),
        ("Bearer elsewhere", (403, 9109)),
    ],
)
def test_bad_tokens(authorization, expected):
    world = World(foreign_tokens=["elsewhere"])
    world.client.headers["authorization"] = authorization
    assert code(world.run(BGE, {"requests": TEXTS})) == expected


def test_missing_token_and_token_that_is_taken_back():
    world = World()
    del world.client.headers["authorization"]
    assert code(world.run(BGE, {"requests": TEXTS})) == (400, 9106)
    world.client.headers["authorization"] = "Bearer local-token"
    world.api.switch(tokens=["another"], bad_token="403/10000")
    assert code(world.run(BGE, {"requests": TEXTS})) == (403, 10000)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", f"/accounts/{ACCOUNT}/ai/runs/{BGE}", (400, 7000)),
        ("POST", "/accounts", (400, 7000)),
        ("POST", f"/accounts/nonsense/ai/run/{BGE}", (404, 7003)),
        ("GET", f"/accounts/{ACCOUNT}/ai/run/{BGE}", (405, 7001)),
    ],
)
def test_paths_that_lead_nowhere(method, path, expected):
    assert code(World().client.request(method, path)) == expected


def test_global_limit_refuses_everything():
    world = World(global_limit=5, latency=0)
    request_id = world.submit()
    left = [world.poll(request_id).headers["ratelimit"] for _ in range(4)]
    assert left[-1] == '"default";r=0;t=300'
    refused = world.poll(request_id)
    assert code(refused) == (429, 971)
    assert refused.headers["retry-after"] == "300"
    world.now += 299
    assert world.client.get("/user/tokens/verify").status_code == 429
    world.now += 2
    assert world.poll(request_id).is_success


def test_minute_limit_counts_only_submits():
    world = World(model_limit={BGE: 2})
    request_id = world.submit()
    for _ in range(5):
        assert world.poll(request_id).is_success
    world.submit()
    assert code(world.run(BGE, {"requests": TEXTS})) == (429, 3021)
    world.now += 61
    world.submit()


def test_catalogue_shows_batch_property():
    world = World(no_batch_models=["@cf/baai/bge-m3"])
    reply = world.client.get(f"/accounts/{ACCOUNT}/ai/models/search", params={"search": "bge-"}).json()
    properties = {entry["name"]: entry["properties"] for entry in reply["result"]}
    assert properties[BGE] == [{"property_id": "async_queue", "value": "true"}]
    assert properties["@cf/baai/bge-m3"] == []
    assert reply["result_info"]["total_count"] == len(properties)


def test_token_check():
    world = World()
    assert world.client.get("/user/tokens/verify").json()["result"]["status"] == "active"
    world.api.switch(tokens=[])
    assert code(world.client.get("/user/tokens/verify")) == (401, 1000)


def test_replies_are_compressed_if_accepted():
    world = World(compress=True)
    request_id = world.submit()
    world.now += 10
    reply = world.poll(request_id)
    assert reply.headers["content-encoding"] == "gzip"
    assert len(reply.json()["result"]["responses"]) == 20
    raw = world.api.handle(
        "POST",
        f"/client/v4/accounts/{ACCOUNT}/ai/run/{BGE}",
        "",
        {"Authorization": "Bearer local-token", "Accept-Encoding": "gzip"},
        json.dumps({"request_id": request_id}).encode(),
    )
    assert json.loads(gzip.decompress(raw.body)) == reply.json()


# ── what tests read ──────────────────────────────────────────────────────────────────────────────────────────────


def test_bill_counts_polls_and_answers():
    world = World()
    request_id = world.submit()
    world.poll(request_id)
    world.finished(request_id)
    (entry,) = world.api.accepted
    assert (entry["request_id"], entry["model"], entry["polls"], entry["answers"]) == (request_id, BGE, 2, 1)


def test_threads_are_counted_and_answered():
    world = World(latency=0, global_limit=0, memory=2_000)

    def one(number):
        requests = [{"text": f"thread {number} text {index}"} for index in range(20)]
        items = world.poll(world.submit(requests=requests)).json()["result"]["responses"]
        return all(item["result"] == expected_result(BGE, requests[item["id"]]) for item in items)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(one, range(100)))
    assert len({entry["request_id"] for entry in world.api.accepted}) == 100
    assert world.api.calls == {"submit": {"200": 100}, "poll": {"200": 100}}


def test_local_routes_show_and_change_server():
    world = World()
    client = httpx.Client(transport=transport(world.api), base_url="https://api.test/_local")
    world.submit()
    assert client.get("/accepted").json() == world.api.accepted
    assert client.get("/calls").json() == {"submit": {"200": 1}}
    assert client.put("/behaviour", json={"latency": 7}).json()["latency"] == 7
    assert client.post("/faults", json={"kind": "3040", "times": 0}).json() == [{"kind": "3040", "times": 0}]
    assert code(world.run(BGE, {"requests": TEXTS})) == (429, 3040)
    assert client.delete("/faults").json() == []
    world.submit()
    assert client.put("/behaviour", json={"nothing": 7}).status_code == 400
    assert client.post("/faults", json={"kind": "nothing"}).status_code == 400
    assert client.get("/nothing").status_code == 404


def test_events_follow_batches():
    world = World(missing_requests="fail_later")
    world.run(BGE, {"text": "a"})
    world.submit()
    assert [event["type"].rpartition(".")[2] for event in world.api.events] == ["queued", "queued"]
    world.now += 10
    assert [event["type"].rpartition(".")[2] for event in world.api.events][2:] == ["failed", "succeeded"]
    assert world.api.events[2]["payload"]["internalCode"] == 3030
