"""The local Workers AI on a real socket: it starts, answers, breaks connections, and stops."""

import signal
import subprocess
import sys

import httpx
import pytest

from local.processes import ROOT
from local.workers_ai.edge import PREFIX

MODEL = "/client/v4/accounts/0123456789abcdef0123456789abcdef/ai/run/@cf/meta/m2m100-1.2b"
REQUESTS = [{"text": f"text {index}", "target_lang": "es"} for index in range(200)]


@pytest.fixture
def server():
    command = [sys.executable, "-m", "local.workers_ai"]
    command += ["--switches", '{"latency": 0, "pace": 0.01}']
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip().removesuffix(PREFIX)
        headers = {"authorization": "Bearer local-token"}
        yield process, httpx.Client(base_url=url, headers=headers, timeout=5)
    finally:
        process.kill()
        process.communicate()


def submit(client):
    return client.post(f"{MODEL}?queueRequest=true", json={"requests": REQUESTS})


def poll(client, request_id):
    return client.post(MODEL, json={"request_id": request_id})


def test_batch_travels_over_socket(server):
    _, client = server
    request_id = submit(client).json()["result"]["request_id"]
    assert len(poll(client, request_id).json()["result"]["responses"]) == 200
    assert client.get("/_local/calls").json() == {"submit": {"200": 1}, "poll": {"200": 1}}


@pytest.mark.parametrize(
    ("fault", "error", "accepted"),
    [
        ({"kind": "reset"}, httpx.ReadError, 0),
        ({"kind": "accept_then_reset"}, httpx.ReadError, 1),
        ({"kind": "accept_then_close"}, httpx.RemoteProtocolError, 1),
        ({"kind": "accept_then_truncate"}, httpx.RemoteProtocolError, 1),
        ({"kind": "hang"}, httpx.ReadTimeout, 0),
    ],
)
def test_connections_break_as_in_mock_transport(server, fault, error, accepted):
    _, client = server
    client.timeout = httpx.Timeout(5, read=0.5)
    client.post("/_local/faults", json=fault)
    with pytest.raises(error):
        submit(client)
    assert len(client.get("/_local/accepted").json()) == accepted
    assert submit(client).is_success


def test_slow_body_arrives_whole(server):
    _, client = server
    request_id = submit(client).json()["result"]["request_id"]
    client.post("/_local/faults", json={"kind": "slow_body"})
    assert len(poll(client, request_id).json()["result"]["responses"]) == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_it_while_client_hangs(server, number):
    process, client = server
    client.post("/_local/faults", json={"kind": "hang"})
    with pytest.raises(httpx.ReadTimeout):
        client.post(f"{MODEL}?queueRequest=true", json={"requests": REQUESTS}, timeout=0.2)
    process.send_signal(number)
    assert process.wait(timeout=10) == 0


def test_wrong_switch_ends_it_with_its_name():
    command = [sys.executable, "-m", "local.workers_ai", "--switches", '{"nothing": 1}']
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_events_travel_over_socket(server):
    _, client = server
    client.put("/_local/behaviour", json={"event_delay": 0.0})
    account = MODEL.partition("/ai/run/")[0]
    queue = client.post(f"{account}/queues", json={"queue_name": "events"}).json()["result"][
        "queue_id"
    ]
    client.post(f"{account}/queues/{queue}/consumers", json={"type": "http_pull"})
    subscription = {
        "name": "one",
        "source": {"type": "workersAi.model", "model_name": "@cf/meta/m2m100-1.2b"},
        "destination": {"type": "queues.queue", "queue_id": queue},
        "events": ["batch.queued", "batch.succeeded"],
    }
    assert client.post(f"{account}/event_subscriptions/subscriptions", json=subscription).is_success
    submit(client)
    pulled = client.post(f"{account}/queues/{queue}/messages/pull")
    assert len(pulled.json()["result"]["messages"]) == 2
    assert len(pulled.headers.get_list("date")) == 1
