"""Faults of the local Workers AI: each does what it says, and strikes what it should."""

import httpx
import pytest

from local.workers_ai import Fault
from local.workers_ai.faults import KINDS
from tests.support.local_api import LocalApi

MODEL = "@cf/meta/m2m100-1.2b"
REQUESTS = [
    {"text": f"text {index}", "target_lang": "es", "external_reference": f"row-{index}"}
    for index in range(8)
]


class World(LocalApi):
    """One local API with faults queued, whose batches are finished at once."""

    def __init__(self, *faults, **switches):
        super().__init__(**{"latency": 0, "shuffle": False, **switches})
        self.api.inject(*faults)
        self.client.timeout = 5

    def submit(self, requests=REQUESTS):
        return self.run(MODEL, {"requests": requests})

    def poll(self):
        return self.run(MODEL, {"request_id": self.api.accepted[-1]["request_id"]}, "")


STATUSES = {
    **dict.fromkeys((3040, 3021, 971, 3036, 4006), 429),
    **dict.fromkeys((9106, 7000, 6003, 5006), 400),
    **dict.fromkeys((9109, 3023, 5035), 403),
    10000: 401,
    7003: 404,
    4242: 500,
}


@pytest.mark.parametrize(("code", "status"), STATUSES.items())
def test_codes_have_status_and_accept_nothing(code, status):
    world = World(Fault(kind=str(code)))
    reply = world.submit()
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (status, code)
    assert reply.headers.get("retry-after") == ("60" if code == 971 else None)
    assert world.api.accepted == []
    assert world.submit().is_success


REFUSED = '{"result":null,"success":false'


@pytest.mark.parametrize(
    ("fault", "status", "start"),
    [
        ({"kind": "html"}, 502, "<!DOCTYPE html>"),
        ({"kind": "html", "status": 524}, 524, "<!DOCTYPE html>"),
        ({"kind": "json_500"}, 500, REFUSED),
        ({"kind": "bare"}, 429, ""),
        ({"kind": "redirect"}, 301, ""),
        ({"kind": "error", "code": 5006, "status": 422, "message": "so"}, 422, REFUSED),
    ],
)
def test_replies_in_place_of_answer(fault, status, start):
    world = World(Fault(**fault))
    reply = world.submit()
    assert reply.status_code == status
    assert reply.text.startswith(start)
    assert world.api.accepted == []


@pytest.mark.parametrize(
    ("kind", "error", "accepted"),
    [
        ("refuse", httpx.ConnectError, 0),
        ("reset", httpx.ReadError, 0),
        ("hang", httpx.ReadTimeout, 0),
        ("accept_then_reset", httpx.ReadError, 1),
        ("accept_then_close", httpx.RemoteProtocolError, 1),
        ("accept_then_hang", httpx.ReadTimeout, 1),
        ("accept_then_truncate", httpx.RemoteProtocolError, 1),
    ],
)
def test_broken_connections_are_billed_as_accepted(kind, error, accepted):
    world = World(Fault(kind=kind))
    with pytest.raises(error):
        world.submit()
    assert len(world.api.accepted) == accepted


@pytest.mark.parametrize("form", ["envelope", "error", "failed"])
def test_batch_fails_after_acceptance_at_every_poll(form):
    world = World(Fault(kind="batch_fails"), batch_failure=form)
    world.submit()
    for _ in range(2):
        body = world.poll().json()
        if form == "envelope":
            assert body["errors"][0]["code"] == 3030
        else:
            assert (body["result"]["status"], body["result"]["error"]["code"]) == (form, 3030)


@pytest.mark.parametrize("what", ["items", "errors", "unknown", "wide", "deep", "page"])
def test_flood_has_its_size(what):
    local = LocalApi()
    local.api.inject(Fault(kind="flood", message=what, factor=1))

    assert 990_000 < len(local.poll(local.submit()).content) < 1_010_000


def test_chance_covers_every_batch_fault():
    for kind in [kind for kind in KINDS if KINDS[kind].stage == "batch"]:
        world = World(fault_rates={kind: 1})
        assert world.submit().is_success
        assert world.poll().status_code in (200, 400, 404), kind
