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
from local.workers_ai import Fault
from shared.aws import queues
from tests.support.translations import M2M

pytestmark = pytest.mark.slow  # They take minutes together.


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


LATER = pytest.mark.parametrize("later", [False, True], ids=["refused", "failed after acceptance"])


@LATER
@pytest.mark.parametrize(("count", "submits"), [(50, 21), (500, 49)])
def test_one_bad_record_is_found(start, api, count, submits, later):
    world = start()
    api.inject(*fails_later(*([33] if later else [])))
    world.upload_records("a.jsonl", greetings(count, *([] if later else [33])), model=M2M)
    began = time.time()

    world.settle(minutes=60)

    assert failed(world) == [33]
    assert calls(api, "submit") <= submits
    assert world.manifest()["isolation"] == {"submits": len(pieces(world)), "at_most": 2_000}
    assert time.time() - began < 6 * 60


@LATER
@pytest.mark.parametrize("count", [50, 500])
def test_rest_is_not_sent_when_all_fail_alone(start, api, count, later):
    world = start()
    api.inject(
        Fault(kind="batch_fails", times=0, code=3030)
        if later
        else Fault(kind="5006", on="submit", times=0)
    )
    world.run("a.jsonl", greetings(count), model=M2M, minutes=240)

    assert failed(world) == list(range(count))
    assert {line["error"]["code"] for line in world.lines()} == {"rejected"}
    assert calls(api, "submit") <= 100
    alone = [
        batch for batch in batches(world).values() if batch.records.sendable == 1 and batch.cause
    ]
    assert len(alone) >= min(count, 60)
    assert count == 50 or any(message.startswith("Not sent alone") for message in messages(world))
    assert len(world.lines("retry.jsonl")) == count


@LATER
@pytest.mark.parametrize("count", [60, pytest.param(8_000, marks=pytest.mark.slow)])
def test_no_chain_of_invocations_grows_with_depth(start, api, monkeypatch, count, later):
    """AWS stops a function that a chain of messages leads back to 16 times."""
    world = start(MAX_REQUESTS_PER_BATCH=count)
    api.inject(*fails_later(*([count - 1] if later else [])))
    led_to: dict[str, Counter[str]] = {}
    here: list[Counter[str]] = [Counter()]
    longest: Counter[str] = Counter()
    real = queues.Queues.send_all

    def send_all(self, some, delay=0):
        led_to.update({msgspec.json.encode(one).decode(): here[-1] for one in some})
        return real(self, some, delay)

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
    world.run("a.jsonl", greetings(count, *([] if later else [count - 1])), model=M2M, minutes=120)

    assert failed(world) == [count - 1]
    assert max(longest.values()) < 4
