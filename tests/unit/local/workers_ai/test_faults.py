"""Faults of the local Workers AI: each does what it says, strikes what it should.

The bill shows what was accepted.
"""

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

    def items(self):
        return self.poll().json()["result"]["responses"]


def failed(items):
    return [item["id"] for item in items if not item["success"]]


# ── instead of the call ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (3040, 429),
        (3021, 429),
        (971, 429),
        (3036, 429),
        (4006, 429),
        (10000, 401),
        (9106, 400),
        (9109, 403),
        (7000, 400),
        (7003, 404),
        (6003, 400),
        (3023, 403),
        (5035, 403),
        (5006, 400),
        (4242, 500),
    ],
)
def test_codes_have_status_and_accept_nothing(code, status):
    world = World(Fault(kind=str(code)))
    reply = world.submit()
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (status, code)
    assert reply.headers.get("retry-after") == ("60" if code == 971 else None)
    assert world.api.accepted == []
    assert world.submit().is_success


@pytest.mark.parametrize(("code", "status"), [(2016, 424), (2017, 424), (2021, 402), (2041, 429)])
@pytest.mark.parametrize("on", ["submit", "poll"])
def test_gateway_reports_errors_in_its_own_form(code, status, on):
    world = World(Fault(kind=str(code), on=on))
    reply = world.submit() if on == "submit" else (world.submit(), world.poll())[1]
    assert (reply.status_code, reply.json()["error"][0]["code"], reply.json()["internalCode"]) == (
        status,
        code,
        code,
    )
    assert "errors" not in reply.json()


@pytest.mark.parametrize(
    ("fault", "status", "start"),
    [
        (Fault(kind="html"), 502, "<!DOCTYPE html>"),
        (Fault(kind="html", status=524), 524, "<!DOCTYPE html>"),
        (Fault(kind="json_500"), 500, '{"result":null,"success":false'),
        (Fault(kind="bare"), 429, ""),
        (Fault(kind="redirect"), 301, ""),
        (
            Fault(kind="error", code=5006, status=422, message="so"),
            422,
            '{"result":null,"success":false',
        ),
    ],
)
def test_replies_in_place_of_answer(fault, status, start):
    world = World(fault)
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


# ── after the call ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault(kind="accept_then_html"), 502),
        (Fault(kind="accept_then_error", code=10013), 500),
        (Fault(kind="accept_then_error", code=5001), 504),
        (Fault(kind="accept_then_error", code=3007), 408),
        (Fault(kind="accept_then_error", code=7010, status=599), 599),
    ],
)
def test_accepted_batches_whose_reply_denies_it(fault, status):
    world = World(fault)
    assert world.submit().status_code == status
    assert len(world.items()) == 8


def test_error_of_an_accepted_batch_is_drawn():
    seen = set()
    for seed in range(40):
        world = World(Fault(kind="accept_then_error"), seed=seed)
        reply = world.submit()
        seen.add((reply.status_code, reply.json()["errors"][0]["code"]))
        assert len(world.api.accepted) == 1
    assert seen == {
        (500, 10013),
        (504, 5001),
        (408, 3007),
        (502, 3046),
        (503, 7010),
        (500, 3003),
        (502, 3030),
    }


def test_accepted_without_request_id():
    world = World(Fault(kind="accept_no_request_id"))
    reply = world.submit()
    assert reply.status_code == 200
    assert reply.json()["result"] == {}
    assert len(world.api.accepted) == 1


def test_synchronous_answer_is_billed_not_polled():
    world = World(Fault(kind="sync_answer"))
    assert len(world.submit().json()["result"]["responses"]) == 8
    assert world.api.accepted[0]["inline"]
    assert world.poll().status_code == 404


def test_truncated_json_is_followed_by_whole_answer():
    world = World(Fault(kind="truncated_json"))
    world.submit()
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|delimiter"):
        world.poll().json()
    assert len(world.items()) == 8


def test_truncated_body_on_poll():
    world = World(Fault(kind="truncated_body", at=100))
    world.submit()
    with pytest.raises(httpx.RemoteProtocolError, match="received 100 bytes"):
        world.poll()


def test_slow_body_arrives_within_read_timeout():
    world = World(Fault(kind="slow_body", seconds=4), Fault(kind="slow_body", seconds=6))
    world.submit()
    assert len(world.items()) == 8
    with pytest.raises(httpx.ReadTimeout):
        world.poll()


# ── batches ───────────────────────────────────────────────────────────────────────────────────────


def test_stuck_batch_stays_pending():
    world = World(Fault(kind="stuck"))
    world.submit()
    world.now += 10_000_000
    assert world.poll().json()["result"]["status"] == "running"
    world.submit()
    assert len(world.items()) == 8


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


def test_batches_with_marker_fail_and_others_do_not():
    world = World(Fault(kind="batch_fails", contains="text 3", times=0))
    world.submit()
    assert world.poll().status_code == 400
    world.submit(REQUESTS[:3])
    assert len(world.items()) == 3


def test_poison_record_keeps_its_whole_batch_out():
    world = World(Fault(kind="5006", on="submit", contains='"text 3"', times=0))
    assert world.submit().status_code == 400
    assert world.submit(REQUESTS[:3]).is_success
    assert world.submit(REQUESTS[4:]).is_success
    assert world.submit(REQUESTS[3:4]).status_code == 400


