"""Fair shares: whatever stalls, is broken or piles up, nobody holds up others, and everything comes to its end."""

import dataclasses
import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.dynamodb.models import dynamodb_backends

import functions.poll.batch.poll_batch
import functions.poll.handler
import functions.poll.schedule.advance_job
import functions.poll.schedule.tick
import functions.submit.messages
import functions.submit.submit_batch
from functions.poll.schedule.dispatch_submits import MAX_WAITING
from functions.poll.schedule.tick import tick
from shared.aws.attribute_values import attributes
from shared.claims import MAX_CLAIMS
from shared.errors import StorageError
from shared.invocation import Invocation
from shared.models import Batch, BatchState, DueKind, ErrorDetail, Job, JobState, SplitPlan, Submission, Upload
from shared.pacing import budget as budget_module
from shared.pacing.controls import PauseReason, Permit
from shared.s3_keys import result
from shared.workers_ai.replies import OutcomeUnknown
from tests.support.deaths import Boundaries, mortal_world
from tests.support.resources import ACCOUNT, BUCKET, REGION, TABLE
from tests.support.world import REAL_SUBMIT

pytestmark = pytest.mark.slow  # They take minutes together.

M2M = "@cf/meta/m2m100-1.2b"
BGE = "@cf/baai/bge-small-en-v1.5"
MINUTE, DAY = 60.0, 86_400.0
TIMEOUT = 150.0


@pytest.fixture
def short_ticks(monkeypatch):
    """A tick looks once; the test decides when the next one comes."""
    monkeypatch.setattr(functions.poll.schedule.tick, "TICK_SECONDS", 0.0)


def texts(count):
    return [{"text": f"text {number}"} for number in range(count)]


def services_of():
    return functions.poll.handler.services()


def job_of(name, model=BGE, **more):
    """A job that has been read to its end, and is to be looked at in an hour."""
    now = time.time()
    upload, plan = (
        Upload(BUCKET, f"inbox/{name}.jsonl", "v", "e", 1),
        SplitPlan(model, 500, 9_500_000, ACCOUNT, "jsonl", "plain"),
    )
    held = {"created_at": now - DAY, "due_at": now + 3_600, "total": 1_000, **more}
    return Job(f"20261121T093000Z-{name:0>8}", JobState.IN_PROGRESS, upload, plan, **held)


def put_batches(job, count, *, state, due_in):
    """Batches of a job as they stand while they wait to be submitted or polled, put where no call is made for it."""
    now = time.time()
    queued = state is BatchState.QUEUED
    backend = dynamodb_backends[DEFAULT_ACCOUNT_ID][REGION]
    for number in range(count):
        batch = Batch(
            job.job_id,
            f"{number:08d}",
            state,
            number,
            1,
            1,
            10,
            created_at=now - DAY,
            due_at=now + due_in + number / 1_000,
            work=DueKind.POLL if queued else DueKind.SUBMIT,
            submissions=(Submission(f"{job.job_id}/{number}", 1, now - DAY / 2),) if queued else (),
            attempt=int(queued),
        )
        key = {"pk": {"S": f"JOB#{job.job_id}"}, "sk": {"S": f"BATCH#{batch.number}"}}
        backend.put_item(TABLE, {**key, **attributes(batch)})


def batches_of(world, job_id):
    found = [item for item in world.items() if item["pk"]["S"] == f"JOB#{job_id}" and item["sk"]["S"] != "META"]
    return sorted(found, key=lambda item: item["sk"]["S"])


def waiting(world, queue):
    """Messages that nobody has taken."""
    asked = {"QueueUrl": world.queues[queue], "AttributeNames": ["ApproximateNumberOfMessages"]}
    return int(world.sqs.get_queue_attributes(**asked)["Attributes"]["ApproximateNumberOfMessages"])


