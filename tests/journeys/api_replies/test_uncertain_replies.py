"""Replies that prove nothing, and submits of which nobody can know whether they were accepted."""

import json
import time
from contextlib import ExitStack

import pytest

from local.workers_ai import Fault
from shared.aws.object_store import ObjectStore
from shared.errors import StorageError
from shared.ledger import Ledger
from tests.support.journeys.deaths import SUBMIT, Boundaries, mortal_world
from tests.support.translations import (
    M2M,
    all_good,
    codes,
    greetings,
    only_slowly,
    referenced,
    submits,
)

HOUR = 3_600
PAID = [("2021", "credits_spent", "Add credits"), ("2041", "spend_limit", "Raise it")]
TAKEN = [
    *({"code": 10013}, {"code": 5007, "status": 502}),
    *(
        {"code": 5001},
        {"code": 3007},
        {"code": 3046, "status": 502},
        {"code": 7010},
        {"code": 7000, "status": 500},
    ),
]


# ── submits ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault", [*TAKEN[:2], *only_slowly(*TAKEN[2:])], ids=lambda fault: fault["code"]
)
def test_batch_taken_in_spite_of_an_error_is_counted(way, start, api, fault):
    world = start(**way)
    api.inject(Fault(kind="accept_then_error", times=2, **fault))
    world.run("a.jsonl", referenced(3), model=M2M)

    assert all_good(world, 3)
    assert len(api.accepted) == 3
    manifest = world.manifest()
    (batch,) = manifest["batches"]
    assert (batch["attempts"], batch["unknowable_submits"]) == (3, 2)
    assert manifest["unknowable_submits"] == 2


def test_error_of_an_hour_is_billed_four_times_at_most(world, api):
    api.inject(Fault(kind="accept_then_error", code=10013, times=0))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    began = time.time()

    world.settle(minutes=60, until=lambda: bool(world.pauses()))
    assert world.pauses() == ["outage"]
    world.settle()

    assert codes(world) == ["submit_unknown"] * 3
    assert len(api.accepted) == 4
    assert world.manifest()["unknowable_submits"] == 4
    assert time.time() - began < HOUR


def test_pieces_do_not_hide_what_their_batch_cost(start, api):
    """A batch that was split is not listed; what was uncertain about it is in the sums."""
    world = start(MAX_REQUESTS_PER_BATCH=4)
    api.inject(
        Fault(kind="accept_then_error", code=10013),
        Fault(kind="5006", on="submit", contains="hello 2", times=0),
    )
    world.run("a.jsonl", greetings(4), model=M2M)

    assert codes(world) == [None, None, "rejected", None]
    assert [batch["unknowable_submits"] for batch in world.manifest()["batches"]] == [0] * 4
    assert world.manifest()["unknowable_submits"] == 1
    assert len(api.accepted) == 1 + 3


def test_ambiguous_submits_come_apart_and_hold_up_no_other(start, api):
    """Each at least 1, 5 and 15 minutes after the one before; the fourth ends the batch."""
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind="json_500", contains="hello 0", on="submit", times=0))
    world.upload_records("a.jsonl", greetings(4), model=M2M)
    began = time.time()
    world.settle(minutes=10, until=lambda: len(api.accepted) == 3)
    assert time.time() - began < 5 * 60

    world.settle()

    assert time.time() - began > (1 + 5 + 15) * 60
    assert codes(world) == ["submit_unknown", None, None, None]
    assert submits(api) == 3 + 4
    assert world.manifest()["unknowable_submits"] == 4
    assert len(world.lines("retry.jsonl")) == 1


