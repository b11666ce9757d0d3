"""Jobs of very many batches, on simulated AWS: the same work for each, whoever dies wherever."""

import hashlib
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dropbatch.core.names import JobState
from dropbatch.core.plan import SplitPlan
from functions.poll import end
from functions.poll import files as segments
from functions.poll.visit import visit_job
from shared.aws.attribute_values import attributes
from shared.aws.object_store import BLOCK_BYTES, ObjectStore
from shared.errors import InvariantError
from shared.ledger import Ledger
from shared.models import Batch, BatchState, DueKind, Job, Part, Records, ResultFileProgress, Upload
from shared.pacing.budget import Budget
from simulation.kernel import DiedError, Kernel
from simulation.services.awkward import Awkward
from simulation.services.calls import Calls
from simulation.services.dynamodb import DynamoDB
from simulation.services.s3 import S3
from tests.support.aws.resources import TABLE, ledger_table
from tests.support.doubles.visited_jobs import Watched

JOB = "20261121T093000Z-0000000a"
FOLDER = f"results/a.jsonl/{JOB}"


class Counted(Calls):
    """Counts calls, items and bytes read; after one of its writes the process dies."""

    def __init__(self, kernel):
        super().__init__(kernel, Awkward())
        self.made, self.writes = Counter(), 0
        self.dies_after, self.dies_at = 0, ""

    def read(self, operation, effect):
        found = effect()
        self.made[operation] += 1
        self.made["items read"] += len(found.get("Items", ()))
        self.made["bytes read"] += found["Body"].getbuffer().nbytes if "Body" in found else 0
        return found

    def write(self, operation, effect):
        done = effect()
        self.made[operation] += 1
        self.writes += 1
        if self.writes == self.dies_after or operation == self.dies_at:
            raise DiedError
        return done


class World:
    """A job, its batches, and the visits that finish it."""

    def __init__(self, many, *, size=100):
        self.size, self.count, self.kernel = size, many, Kernel(1, 1e9)
        self.calls = Counted(self.kernel)
        self.dynamodb, self.s3 = DynamoDB(self.calls, ledger_table()), S3(self.calls, "b")
        self.ledger, self.store = Ledger(self.dynamodb, TABLE), ObjectStore(self.s3, "b")
        plan = SplitPlan("@cf/a/b", 1, 1_000, "a", "jsonl", "plain")
        made = {"state": JobState.IN_PROGRESS, "total": many, "due_at": 1e9, "created_at": 1e9}
        upload = Upload("b", "inbox/a.jsonl", "v", "e", 1)
        assert self.ledger.create_job(Job(job_id=JOB, upload=upload, plan=plan, **made))
        for at in range(many):
            assert self.ledger.create_batch(self.batch(at, due_at=2e9, work=DueKind.POLL))
        self.services = SimpleNamespace(
            ledger=self.ledger,
            store=self.store,
            settings=SimpleNamespace(cloudflare_account_id="a"),
            budget=Budget(self.dynamodb, TABLE, 200),
            notices=SimpleNamespace(publish_job_over=lambda manifest, now: None),
            now=lambda: self.kernel.now,
        )
        self.calls.made.clear()
        self.calls.writes = 0

    def batch(self, at, state=BatchState.QUEUED, **more):
        records = Records(first_id=at, requests=1, sendable=1, body_size=10)
        return Batch(
            job_id=JOB, number=f"{at:08d}", state=state, records=records, created_at=1e9, **more
        )

    def line(self, number):
        return json.dumps({"id": number, "text": "x" * self.size}).encode() + b"\n"

    def error(self, number):
        """Of each twentieth record."""
        told = {"id": number, "error": {"code": "rejected", "message": "bad"}}
        return json.dumps(told).encode() + b"\n" if number % 20 == 19 else b""

    def answer(self, numbers):
        """These batches are done, without a call that counts."""
        counts = self.calls.made.copy(), self.calls.writes, self.calls.dies_after
        self.calls.dies_after = 0
        for number in numbers:
            output, error = self.line(number), self.error(number)
            key = f"staging/{JOB}/{number:08d}/part-1"
            self.s3.put_object(Bucket="b", Key=key, Body=output + error)
            part = Part(key, len(output), len(error), 0, 0, int(not error), int(bool(error)))
            self.put(self.batch(number, BatchState.DONE, part=part, completed_at=1e9))
        self.calls.made, self.calls.writes, self.calls.dies_after = counts

    def put(self, batch):
        key = {"pk": {"S": f"JOB#{JOB}"}, "sk": {"S": f"BATCH#{batch.number}"}}
        self.dynamodb.put_item(TableName=TABLE, Item={**key, **attributes(batch)})

    def visit(self, left=lambda: 150.0):
        self.kernel.now += 10
        visit_job(Watched(self.services, self.kernel.now + 150, left), JOB)

    @property
    def over(self):
        return self.ledger.job(JOB).completed_at is not None

    def read(self, name):
        return self.s3.objects[f"{FOLDER}/{name}"].body

    def check(self):
        """Every line is there, in order, and the manifest tells of what there is."""
        everything = range(self.count)
        assert self.read("output.jsonl") == b"".join(map(self.line, everything))
        assert self.read("errors.jsonl") == b"".join(map(self.error, everything))
        manifest, bad = json.loads(self.read("manifest.json")), self.count // 20
        counts = {"total": self.count, "succeeded": self.count - bad, "failed": bad}
        assert manifest["counts"] == counts
        for file in manifest["files"]:
            content = self.read(file["name"])
            told = (file["bytes"], file["sha256"], file["lines"])
            digest = hashlib.sha256(content).hexdigest()
            assert told == (len(content), digest, content.count(b"\n"))
        listed = manifest["batches"] or map(json.loads, self.read("batches.jsonl").splitlines())
        assert [entry["first_id"] for entry in listed] == list(everything)
        assert json.loads(self.read("status.json"))["state"] == "completed"