def minutes_until(world, is_so, *, most, step=10):
    """Minutes of ticks and deliveries until something is so; fails beyond `most`."""
    began = time.time()
    while not is_so():
        assert time.time() - began <= most * MINUTE, f"not within {most} minutes"
        world.deliver_all()
        world.tick()
        world.deliver_all()
        world.pass_time(step)
    return (time.time() - began) / MINUTE


def edit(world, key, **values):
    for name, value in values.items():
        world.dynamodb.update_item(
            TableName=TABLE,
            Key={"pk": key["pk"], "sk": key["sk"]},
            UpdateExpression="SET #name = :value",
            ExpressionAttributeNames={"#name": name},
            ExpressionAttributeValues={":value": value},
        )


# ── items that cannot be worked on ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("broken", ["job missing", "job unreadable", "batch unreadable"])
def test_stuck_batches_hold_up_no_other(start, api, short_ticks, broken):
    world = start(API_CALLS_PER_MINUTE=20)
    job = job_of("broken")
    if broken != "job missing":
        services_of().ledger.create_job(job)
    put_batches(job, 15, state=BatchState.QUEUED, due_in=-600)  # More than the tokens of one round.
    if broken == "job unreadable":
        edit(world, {"pk": {"S": f"JOB#{job.job_id}"}, "sk": {"S": "META"}}, created_at={"S": "edited"})
    if broken == "batch unreadable":
        for item in batches_of(world, job.job_id):
            edit(world, item, created_at={"S": "edited"})
    world.upload_records("small.jsonl", texts(1), model=BGE)

    minutes_until(world, lambda: len(world.manifests()) == 1, most=3)

    assert sum(api.calls["poll"].values()) <= 4
    for item in batches_of(world, job.job_id):
        assert float(item["due_at"]["N"]) > time.time() - MINUTE
        assert int(item["claims"]["N"]) >= 1


@pytest.mark.parametrize("readable", [True, False])
def test_batch_without_job_ends_after_its_claims(start, short_ticks, readable):
    world = start()
    job = job_of("gone")
    put_batches(job, 1, state=BatchState.QUEUED, due_in=-600)
    (item,) = batches_of(world, job.job_id)
    edit(world, item, claims={"N": str(MAX_CLAIMS)}, **({} if readable else {"first_id": {"S": "edited"}}))

    world.tick()

    (item,) = batches_of(world, job.job_id)
    assert item["state"]["S"] == "done"
    assert {"due_at", "work"} & set(item) == set()
    assert "ttl" in item


def test_unreadable_batch_ends_job_with_lines_before(start, short_ticks):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", texts(6), model=BGE)
    world.deliver("UploadQueue")
    (job_id,) = {item["pk"]["S"].removeprefix("JOB#") for item in world.items() if item["sk"]["S"] == "META"}
    edit(world, batches_of(world, job_id)[1], requests={"S": "edited"})
    minutes_until(world, lambda: sum("part" in one for one in batches_of(world, job_id)) == 2, most=3)
    meta = {"pk": {"S": f"JOB#{job_id}"}, "sk": {"S": "META"}}
    edit(world, meta, claims={"N": str(MAX_CLAIMS)}, lease_until={"N": "0"}, due_at={"N": str(time.time())})

    world.tick()

    assert world.manifest()["error"]["code"] == "internal"
    assert [line["id"] for line in world.lines()] == [0, 1]
    assert [entry["number"] for entry in world.manifest()["batches"]] == ["00000000"]


@pytest.mark.parametrize("state", ["splitting", "in_progress"])
@pytest.mark.parametrize("error", [StorageError("item too large"), TypeError("a slip"), OSError("no space")])
def test_error_of_one_job_kills_no_tick(start, monkeypatch, short_ticks, state, error):
    world = start()
    ledger = services_of().ledger
    bad = dataclasses.replace(job_of("bad"), state=JobState(state), due_at=time.time() - 60)
    ledger.create_job(bad)
    for name in ("lease_job", "postpone_job"):
        real = getattr(ledger, name)

        def refuse(job, *arguments, real=real):
            if job.job_id == bad.job_id:
                raise error
            return real(job, *arguments)

        monkeypatch.setattr(ledger, name, refuse)
    world.upload_records("good.jsonl", texts(1), model=BGE)

    minutes_until(world, lambda: len(world.manifests()) == 1, most=2)

    after = ledger.job(bad.job_id)
    assert 1 <= after.claims <= 3
    assert after.due_at > time.time() - MINUTE