def test_missing_items_come_after_first_answers():
    world = World(Fault(kind="missing", items=(2, 5), first=2))
    world.submit()
    assert [len(world.items()) for _ in range(3)] == [6, 6, 8]


def test_fault_on_poll_strikes_that_answer_alone():
    world = World(Fault(kind="missing", on="poll", items=(2,)))
    world.submit()
    assert [len(world.items()) for _ in range(2)] == [7, 8]


@pytest.mark.parametrize(
    ("form", "item"),
    [
        ("bare", {"id": 2}),
        ("null", {"id": 2, "success": None}),
        ("queued", {"id": 2, "result": None, "status": "queued"}),
    ],
)
def test_placeholders_come_before_answers(form, item):
    world = World(Fault(kind="placeholder", items=(2,), message=form, first=1))
    world.submit()
    first, later = world.items()[2], world.items()[2]
    assert first == item
    assert later["success"]


def test_repeated_items():
    world = World(Fault(kind="repeated", items=(2,)), Fault(kind="contradicting", items=(3,)))
    world.submit()
    items = world.items()
    assert items[8] == items[2]
    assert items[9]["id"] == 3
    assert items[9]["result"] != items[3]["result"]


def test_foreign_items_have_id_beyond_batch():
    world = World(Fault(kind="foreign", items=(0,)))
    world.submit()
    assert [item["id"] for item in world.items()] == [*range(8), 8]


def test_swapped_and_null_references():
    world = World(
        Fault(kind="swapped_reference", items=(0, 1)), Fault(kind="null_reference", items=(2,))
    )
    world.submit()
    references = [item["external_reference"] for item in world.items()]
    assert references == ["row-1", "row-0", None, *(f"row-{index}" for index in range(3, 8))]


def test_forgotten_batch_is_billed():
    world = World()
    world.api.inject(Fault(kind="forgotten"))

    assert world.submit().is_success
    assert world.poll().status_code == 404
    assert len(world.api.accepted) == 1


def test_null_vectors():
    world = LocalApi(latency=0, shuffle=False)
    world.api.inject(Fault(kind="null_vectors", items=(1,)))
    world.run("@cf/baai/bge-m3", {"requests": [{"text": "a"}, {"text": "b"}]})
    items = world.run(
        "@cf/baai/bge-m3", {"request_id": world.api.accepted[-1]["request_id"]}, ""
    ).json()["result"]
    assert [item["success"] for item in items["responses"]] == [True, True]
    assert [set(item["result"]["data"][0]) == {None} for item in items["responses"]] == [
        False,
        True,
    ]


def test_giant_results():
    world = World(Fault(kind="giant", share=1, factor=100))
    world.submit()
    giant = len(world.poll().content)
    world.submit()
    assert giant > 20 * len(world.poll().content)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("object", {"error": {"code": 3040, "message": "so"}}),
        ("message", {"error": {"message": "so"}}),
        ("string", {"error": "3040: so"}),
        ("errors", {"errors": [{"code": 3040, "message": "so"}]}),
        ("text", {"message": "so"}),
        ("none", {}),
    ],
)
def test_failed_items_in_every_shape(form, said):
    world = World(Fault(kind="item_fails", items=(4,), message="so"), item_error=form)
    world.submit()
    items = world.items()
    assert failed(items) == [4]
    assert items[4] == {"id": 4, "success": False, "external_reference": "row-4", **said}


def test_item_fails_in_first_attempts():
    world = World(Fault(kind="item_fails", marker='"text 4"', times=0, first=2))
    seen = []
    for requests in (REQUESTS, REQUESTS[4:5], REQUESTS[3:6]):
        world.submit(requests)
        seen.append(failed(world.items()))
    assert seen == [[4], [0], []]


def test_share_of_items_fails_same_ones_every_time():
    world = World(Fault(kind="item_fails", share=0.5, times=0))
    world.submit()
    first = failed(world.items())
    world.submit()
    assert failed(world.items()) == first
    assert 0 < len(first) < 8


# ── when they strike ──────────────────────────────────────────────────────────────────────────────


def test_nth_and_times_choose_calls():
    world = World(Fault(kind="3040", on="submit", nth=2, times=2))
    assert [world.submit().status_code for _ in range(4)] == [200, 429, 429, 200]


def test_faults_choose_by_kind_of_call_and_by_model():
    world = World(Fault(kind="3040", on="poll"), Fault(kind="html", model="@cf/another/model"))
    assert world.submit().status_code == 200
    assert world.poll().status_code == 429
    assert world.poll().status_code == 200


def test_poll_fault_finds_its_batch_by_what_was_sent():
    world = World(Fault(kind="html", on="poll", contains="text 3", times=0))
    world.submit(REQUESTS[:3])
    assert world.poll().status_code == 200
    world.submit(REQUESTS[3:])
    assert world.poll().status_code == 502


def test_chance_faults_match_rate_and_seed():
    def ends(seed):
        world = World(
            fault_rates={"submit:3040": 0.2, "submit:html": 0.1}, seed=seed, global_limit=0
        )
        return [world.submit(REQUESTS[:1]).status_code for _ in range(400)]

    seen = ends(1)
    assert 50 < seen.count(429) < 110
    assert 20 < seen.count(502) < 60
    assert seen == ends(1)
    assert seen != ends(2)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].stage == "batch"])
def test_chance_covers_every_batch_fault(kind):
    world = World(fault_rates={kind: 1})
    assert world.submit().is_success
    assert world.poll().status_code in (200, 400, 404)