def finish(world, at_once):
    """Answer so many batches every 10 s and visit the job each time, until it is over."""
    answered = 0
    while not world.over:
        world.answer(range(answered, min(answered + at_once, world.count)))
        answered += at_once
        world.visit()
    world.check()


@pytest.mark.parametrize(
    ("size", "at_once"),
    [
        pytest.param(100, 100_000, id="tiny answers-all at once"),
        pytest.param(20_000, 16, id="small answers-a few at a time", marks=pytest.mark.slow),
    ],
)
def test_work_for_batch_does_not_grow_with_job(size, at_once):
    def work(batches):
        world = World(batches, size=size)
        finish(world, at_once)
        return {name: made / batches for name, made in world.calls.made.items()}

    few, many = work(1_100), work(4_400)

    assert many["items read"] < 12
    assert many["s3.get_object"] < 2
    most_copied = segments.MIN_COPY_BYTES / segments.MIN_STEP_BATCHES
    assert many.pop("bytes read") < 3 * size + 200 + most_copied
    for name, made in many.items():
        assert made < 1.2 * few[name] + 0.001, name


def test_late_batch_costs_others_little():
    world = World(1_500)
    world.answer(range(1, 1_500))
    for _ in range(10):
        world.visit()
    assert world.calls.made["items read"] <= 10 * 100

    world.answer([0])
    while not world.over:
        world.visit()
    world.check()


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(segments, "MIN_COPY_BYTES", 500)
    monkeypatch.setattr("simulation.services.s3.MIN_PART_BYTES", 1)
    monkeypatch.setattr(segments, "MIN_STEP_BATCHES", 3)
    monkeypatch.setattr(segments, "MAX_STEP_BATCHES", 5)


def test_short_visit_does_a_step(small_steps):
    world, visits = World(60), 0
    world.answer(range(60))
    while not world.over:
        looks = iter([50.0] * 3)
        world.visit(lambda looks=looks: next(looks, 0.0))
        visits += 1
        assert visits < 30

    assert visits > 5
    world.check()


def test_dying_visit_loses_and_doubles_nothing(monkeypatch, small_steps):
    monkeypatch.setattr(end, "MANIFEST_BATCHES", 10)

    def run(dies_after):
        world = World(24)
        world.calls.dies_after = dies_after
        world.answer(range(10))
        while not world.over:
            try:
                world.visit()
            except DiedError:
                world.kernel.now += 200  # its lease ends
            world.answer(range(10, 24))
        world.check()
        return world.calls.writes

    for dies_after in range(1, run(0) + 1):
        run(dies_after)


def test_removed_multipart_upload_is_restarted(small_steps):
    world = World(60)
    world.calls.dies_at = "s3.upload_part_copy"
    with pytest.raises(DiedError):
        finish(world, 20)
    world.calls.dies_at = ""
    assert world.s3._uploads
    world.s3._uploads.clear()
    world.kernel.now += 200  # its lease ends

    while not world.over:
        world.visit()
    world.check()


@pytest.mark.parametrize("harm", ["missing", "overlap", "lines"])
def test_untiled_batches_never_finish(harm):
    world = World(50)
    world.answer(range(50))
    held = world.ledger.batch(JOB, "00000020")
    if harm == "missing":
        key = {"pk": {"S": f"JOB#{JOB}"}, "sk": {"S": "BATCH#00000049"}}
        world.dynamodb.delete_item(TableName=TABLE, Key=key)
    elif harm == "overlap":
        world.put(replace(held, records=replace(held.records, first_id=19)))
    else:
        world.put(replace(held, part=replace(held.part, succeeded=2)))

    for _ in range(3):
        with pytest.raises(InvariantError):
            world.visit()
        world.kernel.now += 200

    assert f"{FOLDER}/manifest.json" not in world.s3.objects


def test_ten_thousand_pieces_hold_four_terabytes():
    joined = [
        segments._grown(segments.SEGMENT_BYTES, ResultFileProgress(segments=n))
        for n in range(10_000)
    ]
    assert sum(joined) > 3.9e12
    assert max(joined) <= 1 << 30
    assert segments.SEGMENT_BYTES % BLOCK_BYTES == 0