# ── models and jobs that have much to do ─────────────────────────────────────────────────────────────────────────────


def test_model_that_has_stalled_holds_up_no_other(start, api, monkeypatch):
    monkeypatch.setattr(functions.poll.schedule.tick, "TICK_SECONDS", 5.0)
    monkeypatch.setattr(budget_module, "OUTSTANDING_MINUTES", 1)  # 10 outstanding batches
    world = start(API_CALLS_PER_MINUTE=20, MAX_REQUESTS_PER_BATCH=1)
    stalled, more = job_of("stalled", M2M), job_of("more", M2M, due_at=time.time() + 60)
    for job in (stalled, more):
        services_of().ledger.create_job(job)
    put_batches(stalled, 12, state=BatchState.QUEUED, due_in=DAY)
    put_batches(more, 60, state=BatchState.READY, due_in=-DAY)
    world.tick()
    world.upload_records("small.jsonl", texts(8), model=BGE)

    minutes_until(world, lambda: len(world.manifests()) == 1, most=8)

    status = json.loads(world.read(result("inbox/more.jsonl", more.job_id, "status.json")))
    assert status["waiting_for"]["code"] == "model_busy"
    assert {one["model"] for one in api.accepted} == {BGE}
    assert all(item["state"]["S"] == "ready" for item in batches_of(world, more.job_id))


def test_first_batch_waits_at_most_two_minutes(start, api, monkeypatch):
    monkeypatch.setattr(functions.poll.schedule.tick, "TICK_SECONDS", 5.0)
    world = start(API_CALLS_PER_MINUTE=20)
    for name in ("one", "two", "three"):
        services_of().ledger.create_job(job_of(name))
        # Each of their calls uses a token and comes to nothing: what they would send is not there.
        put_batches(job_of(name), 60, state=BatchState.READY, due_in=-DAY / 24)
    while isinstance(services_of().budget.permit_submit(BGE, time.time(), first=True), Permit):
        pass
    world.upload_records("small.jsonl", texts(1), model=BGE)

    assert minutes_until(world, lambda: api.accepted, most=2) <= 2


def test_job_finishes_with_its_last_batch(start, api, monkeypatch):
    world = start()
    monkeypatch.setattr(ThreadPoolExecutor, "submit", REAL_SUBMIT)
    finished = threading.Event()
    waited = []
    real_collect, real_close = functions.poll.batch.poll_batch.collect, functions.poll.schedule.advance_job._close

    def collect(services, job, batch, reply):
        if "large" in job.upload.key:
            waited.append(finished.wait(30))
        return real_collect(services, job, batch, reply)

    def close(invocation, job, kinds):
        real_close(invocation, job, kinds)
        if "small" in job.upload.key:
            finished.set()

    monkeypatch.setattr(functions.poll.batch.poll_batch, "collect", collect)
    monkeypatch.setattr(functions.poll.schedule.advance_job, "_close", close)
    for name in ("large", "small"):
        world.upload_records(f"{name}.jsonl", texts(1), model=BGE)
        world.deliver("UploadQueue")
        world.deliver("SubmitQueue")
    world.pass_time(60)

    world.tick()

    assert waited == [True]


def test_tick_leaves_long_jobs_to_other_invocations(start, api, monkeypatch, short_ticks):
    monkeypatch.setattr(functions.poll.schedule.tick, "LARGE_RECORDS", 2)
    world = start()
    world.upload_records("large.jsonl", texts(3), model=BGE)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    world.pass_time(60)

    world.tick()

    assert "poll" not in api.calls
    assert waiting(world, "PollQueue") >= 1
    world.settle(minutes=5)


