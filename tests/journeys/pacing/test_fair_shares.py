"""Fair shares: whatever stalls, is broken or piles up, nobody holds up others.

And everything comes to its end.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import functions.poll.dispatch
import functions.poll.handler
import functions.poll.poll
import functions.poll.tick
import functions.poll.visit
import functions.submit.handler
import functions.submit.submit
from dropbatch.core.names import result
from shared.models import BatchState, ErrorDetail
from shared.pacing import budget as budget_module
from shared.pacing.breaker import PauseReason, Permit
from tests.support.journeys.placed_items import (
    BGE,
    DAY,
    MINUTE,
    batches_of,
    edit,
    job_of,
    minutes_until,
    put_batches,
    services_of,
    texts,
    waiting,
)
from tests.support.journeys.world import REAL_SUBMIT
from tests.support.translations import M2M

pytestmark = pytest.mark.slow  # They take minutes together.


# ── items that cannot be worked on ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("broken", ["job missing", "job unreadable", "batch unreadable"])
def test_stuck_batches_hold_up_no_other(start, api, short_ticks, broken):
    world = start(API_CALLS_PER_MINUTE=20)
    job = job_of("broken")
    if broken != "job missing":
        services_of().ledger.create_job(job)
    put_batches(job, 15, state=BatchState.QUEUED, due_in=-600)  # More than the tokens of one cycle.
    if broken == "job unreadable":
        edit(
            world,
            {"pk": {"S": f"JOB#{job.job_id}"}, "sk": {"S": "META"}},
            created_at={"S": "edited"},
        )
    if broken == "batch unreadable":
        for item in batches_of(world, job.job_id):
            edit(world, item, created_at={"S": "edited"})
    world.upload_records("small.jsonl", texts(1), model=BGE)

    minutes_until(world, lambda: len(world.manifests()) == 1, most=3)
    minutes_until(
        world, lambda: all("claims" in item for item in batches_of(world, job.job_id)), most=3
    )

    assert sum(api.calls["poll"].values()) <= 4
    for item in batches_of(world, job.job_id):
        assert float(item["due_at"]["N"]) > time.time() - MINUTE


# ── models and jobs that have much to do ──────────────────────────────────────────────────────────


def test_model_that_has_stalled_holds_up_no_other(start, api, monkeypatch):
    monkeypatch.setattr(functions.poll.tick, "TICK_SECONDS", 5.0)
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
    monkeypatch.setattr(functions.poll.tick, "TICK_SECONDS", 5.0)
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
    real_collect, real_close = (
        functions.poll.poll.collect,
        functions.poll.visit._close,
    )

    def collect(services, job, batch, reply):
        if "large" in job.upload.key:
            waited.append(finished.wait(30))
        return real_collect(services, job, batch, reply)

    def close(invocation, job, kinds):
        real_close(invocation, job, kinds)
        if "small" in job.upload.key:
            finished.set()

    monkeypatch.setattr(functions.poll.poll, "collect", collect)
    monkeypatch.setattr(functions.poll.visit, "_close", close)
    for name in ("large", "small"):
        world.upload_records(f"{name}.jsonl", texts(1), model=BGE)
        world.deliver("UploadQueue")
        world.deliver("SubmitQueue")
    world.pass_time(60)

    world.tick()

    assert waited == [True]


# ── dispatch ──────────────────────────────────────────────────────────────────────────────────────


def test_pause_dispatches_only_probes(start):
    world = start()
    services = services_of()
    waits, stopped = (
        job_of("waits"),
        job_of("stopped", error=ErrorDetail("broken_archive", "It breaks off.")),
    )
    for job, due_in in ((stopped, -7_200), (waits, -3_600)):
        services.ledger.create_job(job)
        put_batches(job, 200 if job is waits else 3, state=BatchState.READY, due_in=due_in)
    services.budget.pause(PauseReason.QUOTA_SPENT, time.time(), "3036", Permit())

    for sent in (2, 3):
        world.tick()
        assert waiting(world, "SubmitQueue") == sent
        world.pass_time(MINUTE)

    touched = [
        item
        for item in batches_of(world, waits.job_id)
        if float(item["due_at"]["N"]) > time.time() - MINUTE
    ]
    assert len(touched) <= 2 * MINUTE
