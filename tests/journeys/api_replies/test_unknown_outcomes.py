"""Submits of which nobody can know whether they were accepted.

A lost reply, a death before the receipt.
"""

import json
import time
from contextlib import ExitStack

import pytest

from local.workers_ai import Fault
from shared.aws.object_store import ObjectStore
from shared.errors import StorageError
from shared.ledger import Ledger
from tests.support.journeys.deaths import SUBMIT, Boundaries, mortal_world
from tests.support.translations import M2M, all_good, codes, only_slowly, referenced


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
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 2
    assert world.manifest()["batches"][0]["unknowable_submits"] == 1
    assert world.manifest()["batches"][0]["attempts"] == 2


@pytest.mark.parametrize(("policy", "submits"), [("fail", 1), ("resubmit", 4)])
def test_last_unknown_outcome_ends_batch(start, api, policy, submits):
    world = start(AMBIGUOUS_SUBMIT=policy)
    api.inject(Fault(kind="accept_then_reset", times=0))
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle()

    assert codes(world) == ["submit_unknown"] * 3
    assert len(api.accepted) == submits
    assert len(world.lines("retry.jsonl")) == 3


@pytest.mark.slow
def test_outage_does_not_spend_everyones_second_try(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind="accept_then_reset", times=4))
    world.upload_records("a.jsonl", referenced(12), model=M2M)

    world.settle(minutes=240)

    assert len(api.accepted) <= 12 + 4
    assert codes(world).count("submit_unknown") <= 2
