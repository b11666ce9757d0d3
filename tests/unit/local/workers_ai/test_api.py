"""The local Workers AI's protocol.

Who may ask, what a submit and a poll answer, and how the switches change it.
"""

import pytest

from local.workers_ai import expected_result
from tests.support.local_api import ACCOUNT, BGE, TEXTS, LocalApi, code

M2M = "@cf/meta/m2m100-1.2b"
KIMI = "@cf/moonshotai/kimi-k2.6"
OSS = "@cf/openai/gpt-oss-20b"


# ── submit ────────────────────────────────────────────────────────────────────────────────────────


def test_submit_is_queued_in_documented_envelope():
    reply = LocalApi().run(BGE, {"requests": TEXTS})
    request_id = reply.json()["result"]["request_id"]
    assert reply.status_code == 200
    assert reply.json() == {
        "result": {"status": "queued", "request_id": request_id, "model": BGE},
        "success": True,
        "errors": [],
        "messages": [],
    }


def test_repeated_body_is_billed_twice():
    world = LocalApi()
    assert world.submit() != world.submit()
    assert [entry["count"] for entry in world.api.accepted] == [20, 20]
    assert world.api.accepted[0]["sha256"] == world.api.accepted[1]["sha256"]


def test_ids_do_not_depend_on_order_of_submits():
    one, other = LocalApi(), LocalApi()
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
    world = LocalApi()
    assert code(world.run(model, body)) == expected
    assert world.api.accepted == []


def test_gpt_oss_refuses_chat_requests_with_one_of():
    reply = LocalApi().run(OSS, {"requests": [{"messages": [{"role": "user", "content": "a"}]}]})
    assert code(reply) == (400, 5006)
    assert "oneOf" in reply.text


def test_model_without_queue_says_so():
    world = LocalApi(no_batch_models=["@cf/baai/bge-m3"], unqueueable_status=422)
    reply = world.run("@cf/baai/bge-m3", {"requests": TEXTS})
    assert code(reply) == (422, 8007)
    assert "does not support request queuing" in reply.text


def test_body_of_ten_million_bytes_is_too_large():
    world = LocalApi()
    start, end = b'{"requests":[{"text":"', b'"}]}'
    for size, status in ((10_000_000, 413), (9_999_999, 200)):
        content = start + b"a" * (size - len(start) - len(end)) + end
        path = f"/accounts/{ACCOUNT}/ai/run/{BGE}?queueRequest=true"
        assert world.client.post(path, content=content).status_code == status


def test_missing_wrapper_may_fail_later():
    world = LocalApi(missing_requests="fail_later")
    request_id = world.run(BGE, {"text": "a"}).json()["result"]["request_id"]
    world.now += 10
    assert code(world.poll(request_id)) == (400, 3030)


def test_bad_requests_can_be_accepted_and_fail_later():
    world = LocalApi(validation="fail_later", batch_failure="error")
    request_id = world.submit(requests=[{"texts": "a"}])
    assert world.finished(request_id)["status"] == "error"


def test_without_query_model_answers_immediately():
    world = LocalApi()
    reply = world.run(M2M, {"text": "a", "target_lang": "es"}, query="")
    assert reply.json()["result"] == {"translated_text": "[es] a"}


def test_switched_replies_to_submit():
    world = LocalApi(submit_status=202, submit_model=False, request_id_form="req", envelope=False)
    reply = world.run(BGE, {"requests": TEXTS})
    assert reply.status_code == 202
    assert set(reply.json()) == {"status", "request_id"}
    assert reply.json()["request_id"].startswith("req-")


# ── poll ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("query", ["", "?queueRequest=true"])
def test_batch_is_queued_then_running_then_finished(query):
    world = LocalApi(latency=10)
    request_id = world.submit()
    seen = []
    for seconds in (0, 4, 4, 4):
        world.now += seconds
        seen.append(world.poll(request_id, query=query).json()["result"])
    assert [result.get("status") for result in seen] == ["queued", "queued", "running", None]
    assert set(seen[0]) == {"status", "request_id"}
    assert {"responses", "usage"} <= set(seen[3])


