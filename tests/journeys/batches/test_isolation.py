"""Bad records are isolated.

Only they fail, at a bounded number of submits, and whatever dies on the way.
"""

import time
from collections import Counter

import msgspec
import pytest

import functions.poll.handler
import functions.poll.visit
import functions.submit.handler
from functions.poll import divide
from local.workers_ai import Fault
from shared.aws import queues

pytestmark = pytest.mark.slow  # They take minutes together.

M2M = "@cf/meta/m2m100-1.2b"


def greetings(count, *bad):
    """Requests, some of which the API refuses."""
    return [
        {"text": f"hello {number}.{' (refused)' * (number in bad)}", "target_lang": "es"}
        for number in range(count)
    ]


def failed(world):
    return [line["id"] for line in world.lines() if not line["success"]]


def messages(world):
    return {line["error"]["message"] for line in world.lines() if not line["success"]}


def batches(world):
    """Items of all batches by number, as the ledger has them."""
    ledger = functions.poll.handler.services().ledger
    (job_id,) = {
        item["pk"]["S"][4:] for item in world.items() if item["pk"]["S"].startswith("JOB#")
    }
    return {batch.number: batch for batch in ledger.batches(job_id)}


def pieces(world):
    return [number for number in batches(world) if "." in number]


def calls(api, kind):
    return sum(api.calls.get(kind, {}).values())


def fails_later(*bad):
    """Batches that hold one of these records fail after they were accepted."""
    return [
        Fault(kind="batch_fails", contains=f"hello {number}.", times=0, code=3030) for number in bad
    ]


# ── what it finds, and at what cost ───────────────────────────────────────────────────────────────


SIZES = [
    pytest.param(50, 4, id="50 records, 4 pieces"),
    pytest.param(500, 16, id="500 records, 16 pieces", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("later", [False, True], ids=["refused", "failed after acceptance"])
@pytest.mark.parametrize(("count", "at_once"), SIZES)
def test_one_bad_record_is_found_in_three_levels(start, api, monkeypatch, count, at_once, later):
    monkeypatch.setattr(divide, "MAX_PIECES", at_once)
    world = start()
    api.inject(*fails_later(*([33] if later else [])))
    world.upload_records("a.jsonl", greetings(count, *([] if later else [33])), model=M2M)
    began = time.time()

    world.settle(minutes=60)

    assert failed(world) == [33]
    assert calls(api, "submit") <= 1 + 3 * at_once
    assert world.manifest()["isolation"] == {
        "submits": len(pieces(world)),
        "at_most": 2_000,
        "not_tried_alone": [],
    }
    assert time.time() - began < 6 * 60


def test_pieces_go_before_later_batches(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2, API_CALLS_PER_MINUTE=20)
    world.upload_records("a.jsonl", greetings(60, 3), model=M2M)

    world.settle(minutes=60)

    assert failed(world) == [3]
    accepted = {
        number: batch.submissions[0].at
        for number, batch in batches(world).items()
        if batch.submissions
    }
    found = max(at for number, at in accepted.items() if "." in number)
    assert sum(at > found for at in accepted.values()) > 5


# ── when every record is bad ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("later", [False, True], ids=["refused", "failed after acceptance"])
@pytest.mark.parametrize(("count", "at_once"), SIZES)
def test_records_failing_alike_are_not_tried_alone(start, api, monkeypatch, count, at_once, later):
    monkeypatch.setattr(divide, "MAX_PIECES", at_once)
    world = start()
    api.inject(
        Fault(kind="batch_fails", times=0, code=3030)
        if later
        else Fault(kind="5006", on="submit", times=0)
    )
    world.upload_records("a.jsonl", greetings(count), model=M2M)

    world.settle(minutes=240)

    assert failed(world) == list(range(count))
    assert {line["error"]["code"] for line in world.lines()} == {"rejected"}
    assert calls(api, "submit") <= 1 + 3 * at_once
    assert calls(api, "submit") <= 40
    assert any(
        message.startswith("Not tried alone, because every request") for message in messages(world)
    )
    assert world.manifest()["isolation"]["not_tried_alone"] == [
        "3030 after acceptance" if later else "5006"
    ]
    assert len(world.lines("retry.jsonl")) == count


# ── no function calls itself ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("later", [False, True], ids=["refused", "failed after acceptance"])
@pytest.mark.parametrize(
    ("count", "at_once"), [(60, 2), pytest.param(8_000, 16, marks=pytest.mark.slow)]
)
def test_no_chain_of_invocations_grows_with_depth(start, api, monkeypatch, count, at_once, later):
    """AWS stops a function that a chain of messages leads back to 16 times.

    A tick begins a new chain.
    """
    monkeypatch.setattr(divide, "MAX_PIECES", at_once)
    world = start(MAX_REQUESTS_PER_BATCH=count)
    api.inject(*fails_later(*([count - 1] if later else [])))
    led_to: dict[str, Counter[str]] = {}
    here: list[Counter[str]] = [Counter()]
    longest: Counter[str] = Counter()
    real = queues.Queues.send_all

    def send_all(self, some, delays=()):
        led_to.update({msgspec.json.encode(one).decode(): here[-1] for one in some})
        return real(self, some, delays)

    def watch(module, name):
        handled = module.record_handler

        def record_handler(record, lambda_context):
            here.append(led_to.get(record.body, Counter()) + Counter({name: 1}))
            longest[name] = max(longest[name], here[-1][name])
            try:
                return handled(record, lambda_context)
            finally:
                here.pop()

        monkeypatch.setattr(module, "record_handler", record_handler)

    monkeypatch.setattr(queues.Queues, "send_all", send_all)
    watch(functions.submit.handler, "submit")
    watch(functions.poll.handler, "poll")
    world.upload_records("a.jsonl", greetings(count, *([] if later else [count - 1])), model=M2M)

    world.settle(minutes=120)

    assert failed(world) == [count - 1]
    assert max(longest.values()) < 4
