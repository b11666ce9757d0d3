"""Bad records are isolated: only they fail, at a bounded number of submits, and whatever dies on the way."""

import time
from collections import Counter

import msgspec
import pytest

import functions.poll.batch.poll_batch
import functions.poll.handler
import functions.poll.schedule.advance_job
import functions.submit.handler
from functions.poll.batch import bisect_batch
from local.workers_ai import Fault
from shared.aws import queues
from shared.errors import StorageError
from shared.ledger import Ledger

pytestmark = pytest.mark.slow  # They take minutes together.

M2M = "@cf/meta/m2m100-1.2b"
HOUR, DAY = 3600.0, 86400.0


def greetings(count, *bad):
    """Requests, some of which the API refuses."""
    return [{"text": f"hello {number}.", "target_lang": 7 if number in bad else "es"} for number in range(count)]


def failed(world):
    return [line["id"] for line in world.lines() if not line["success"]]


def messages(world):
    return {line["error"]["message"] for line in world.lines() if not line["success"]}


def batches(world):
    """Items of all batches by number, as the ledger has them."""
    ledger = functions.poll.handler.services().ledger
    (job_id,) = {item["pk"]["S"][4:] for item in world.items() if item["pk"]["S"].startswith("JOB#")}
    return {batch.number: batch for batch in ledger.batches(job_id)}


def pieces(world):
    return [number for number in batches(world) if "." in number]


def calls(api, kind):
    return sum(api.calls.get(kind, {}).values())


def fails_later(*bad):
    """Batches that hold one of these records fail after they were accepted."""
    return [Fault(kind="batch_fails", contains=f"hello {number}.", times=0, code=3030) for number in bad]


# ── what it finds, and at what cost ──────────────────────────────────────────────────────────────────────────────────