def test_items_are_reordered_with_references():
    world = LocalApi()
    items = world.finished(world.submit())["responses"]
    assert [item["id"] for item in items] != list(range(20))
    for item in items:
        assert item["external_reference"] == f"row-{item['id']}"
        assert item["result"] == expected_result(BGE, TEXTS[item["id"]])


def test_missing_reference_is_null():
    world = LocalApi()
    model = "@cf/baai/bge-m3"
    requests = [{"query": "q", "contexts": [{"text": "a", "external_reference": "inner"}]}]
    (item,) = world.finished(world.submit(model, requests), model)["responses"]
    assert item["external_reference"] is None


def test_newer_models_answer_in_shape_b():
    requests = [{"messages": [{"role": "user", "content": "hello"}]}]
    world = LocalApi()
    result = world.finished(world.submit(KIMI, requests), KIMI)
    assert [item["index"] for item in result["results"]] == [0]
    assert "usage" not in result
    world.api.switch(shapes={"*": "A"})
    assert "responses" in world.finished(world.submit(KIMI, requests), KIMI)


def test_finished_batch_is_readable_until_retention():
    world = LocalApi(retention=100)
    request_id = world.submit()
    assert world.finished(request_id) == world.finished(request_id)
    world.now += 200
    assert code(world.poll(request_id)) == (404, 10404)


def test_results_can_be_read_limited_number_of_times():
    world = LocalApi(answers_per_batch=1)
    request_id = world.submit()
    assert "responses" in world.finished(request_id)
    assert world.poll(request_id).status_code == 404


@pytest.mark.parametrize(
    "other",
    [{"model": "@cf/baai/bge-base-en-v1.5"}, {"account": "f" * 32}, {"request_id": "unknown"}],
)
def test_id_is_known_only_where_it_was_given(other):
    world = LocalApi()
    asked = {"model": BGE, "account": ACCOUNT, "request_id": world.submit(), **other}
    reply = world.run(asked["model"], {"request_id": asked["request_id"]}, account=asked["account"])
    assert reply.status_code == 404


def test_switched_pending_replies():
    world = LocalApi(pending_status=202, pending_model=True, queued_word="in_progress")
    reply = world.poll(world.submit())
    assert reply.status_code == 202
    assert reply.json()["result"]["status"] == "in_progress"
    assert reply.json()["result"]["model"] == BGE
    world.api.switch(pending_empty=True)
    assert world.poll(world.submit()).json()["result"] == {}


def test_switched_forms_of_finished_batch():
    world = LocalApi(
        completed_status="completed", nested_result=True, missing_reference="absent", shuffle=False
    )
    result = world.finished(world.submit(requests=[{"text": "a"}]))
    assert result["status"] == "completed"
    assert result["responses"][0]["result"]["result"] == expected_result(BGE, {"text": "a"})
    assert "external_reference" not in result["responses"][0]


@pytest.mark.parametrize(
    ("form", "id_"), [("text", "0"), ("float", 0.0), ("opaque", "item-00000000-4000")]
)
def test_switched_ids_of_items(form, id_):
    world = LocalApi(item_ids=form, item_success="one", shuffle=False)
    item = world.finished(world.submit(requests=[{"text": "a"}]))["responses"][0]
    assert (item["id"], item["success"]) == (id_, 1)


def test_answers_may_be_refused_by_their_envelope():
    world = LocalApi(answers_refused=True, latency=0.0)
    reply = world.poll(world.submit()).json()
    assert reply["success"] is False
    assert len(reply["result"]["responses"]) == 20


def test_large_bodies_are_spooled_and_answered():
    world = LocalApi(memory=0)
    assert len(world.finished(world.submit())["responses"]) == 20


# ── latency ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "lowest", "highest"), [("uniform", 5, 15), ("lognormal", 0, 200)])
def test_latencies_spread_around_their_median(kind, lowest, highest):
    world = LocalApi(latency=10, latency_kind=kind)
    for _ in range(100):
        world.submit()
    took = sorted(entry["completes_at"] - entry["time"] for entry in world.api.accepted)
    assert lowest <= took[0] < took[50] < took[-1] <= highest
    assert 7 < took[50] < 13


def test_latency_by_model_and_by_item():
    world = LocalApi(model_latency={BGE: 3}, latency_per_item=0.5)
    world.submit()
    assert world.api.accepted[0]["completes_at"] - world.now == 13
