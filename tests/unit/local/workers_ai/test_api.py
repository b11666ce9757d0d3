"""The local Workers AI's protocol."""

import pytest

from local.workers_ai import expected_result
from tests.support.local_api import ACCOUNT, BGE, TEXTS, LocalApi, code

M2M = "@cf/meta/m2m100-1.2b"
KIMI = "@cf/moonshotai/kimi-k2.6"


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


def test_body_of_ten_million_bytes_is_too_large():
    world = LocalApi()
    start, end = b'{"requests":[{"text":"', b'"}]}'
    for size, status in ((10_000_000, 413), (9_999_999, 200)):
        content = start + b"a" * (size - len(start) - len(end)) + end
        path = f"/accounts/{ACCOUNT}/ai/run/{BGE}?queueRequest=true"
        assert world.client.post(path, content=content).status_code == status


def test_switched_replies_to_submit():
    world = LocalApi(submit_status=202, request_id_form="req", envelope=False)
    reply = world.run(BGE, {"requests": TEXTS})
    assert reply.status_code == 202
    assert set(reply.json()) == {"status", "request_id", "model"}
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


def test_finished_batch_is_readable_until_retention():
    world = LocalApi(retention=100)
    request_id = world.submit()
    assert world.finished(request_id) == world.finished(request_id)
    world.now += 200
    assert code(world.poll(request_id)) == (404, 10404)
