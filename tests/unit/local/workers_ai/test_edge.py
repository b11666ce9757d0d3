"""What stands before the models of the local Workers AI: tokens, paths, limits, and its bill."""

import httpx
import pytest

from local.workers_ai import transport
from tests.support.local_api import ACCOUNT, BGE, TEXTS, LocalApi, code

# ── the edge ──────────────────────────────────────────────────────────────────────────────────────


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
    world = LocalApi(foreign_tokens=["elsewhere"])
    world.client.headers["authorization"] = authorization
    assert code(world.run(BGE, {"requests": TEXTS})) == expected


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
    assert code(LocalApi().client.request(method, path)) == expected


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


def test_minute_limit_counts_only_submits():
    world = LocalApi(model_limit={BGE: 2})
    request_id = world.submit()
    for _ in range(5):
        assert world.poll(request_id).is_success
    world.submit()
    assert code(world.run(BGE, {"requests": TEXTS})) == (429, 3021)
    world.now += 61
    world.submit()


# ── what tests read ───────────────────────────────────────────────────────────────────────────────


def test_local_routes_show_and_change_server():
    world = LocalApi()
    client = httpx.Client(transport=transport(world.api), base_url="https://api.test/_local")
    world.submit()
    assert client.get("/accepted").json() == world.api.accepted
    assert client.get("/calls").json() == {"submit": {"200": 1}}
    assert client.put("/behaviour", json={"latency": 7}).json()["latency"] == 7
    assert client.post("/faults", json={"kind": "3040", "times": 0}).json() == [
        {"kind": "3040", "times": 0}
    ]
    assert code(world.run(BGE, {"requests": TEXTS})) == (429, 3040)
    assert client.delete("/faults").json() == []
    world.submit()
    assert client.put("/behaviour", json={"nothing": 7}).status_code == 400
    assert client.post("/faults", json={"kind": "nothing"}).status_code == 400
    assert client.get("/nothing").status_code == 404