SIZES = [
    pytest.param(50, 4, id="50 records, 4 pieces"),
    pytest.param(500, 16, id="500 records, 16 pieces", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("later", [False, True], ids=["refused", "failed after acceptance"])
@pytest.mark.parametrize(("count", "at_once"), SIZES)
def test_one_bad_record_is_found_in_three_levels(start, api, monkeypatch, count, at_once, later):
    monkeypatch.setattr(bisect_batch, "MAX_PIECES", at_once)
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
    accepted = {number: batch.submissions[0].at for number, batch in batches(world).items() if batch.submissions}
    found = max(at for number, at in accepted.items() if "." in number)
    assert sum(at > found for at in accepted.values()) > 5


def test_only_submits_of_isolation_count(world, api):
    world.upload_records("a.jsonl", greetings(8, 5), model=M2M)
    world.deliver("UploadQueue")
    (key,) = [{"pk": item["pk"], "sk": item["sk"]} for item in world.items() if item["sk"]["S"] == "BATCH#00000000"]
    world.dynamodb.update_item(  # As if its token had been refused for a day.
        TableName="ledger",
        Key=key,
        UpdateExpression="SET attempt = :many",
        ExpressionAttributeValues={":many": {"N": "5000"}},
    )

    world.settle(minutes=120)

    assert failed(world) == [5]
    assert world.manifest()["isolation"]["submits"] == 8


def test_confirmed_cause_is_believed_immediately(start, api):
    world = start()
    api.inject(Fault(kind="json_500", on="poll", contains="hello 3.", times=0))
    world.upload_records("a.jsonl", greetings(9), model=M2M)

    world.settle(minutes=60)

    assert failed(world) == [3]
    found = batches(world)
    assert found["00000000"].polls == 5
    assert found["00000000.3"].polls <= 3  # The answer, and the line that is written.


# ── when every record is bad ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("later", [False, True], ids=["refused", "failed after acceptance"])
@pytest.mark.parametrize(("count", "at_once"), SIZES)
def test_records_failing_alike_are_not_tried_alone(start, api, monkeypatch, count, at_once, later):
    monkeypatch.setattr(bisect_batch, "MAX_PIECES", at_once)
    world = start()
    api.inject(Fault(kind="batch_fails", times=0, code=3030) if later else Fault(kind="5006", on="submit", times=0))
    world.upload_records("a.jsonl", greetings(count), model=M2M)

    world.settle(minutes=240)

    assert failed(world) == list(range(count))
    assert {line["error"]["code"] for line in world.lines()} == {"rejected"}
    assert calls(api, "submit") <= 1 + 3 * at_once
    assert calls(api, "submit") <= 40
    assert any(message.startswith("Not tried alone, because every request") for message in messages(world))
    assert world.manifest()["isolation"]["not_tried_alone"] == ["3030" if later else "5006"]
    assert len(world.lines("retry.jsonl")) == count


def test_many_batches_that_fail_alike_cost_one_search(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=10)
    api.inject(Fault(kind="batch_fails", times=0, code=3030))
    world.upload_records("a.jsonl", greetings(60), model=M2M)

    world.settle(minutes=240)

    assert failed(world) == list(range(60))
    assert calls(api, "submit") <= 6 + 10
    assert world.manifest()["isolation"]["submits"] == len(pieces(world))


def test_isolation_keeps_to_its_bound(start, api, monkeypatch):
    monkeypatch.setattr(bisect_batch, "MAX_ISOLATION_SUBMITS", 20)
    world = start(MAX_REQUESTS_PER_BATCH=8)
    world.upload_records("a.jsonl", greetings(40, *range(0, 40, 8)), model=M2M)

    world.settle(minutes=240)

    assert len(pieces(world)) == world.manifest()["isolation"]["submits"] == 16
    assert len(failed(world)) == 2 + 3 * 8
    assert sum("has used up its" in message for message in messages(world)) == 1


def test_isolation_state_is_bounded(start, api, monkeypatch):
    monkeypatch.setattr(bisect_batch, "MAX_GRANTED", 3)
    monkeypatch.setattr(bisect_batch, "MAX_CAUSES", 2)
    world = start(MAX_REQUESTS_PER_BATCH=2)
    for number in range(0, 20, 2):
        api.inject(Fault(kind=str(5100 + number), status=400, on="submit", contains=f"hello {number}.", times=0))
    world.upload_records("a.jsonl", greetings(20), model=M2M)

    world.settle(minutes=240)

    assert failed(world) == list(range(0, 20, 2))
    item = world.item()
    kept = item["isolation"]["M"]
    assert (int(kept["submits"]["N"]), len(kept["granted"]["L"]) <= 3, len(kept["causes"]["M"])) == (20, True, 2)


# ── it ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_batch_of_failing_job_is_not_split(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.switch(retention=0)
    api.inject(Fault(kind="batch_fails", nth=1, times=1), Fault(kind="5035", on="submit", nth=2, times=0))
    world.upload_records("a.jsonl", greetings(4), model=M2M)

    world.settle(minutes=10)

    assert (world.manifest()["state"], failed(world)) == ("failed", [0, 1, 2, 3])
    assert calls(api, "poll") <= 2
    assert calls(api, "submit") == 2
    assert any(message.startswith("Not tried alone, because the job was stopped") for message in messages(world))


def test_batches_failing_after_days_end(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2, BATCH_DEADLINE_HOURS=100)
    api.switch(retention=0, latency=2 * DAY)
    api.inject(Fault(kind="3040", on="submit", times=1), Fault(kind="batch_fails", times=0))
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver_all()
    world.pass_time(6.5 * DAY)
    world.settle(minutes=60, until=lambda: len(api.accepted) == 1)
    world.pass_time(2 * DAY)
    world.settle(minutes=60, until=lambda: len(api.accepted) == 3)
    world.pass_time(2 * DAY)

    world.settle(minutes=60)

    assert failed(world) == [0, 1]
    assert len(api.accepted) == 3


def test_batch_failing_after_a_week_is_not_resent(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2, BATCH_DEADLINE_HOURS=168)
    api.switch(retention=0, latency=8 * DAY)
    api.inject(Fault(kind="batch_fails", times=0))
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    world.pass_time(8 * DAY)

    world.settle(minutes=60)

    assert failed(world) == [0, 1]
    assert len(api.accepted) == 1


def fails(*_):
    raise StorageError("no service answers")


@pytest.fixture
def impatient(monkeypatch):
    """What usually takes 72 hours is given up after a few claims."""
    for module in (functions.poll.batch.poll_batch, functions.poll.schedule.advance_job):
        monkeypatch.setattr(module, "MAX_CLAIMS", 3)


def test_job_ends_with_partial_pieces(world, api, monkeypatch, impatient):
    real = Ledger.create_batch
    monkeypatch.setattr(Ledger, "create_batch", lambda *one: fails() if one[1].number.endswith(".0") else real(*one))
    world.upload_records("a.jsonl", greetings(3, 1), model=M2M)

    world.settle(minutes=4 * 60)

    assert world.manifest()["state"] == "failed"
    states = {number: batch.state for number, batch in batches(world).items()}
    assert states == {"00000000": "halved", "00000000.1": "done", "00000000.2": "done"}


# ── no function calls itself ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("later", [False, True], ids=["refused", "failed after acceptance"])
@pytest.mark.parametrize(("count", "at_once"), [(60, 2), pytest.param(8_000, 16, marks=pytest.mark.slow)])
def test_no_chain_of_invocations_grows_with_depth(start, api, monkeypatch, count, at_once, later):
    """AWS stops a function that a chain of messages leads back to 16 times; a tick begins a new chain."""
    monkeypatch.setattr(bisect_batch, "MAX_PIECES", at_once)
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
