"""The local Workers AI: its protocol, answers, refusals, switches, queues and events."""

import pytest

from dropbatch.core import requests
from local.workers_ai import Behaviour, Fault, SwitchError, expected_result
from local.workers_ai.codes import KNOWN
from local.workers_ai.faults import KINDS
from local.workers_ai.models.catalogue import MODELS
from local.workers_ai.models.schemas import problem
from local.workers_ai.worker import STATUSES
from shared.workers_ai import error_codes
from tests.support.converted import DEEPSEEK, GPT, KIMI, LLAMA, M3, QWEN, SCOUT
from tests.support.local_api import ACCOUNT, BGE, TEXTS, LocalApi, LocalQueue, code

WHISPER = "@cf/openai/whisper-large-v3-turbo"


def test_submit_is_queued_in_documented_envelope():
    reply = LocalApi().run(BGE, {"requests": TEXTS})
    request_id = reply.json()["result"]["request_id"]
    assert reply.status_code == 200
    result = {"status": "queued", "request_id": request_id, "model": BGE}
    assert reply.json() == {"result": result, "success": True, "errors": [], "messages": []}
    bare = LocalApi(submit_status=202, request_id_form="req", envelope=False)
    reply = bare.run(BGE, {"requests": TEXTS})
    assert (reply.status_code, set(reply.json())) == (202, {"status", "request_id", "model"})
    assert reply.json()["request_id"].startswith("req-")


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (BGE, {}, (400, 5006)),
        (BGE, {"requests": []}, (400, 5006)),
        (BGE, {"requests": [{"text": 1}]}, (400, 5006)),
        (BGE, {"requests": ["a"]}, (400, 5006)),
        (BGE, {"requests": {"text": "a"}}, (400, 5006)),
        (BGE, [1], (400, 5006)),
        ("@cf/meta/m2m100-1.2b", {"requests": [{"text": "a"}]}, (400, 5006)),
        ("@cf/no/such-model", {"requests": TEXTS}, (400, 5007)),
        ("@cf/baai/bge-reranker-base", {"requests": TEXTS}, (400, 8007)),
    ],
)
def test_rejected_body_is_not_billed(model, body, expected):
    world = LocalApi()
    assert code(world.run(model, body)) == expected
    assert world.api.accepted == []


def test_body_of_ten_million_bytes_is_too_large():
    world = LocalApi()
    for size, status in ((10_000_000, 413), (9_999_999, 200)):
        requests = [{"text": "a" * (size - len('{"requests":[{"text":""}]}'))}]
        assert world.run(BGE, {"requests": requests}).status_code == status


@pytest.mark.parametrize("query", ["", "?queueRequest=true"])
def test_batch_is_queued_then_running_then_finished_then_forgotten(query):
    world = LocalApi(latency=10, retention=100)
    request_id = world.submit()
    seen = []
    for seconds in (0, 4, 4, 4):
        world.now += seconds
        seen.append(world.poll(request_id, query=query).json()["result"])
    assert [result.get("status") for result in seen] == ["queued", "queued", "running", None]
    assert set(seen[0]) == {"status", "request_id"}
    assert {"responses", "usage"} <= set(seen[3])
    assert world.finished(request_id) == seen[3]
    world.now += 200
    assert code(world.poll(request_id)) == (404, 10404)


def test_items_are_reordered_with_references():
    world = LocalApi()
    items = world.finished(world.submit())["responses"]
    assert [item["id"] for item in items] != list(range(20))
    for item in items:
        assert item["external_reference"] == f"row-{item['id']}"
        assert item["result"] == expected_result(BGE, TEXTS[item["id"]])