# ── dispatch ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pause_dispatches_only_probes(start):
    world = start()
    services = services_of()
    waits, stopped = job_of("waits"), job_of("stopped", error=ErrorDetail("broken_archive", "It breaks off."))
    for job, due_in in ((stopped, -7_200), (waits, -3_600)):
        services.ledger.create_job(job)
        put_batches(job, 200 if job is waits else 3, state=BatchState.READY, due_in=due_in)
    services.budget.pause(PauseReason.QUOTA_SPENT, time.time(), "3036", Permit())

    world.tick()

    touched = [item for item in batches_of(world, waits.job_id) if float(item["due_at"]["N"]) > time.time()]
    assert waiting(world, "SubmitQueue") == 3
    assert len(touched) <= 2 * MINUTE


def test_no_messages_pile_up_while_nobody_takes_them(start):
    world = start()
    services_of().ledger.create_job(job_of("many"))
    put_batches(job_of("many"), 400, state=BatchState.READY, due_in=-3_600)

    for _ in range(2):
        world.tick()
        world.pass_time(60)

    assert waiting(world, "SubmitQueue") <= MAX_WAITING


# ── turns, and when the time to be accepted begins ───────────────────────────────────────────────────────────────────


def test_batches_without_sendable_record_take_no_turn(start):
    world = start(MAX_REQUESTS_PER_BATCH=1, API_CALLS_PER_MINUTE=20)
    world.upload("a.jsonl", "nonsense\n" * 40 + '{"text":"good"}\n', model=BGE)
    world.deliver("UploadQueue")

    (good,) = [item for item in world.items() if item.get("sendable", {}).get("N") == "1"]
    assert good["work"]["S"] == DueKind.FIRST
    assert waiting(world, "SubmitQueue") == 1


def test_time_to_be_accepted_begins_with_batchs_turn(start, api, monkeypatch):
    monkeypatch.setattr(functions.submit.submit_batch, "MAX_SECONDS_TO_ACCEPTANCE", 300)
    world = start(MAX_REQUESTS_PER_BATCH=1, API_CALLS_PER_MINUTE=1)
    world.upload_records("a.jsonl", texts(6), model=BGE)

    world.settle(minutes=60)

    assert world.manifest()["counts"] == {"total": 6, "succeeded": 6, "failed": 0}


def test_batch_unseen_for_a_week_is_sent(start, api, short_ticks):
    world = start()
    world.upload_records("a.jsonl", texts(1), model=BGE)
    world.deliver("UploadQueue")
    world.sqs.purge_queue(QueueUrl=world.queues["SubmitQueue"])
    world.pass_time(8 * DAY)

    minutes_until(world, lambda: len(world.manifests()) == 1, most=3)

    assert world.manifest()["counts"]["succeeded"] == 1


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Silent:
    """The API, which takes a poll and says nothing until its time is over."""

    def __init__(self, sleep):
        self.sleep = sleep
        self.calls = Counter()

    @contextmanager
    def poll(self, model, request_id, seconds):
        self.calls[request_id] += 1
        self.sleep(seconds)
        yield OutcomeUnknown("ReadTimeout")


@pytest.mark.parametrize("due_in", [0, 20, 30, 40, 50])
def test_tick_ends_within_a_minute_without_api(start, due_in):
    start()
    services = services_of()
    services = dataclasses.replace(services, api=Silent(services.sleep))
    job = dataclasses.replace(job_of("small"), total=1)
    services.ledger.create_job(job)
    put_batches(job, 1, state=BatchState.QUEUED, due_in=due_in)
    began = time.time()

    tick(Invocation(services, began + TIMEOUT))

    assert time.time() - began <= MINUTE


# ── what stands in the way for weeks ─────────────────────────────────────────────────────────────────────────────────