@pytest.mark.parametrize(("code", "reason", "words"), PAID)
def test_gateway_that_is_not_paid_pauses_submits(way, start, api, code, reason, words):
    world = start(**way)
    api.inject(Fault(kind=code, on="submit", times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    world.pass_time(10)
    world.tick()
    assert world.pauses() == [reason]
    assert world.status()["waiting_for"]["code"] == reason
    assert words in world.status()["waiting_for"]["message"]
    began = time.time()

    world.settle(minutes=120, until=lambda: time.time() > began + HOUR)
    assert submits(api) <= 14, "one each five minutes"
    api.clear_faults()
    world.settle(minutes=7)

    assert all_good(world, 3)
    assert len(api.accepted) == 1


# ── polls ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "2021"},
        *only_slowly(
            {"kind": "2041"},
            {"kind": "7013"},
            {"kind": "10013"},
            {"kind": "3046"},
            {"kind": "5007"},
        ),
        *only_slowly(
            *(
                {"kind": "424242", "status": status}
                for status in (400, 402, 409, 410, 422, 451, 503)
            )
        ),
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
def test_refused_polls_cost_no_answer(way, start, api, fault):
    """For two hours: they show, raise an alarm and end nothing."""
    world = start(MAX_REQUESTS_PER_BATCH=2, **way)
    api.inject(Fault(on="poll", times=0, message="its words", **fault))
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    began = time.time()
    world.settle(minutes=150, until=lambda: time.time() > began + 2 * HOUR)

    waiting = world.status()["waiting_for"]
    assert waiting["code"] == "polls_refused"
    assert fault["kind"] in waiting["message"]
    assert "its words" in waiting["message"]
    api.clear_faults()
    world.settle(minutes=20)

    assert all_good(world, 6)
    assert len(api.accepted) == 3
    assert world.manifest()["state"] == "completed"


# ── a lost reply, a death before the receipt ──────────────────────────────────────────────────────


@pytest.fixture
def mortal(api):
    """A world in which a function can die; starts as `start` does."""
    with ExitStack() as kept:
        yield lambda **settings: kept.enter_context(
            mortal_world(api, Boundaries(), COMPLETION_EVENTS="no", **settings)
        )


def die_after_the_submit(world):
    """Upload, and let the function die between the API's yes and the table's."""
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    world.boundaries.strike_first(SUBMIT, "after")
    world.deliver("UploadQueue")
    assert world.boundaries.struck == SUBMIT


def message_of_the_batch(world):
    """A message for the first batch, as a duplicate or a tick would send it."""
    batch = world.item("BATCH#00000000")
    body = {"do": "submit", "job_id": batch["job_id"]["S"], "number": "00000000"}
    world.sqs.send_message(QueueUrl=world.queues["SubmitQueue"], MessageBody=json.dumps(body))
    return float(batch["fence"]["N"])


def test_batch_is_resubmitted_after_its_lease(mortal, api):
    """Never before; the first message after it counts the submit, a later one sends it again."""
    world = mortal()
    die_after_the_submit(world)
    fence = message_of_the_batch(world)
    while time.time() < fence - 20:
        world.deliver_all()
        world.tick()
        world.pass_time(5)
    assert len(api.accepted) == 1
    assert fence - world.now() < 400

    world.pass_time(fence - world.now())
    message_of_the_batch(world)
    world.deliver("SubmitQueue")
    assert world.item("BATCH#00000000")["unknowable"]["N"] == "1"
    world.pass_time(66)
    message_of_the_batch(world)
    world.deliver("SubmitQueue")

    assert len(api.accepted) == 2
    world.settle()
    assert all_good(world, 3)
    assert world.manifest()["batches"][0]["unknowable_submits"] == 1


def test_request_id_is_found_in_receipt(world, api, monkeypatch):
    def refuses(*_):
        raise StorageError("the table is away")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "accept", refuses)
        world.upload_records("a.jsonl", referenced(3), model=M2M)
        world.deliver("UploadQueue")
        world.deliver("SubmitQueue")
    assert [key.rpartition("/")[2] for key in world.objects("staging/") if "receipt" in key] == [
        "receipt-1"
    ]

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.manifest()["batches"][0]["unknowable_submits"] == 0
    assert world.manifest()["batches"][0]["request_id"] == api.accepted[0]["request_id"]


def test_immediate_answer_of_dead_function_is_used(world, api, monkeypatch):
    def refuses(*_):
        raise StorageError("the table is away")

    api.inject(Fault(kind="sync_answer"))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "accept", refuses)
        patch.setattr(ObjectStore, "put_if_absent", once_then_refuse(ObjectStore.put_if_absent))
        world.upload_records("a.jsonl", referenced(3), model=M2M)
        world.deliver("UploadQueue")
        world.deliver("SubmitQueue")

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.manifest()["batches"][0]["unknowable_submits"] == 0


def once_then_refuse(real):
    """Receipts are refused: only the raw answer is there to tell of the submit."""

    def put(store, key, body, metadata=None, kind=""):
        if "receipt" in key:
            raise StorageError("S3 is away")
        return real(store, key, body, metadata, kind)

    return put


@pytest.mark.parametrize(
    "kind",
    [
        *("accept_then_reset", "accept_then_html"),
        *only_slowly("accept_then_close", "accept_then_truncate", "accept_then_hang"),
    ],
)
def test_unknown_outcome_is_retried_once_and_counted(world, api, kind):
    api.inject(Fault(kind=kind))
    world.run("a.jsonl", referenced(3), model=M2M)

    assert all_good(world, 3)
    assert len(api.accepted) == 2
    assert world.manifest()["batches"][0]["unknowable_submits"] == 1
    assert world.manifest()["batches"][0]["attempts"] == 2


@pytest.mark.parametrize(("policy", "submits"), [("fail", 1), ("resubmit", 4)])
def test_last_unknown_outcome_ends_batch(start, api, policy, submits):
    world = start(AMBIGUOUS_SUBMIT=policy)
    api.inject(Fault(kind="accept_then_reset", times=0))
    world.run("a.jsonl", referenced(3), model=M2M)

    assert codes(world) == ["submit_unknown"] * 3
    assert len(api.accepted) == submits
    assert len(world.lines("retry.jsonl")) == 3


@pytest.mark.slow
def test_outage_does_not_spend_everyones_second_try(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind="accept_then_reset", times=4))
    world.run("a.jsonl", referenced(12), model=M2M, minutes=240)

    assert len(api.accepted) <= 12 + 4
    assert codes(world).count("submit_unknown") <= 2