HELLO = {"role": "user", "content": "hello"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
LINK = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def chat(*messages, **more):
    return {"messages": list(messages or (HELLO,)), **more}


@pytest.mark.parametrize(
    ("model", "request_", "place"),
    [
        (LLAMA, chat(HELLO, CALLS | {"content": None}), "/content', 'string' not in 'null'"),
        (QWEN, chat(HELLO, CALLS), "content"),
        (LLAMA, chat(HELLO | {"content": [{"type": "text", "text": "a"}]}), "/0/content"),
        (SCOUT, chat(seed=0), "/seed"),
        (QWEN, chat(top_p=0), "/top_p"),
        (LLAMA, chat(temperature=5.5), "/temperature"),
        (LLAMA, chat(response_format={"type": "text"}), "/response_format/type"),
        (DEEPSEEK, chat(reasoning_effort="minimal"), "/reasoning_effort"),
        (KIMI, chat({"role": "robot", "content": "a"}), "/role"),
        (KIMI, chat(HELLO, CALLS, {"role": "tool", "content": "1"}), "tool_call_id"),
        (KIMI, chat(stop=list("abcde")), "/stop"),
        (SCOUT, chat({"role": "user", "content": [LINK]}), "/image_url/url"),
        (GPT, {"input": "a", "reasoning": {"effort": "minimal"}}, "/reasoning/effort"),
        (BGE, {"text": ["a"] * 101}, "/text"),
        (M3, {"text": "a", "contexts": [{"text": "a"}]}, "2 matches"),
        (WHISPER, {"audio": {"body": "a"}}, "/audio"),
    ],
)
def test_published_schema_refuses_with_place(model, request_, place):
    assert place in problem(model, request_, "/requests/3", Behaviour())


def test_model_has_one_schema_with_source():
    schemas = requests.content()["schemas"]
    assert sorted(model for one in schemas.values() for model in one["models"]) == sorted(MODELS)
    for one in schemas.values():
        assert one["source"] is None or one["source"].keys() == {"page", "file", "commit", "read"}


ACCOUNTS = f"/accounts/{ACCOUNT}"
TOKENS = {
    "Bearer wrong": (401, 10000),
    "Bearer two words": (400, 9106),
    "wrong": (400, 9106),
    "Bearer elsewhere": (403, 9109),
}
PATHS = {
    ("POST", f"{ACCOUNTS}/ai/runs/{BGE}"): (400, 7000),
    ("POST", f"/accounts/nonsense/ai/run/{BGE}"): (404, 7003),
    ("GET", f"{ACCOUNTS}/ai/run/{BGE}"): (405, 7001),
    ("GET", f"{ACCOUNTS}/queues/nothing/there/is"): (400, 7000),
    ("DELETE", f"{ACCOUNTS}/queues"): (405, 7001),
    ("POST", f"{ACCOUNTS}/queues"): (400, 10207),
}


def test_bad_tokens_and_paths_that_lead_nowhere():
    world = LocalApi(foreign_tokens=["elsewhere"])
    assert {path: code(world.client.request(*path)) for path in PATHS} == PATHS
    for token, expected in TOKENS.items():
        world.client.headers["authorization"] = token
        assert code(world.run(BGE, {"requests": TEXTS})) == expected


def test_global_limit_refuses_everything():
    world = LocalApi(global_limit=5, latency=0)
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


def test_switches_change_as_json_says():
    given = {"latency": 3, "tokens": ["one"], "shapes": {BGE: "B"}, "fault_rates": {"3040": 0.1}}
    changed = Behaviour(shuffle=False).changed(given)
    assert (changed.latency, changed.tokens, changed.shuffle) == (3.0, ("one",), False)
    assert (changed.shapes, changed.fault_rates) == ({BGE: "B"}, {"3040": 0.1})


WRONG = [
    *({"nothing": 1}, {"submit_status": 201}, {"latency": "soon"}, {"item_error": "loud"}),
    *({"fault_rates": {one: 0.5}} for one in ("nothing", "submit:nothing", "nowhere:3040")),
]


@pytest.mark.parametrize("given", WRONG)
def test_switches_that_are_refused(given):
    with pytest.raises(SwitchError):
        Behaviour().changed(given)


def test_local_api_can_return_every_code_that_functions_know():
    assert error_codes._CODES.keys() <= KNOWN.keys()
    assert len(STATUSES) > 20
    assert {code: KNOWN[code].status for code in STATUSES} == STATUSES


def test_api_knows_what_it_would_answer():
    local = LocalApi()
    local.api.inject(Fault(kind="missing", items=(1,), first=1), Fault(kind="missing", items=(2,)))
    request_id = local.submit()

    def answered():
        return [local.api.would_answer(request_id, text) for text in TEXTS[:3]]

    assert answered() == [False] * 3, "it still runs"
    assert len(local.finished(request_id)["responses"]) == 18
    assert answered() == [True, True, False]
    assert local.api.would_answer("unknown", TEXTS[0]) is False
    assert local.api.calls["poll"] == {"200": 1}


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
    late = queue.ack(first["lease_id"])
    assert (late["ackCount"], list(late["warnings"])) == (0, [first["lease_id"]])
    assert queue.ack(again["lease_id"])["ackCount"] == 1
    world.now += 100
    assert queue.messages() == []


def test_pulls_and_acknowledgements_do_not_count_against_the_limit():
    world = LocalApi(global_limit=4)
    queue = LocalQueue(world)  # Two calls.
    queue.push(1)
    for _ in range(5):
        queue.ack(*(message["lease_id"] for message in queue.messages()))
    assert [queue.subscribe().status_code for _ in range(2)][-1] != 429
    assert queue.subscribe().status_code == 429
    assert queue.pull().is_success


class Subscribed(LocalQueue):
    """A queue that hears of one model."""

    def __init__(self, **switches):
        super().__init__(LocalApi(global_limit=0, **switches))
        self.subscription = self.subscribe().json()["result"]

    def heard(self):
        """The types of the events that have come, which are acknowledged."""
        return [body["type"].rpartition(".")[2] for body in self.taken()]


def test_batch_sends_queued_and_succeeded():
    queue = Subscribed()
    request_id = queue.world.submit()
    assert queue.taken() == []
    queue.world.now += 1
    (queued,) = queue.taken()
    assert queued.pop("metadata") == {
        "accountId": ACCOUNT,
        "eventSubscriptionId": queue.subscription["id"],
        "eventSchemaVersion": 1,
        "eventTimestamp": "1970-01-12T13:46:40.000Z",
    }
    source = {"type": "workersAi.model", "modelName": BGE}
    payload, kind = {"requestId": f"req-{request_id}"}, "cf.workersAi.model.batch.queued"
    assert queued == {"type": kind, "source": source, "payload": payload}
    queue.world.now += 2
    assert queue.heard() == ["succeeded"]
    queue.world.now += 1_000
    assert queue.taken() == []


@pytest.mark.parametrize(
    ("fault", "heard"),
    [
        ({"kind": "event_lost"}, []),
        ({"kind": "event_lost", "message": "succeeded"}, ["queued"]),
        ({"kind": "event_twice", "message": "queued"}, ["queued", "queued", "succeeded"]),
        ({"kind": "event_late", "message": "queued"}, ["succeeded"]),
        ({"kind": "event_late", "seconds": 30.0}, ["queued", "succeeded"]),
        ({"kind": "event_false"}, ["failed", "queued"]),
        ({"kind": "event_early"}, ["queued", "succeeded"]),
    ],
)
def test_faults_of_events(fault, heard):
    queue = Subscribed()
    queue.world.api.inject(Fault(**fault))
    request_id = queue.world.submit()
    queue.world.now += 100
    assert sorted(queue.heard()) == heard
    assert len(queue.world.poll(request_id).json()["result"]["responses"]) == 20


def test_chance_covers_every_batch_fault():
    for kind in [kind for kind in KINDS if KINDS[kind].stage == "batch"]:
        world = LocalApi(latency=0, fault_rates={kind: 1})
        request_id = world.submit()
        assert world.poll(request_id).status_code in (200, 400, 404), kind