def test_job_ends_before_its_objects_expire(start, api, short_ticks):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.switch(latency=3_600.0)
    world.upload_records("a.jsonl", texts(2), model=BGE)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=1)
    world.sqs.purge_queue(QueueUrl=world.queues["SubmitQueue"])
    services_of().budget.pause(PauseReason.TOKEN_REFUSED, time.time(), "10000", Permit())
    api.switch(tokens=("another",))
    world.pass_time(51 * DAY)

    minutes_until(world, lambda: len(world.manifests()) == 1, most=10, step=30)

    manifest = world.manifest()
    assert (manifest["state"], manifest["error"]["code"]) == ("failed", "expired")
    assert [line["error"]["code"] for line in world.lines()] == ["expired", "expired"]


@pytest.mark.parametrize("queue", ["SubmitQueue", "UploadQueue"])
def test_error_before_claim_counts_as_one(start, monkeypatch, short_ticks, queue):
    world = start()
    world.upload_records("a.jsonl", texts(1), model=BGE)
    if queue == "SubmitQueue":
        world.deliver("UploadQueue")

    def slip(*arguments, **more):
        raise TypeError("a slip")

    monkeypatch.setattr(functions.submit.messages, "submit_batch", slip)
    monkeypatch.setattr(functions.submit.messages, "split", slip)
    world.deliver_all()
    world.pass_time(160)
    for _ in range(2):
        world.tick()
        world.deliver_all()
        world.pass_time(100)

    wanted = "BATCH#00000000" if queue == "SubmitQueue" else "META"
    (item,) = [item for item in world.items() if item["sk"]["S"] == wanted]
    assert int(item["claims"]["N"]) >= 3


def test_batch_claimed_too_often_unsent_ends(start, short_ticks):
    world = start()
    world.upload_records("a.jsonl", texts(1), model=BGE)
    world.deliver("UploadQueue")
    (item,) = [item for item in world.items() if item["sk"]["S"].startswith("BATCH#")]
    edit(world, item, claims={"N": str(MAX_CLAIMS + 1)})

    minutes_until(world, lambda: len(world.manifests()) == 1, most=3)

    assert [line["error"]["code"] for line in world.lines()] == ["internal"]


# ── deaths ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_upload_of_dead_function_begins_in_3_minutes(api):
    """The function died before there was a job."""
    boundaries = Boundaries()
    with mortal_world(api, boundaries) as world:
        world.upload_records("a.jsonl", texts(1), model=BGE)
        boundaries.strike_first("HeadObject", "before")
        world.deliver("UploadQueue")
        assert boundaries.struck
        died = time.time()

        minutes_until(world, world.all_over, most=5)

        (job,) = [item for item in world.items() if item["sk"]["S"] == "META"]
        assert float(job["created_at"]["N"]) - died <= 3 * MINUTE + 10


def test_failed_upload_is_tried_for_an_hour(start, monkeypatch):
    world = start()
    monkeypatch.setattr(functions.submit.messages, "get_or_create_job", lambda *_: 1 / 0)
    world.upload_records("a.jsonl", texts(1), model=BGE)
    world.deliver("UploadQueue")
    world.pass_time(850)
    assert world.deliver("UploadQueue") == 0
    world.pass_time(51)
    assert world.deliver("UploadQueue") == 1


def test_forty_deaths_are_recovered_in_five_minutes(api):
    chance = random.Random(1)
    boundaries = Boundaries()
    with mortal_world(api, boundaries, MAX_REQUESTS_PER_BATCH=2) as world:
        for name in range(3):
            world.upload_records(f"{name}.jsonl", texts(6), model=BGE)
        world.deliver("UploadQueue")
        deaths = 0
        while deaths < 40:
            boundaries.strike(chance.randint(1, 25), chance.choice(["before", "after"]))
            world.tick()
            for queue in ("SubmitQueue", "PollQueue"):
                if not boundaries.struck:
                    world.deliver(queue, most=3)
            deaths += bool(boundaries.struck)
            world.pass_time(1.5)
            if world.all_over():
                break
        boundaries.strike(0, "after")

        assert minutes_until(world, world.all_over, most=5) <= 5
