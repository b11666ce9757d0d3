"""Many open jobs: no job with its last answer waits for its visit."""

import time
from dataclasses import replace

import pytest

import functions.poll.handler
import functions.poll.polling
import functions.poll.tick
from dropbatch.core.names import JobState
from dropbatch.core.plan import SplitPlan
from shared.aws.attribute_values import attribute, attributes
from shared.models import Batch, BatchState, DueKind, Job, Records, Status, Submission, Upload
from tests.support.aws import quick_dynamodb
from tests.support.aws.resources import BUCKET

BGE = "@cf/baai/bge-small-en-v1.5"


def put(job_id, sort_key, held, work):
    item = {
        "pk": {"S": f"JOB#{job_id}"},
        "sk": {"S": sort_key},
        **attributes(held),
        "work": attribute(work),
    }
    quick_dynamodb.put(item)


def put_idle(number):
    """A job, due for an hour, that waits for the answer of its one batch."""
    now, job_id = time.time(), f"20261121T093000Z-{number:08x}"
    upload, plan = (
        Upload(BUCKET, f"inbox/{number}.jsonl", "v", "e", 100),
        SplitPlan(BGE, 500, 9_500_000, "a", "jsonl"),
    )
    times = {"created_at": now - 900, "due_at": now - 4_000}
    job = Job(
        job_id=job_id,
        state=JobState.IN_PROGRESS,
        upload=upload,
        plan=plan,
        total=100_000,
        status=Status(at=now),
        **times,
    )
    put(job_id, "META", job, "v2#routine")
    records = Records(first_id=0, requests=500, sendable=500, body_size=10, ordinal=0)
    counts = {"records": records, "attempt": 1}
    times["due_at"] = now + 3_600
    batch = Batch(job_id=job_id, number="00000000", state=BatchState.QUEUED, **counts, **times)
    put(
        job_id,
        "BATCH#00000000",
        replace(batch, submission=Submission(job_id, 1, now - 800)),
        "v2#poll",
    )


@pytest.mark.parametrize(
    "due_in", [3_600.0, -3_600.0], ids=["its visit is far off", "many jobs are visited before it"]
)
def test_job_of_dead_collector_is_over_in_a_minute(start, api, monkeypatch, due_in):
    """The function died after it had stored the job's last answer."""
    world = start()
    world.upload_records("a.jsonl", [{"text": "one"}], model=BGE)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    ledger = functions.poll.handler.services().ledger
    (job_id,) = {
        item["pk"]["S"].removeprefix("JOB#") for item in world.items() if item["sk"]["S"] == "META"
    }
    ledger.release_job(ledger.job(job_id), time.time() + due_in, DueKind.ROUTINE)
    for number in range(30):
        put_idle(number)
    world.pass_time(30)
    with monkeypatch.context() as dying:
        dying.setattr(functions.poll.polling, "visit_job", lambda *_: 1 / 0)
        world.tick()
    assert ledger.batch(job_id, "00000000").state is BatchState.DONE
    monkeypatch.setattr(functions.poll.tick, "MAX_IDLE_VISITS", 0)

    world.pass_time(10)
    world.tick()

    assert len(world.manifests()) == 1
