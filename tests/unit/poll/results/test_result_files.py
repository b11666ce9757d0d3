"""Finishing jobs of very many batches.

The same work for each batch in a job of any size, whoever dies wherever.

The ledger and the store are doubles of these very modules' classes that count what they are asked
for: with moto a thousand batches take a minute. `tests/journeys/results/test_visit_job.py` has the
same path on S3's and DynamoDB's own rules.
"""

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
from functions.poll import visit as finish
from shared.aws.object_store import BLOCK_BYTES, MultipartPart, ObjectInfo, ObjectStore
from shared.errors import InvariantError, ObjectNotFoundError
from shared.models import Batch, BatchState, Job, Part, Pending, Records, Submission, Upload
from tests.support.doubles.visited_jobs import Watched

JOB = "20261121T093000Z-0000000a"
FOLDER = f"results/a.jsonl/{JOB}"
MINIMUM = 5 << 20
CHANGES = ("write", "put", "copy", "join")


class DiedError(BaseException):
    """The process is gone: nothing in it may catch this."""


class Calls:
    """Counts calls; after one that changes something the process dies."""

    def __init__(self):
        self.made, self.dies_after = Counter(), 0

    def __call__(self, name, effect=lambda: None):
        answer = effect()
        self.made[name] += 1
        if name in CHANGES and self.changes == self.dies_after:
            raise DiedError
        return answer

    @property
    def changes(self):
        return sum(self.made[name] for name in CHANGES)


class Ledger:
    """One job and its batches; queries count by what they read."""

    def __init__(self, job, batches, calls):
        self.held, self.leaves, self.calls = job, batches, calls

    def job(self, job_id):
        return self.calls("read", lambda: self.held)

    def batches(self, job_id, after="", page_size=100):
        names = sorted(self.leaves)
        behind = [name for name in names if name > after]
        for page in _pages(behind, page_size):
            self.calls("query")
            self.calls.made["item read"] += len(page)
            yield from (self.leaves[name] for name in page)

    def lease_job(self, job, now, until):
        return (
            self._write(job, lease_until=until, claims=job.claims + 1)
            if job.lease_until <= now
            else None
        )

    def release_job(self, job, due_at, _work=None, **learned):
        return self._write(job, lease_until=0.0, due_at=due_at, claims=0, **learned)

    def note_appended(self, job, changes):
        return self.update_leased_job(job, changes)

    def update_leased_job(self, job, changes):
        return self._write(job, **changes)

    def begin_finalizing(self, job):
        return self._write(job, state=JobState.FINALIZING)

    def end_job(self, job, state, now, clean_at):
        return self._write(job, state=state, completed_at=now)

    def _write(self, job, **changes):
        def effect():
            if (job.state, job.lease_until) != (self.held.state, self.held.lease_until):
                return None
            self.held = replace(self.held, **changes)
            return self.held

        return self.calls("write", effect)


def _pages(names, size):
    return [names[start : start + size] for start in range(0, len(names), size)]


class Objects(ObjectStore):
    """Objects in memory, with S3's rules for pieces: 5 MiB of each but the last, 10,000 at most."""

    def __init__(self, calls):
        self.bucket, self.calls, self.held, self.uploads = "bucket", calls, {}, {}

    def head(self, key, version=""):
        def effect():
            body, metadata = self.held.get(key, (None, None))
            return None if body is None else ObjectInfo(len(body), "", "", None, metadata)

        return self.calls("head", effect)

    def get(self, key, start=0, length=None):
        self.calls.made["bytes read"] += length
        return self.calls("get", lambda: self.held[key][0][start : start + length])

    def put_if_absent(self, key, body, metadata=None, kind=""):
        def effect():
            if key in self.held:
                return False
            self.put_quietly(key, body if isinstance(body, bytes) else body.read(), metadata)
            return True

        return self.calls("put", effect)

    def put(self, key, body, kind=""):
        self.calls("put", lambda: self.put_quietly(key, body, {}))

    def put_quietly(self, key, body, metadata=None):
        self.held[key] = (body, metadata or {})

    def create_multipart_upload(self, key, metadata, kind):
        def effect():
            self.uploads[name := f"upload-{len(self.uploads)}"] = {}
            return name

        return self.calls("join", effect)

    def upload_part_copy(self, key, upload_id, number, source):
        self.calls(
            "copy", lambda: self.uploads[upload_id].__setitem__(number, self.held[source][0])
        )

    def list_parts(self, key, upload_id):
        def effect():
            if upload_id not in self.uploads:
                raise ObjectNotFoundError(upload_id)
            return [
                MultipartPart(number, len(body), str(number))
                for number, body in sorted(self.uploads[upload_id].items())
            ]

        return self.calls("join", effect)

    def complete_multipart_upload(self, key, upload_id, pieces):
        def effect():
            bodies = [self.uploads[upload_id][piece.number] for piece in pieces]
            assert all(len(body) >= MINIMUM for body in bodies[:-1])
            assert len(bodies) <= 10_000
            return self.put_if_absent(key, b"".join(bodies))

        return self.calls("join", effect)


class World:
    """A job, its batches, and the visits that finish it."""

    def __init__(self, count, *, size=100):
        self.calls, self.now, self.size, self.count = Calls(), 1e9, size, count
        upload, plan = (
            Upload("b", "inbox/a.jsonl", "v", "e", 1),
            SplitPlan("@cf/a/b", 1, 1_000, "a", "jsonl", "plain"),
        )
        job = Job(
            job_id=JOB,
            state=JobState.IN_PROGRESS,
            upload=upload,
            plan=plan,
            created_at=self.now,
            due_at=self.now,
            total=count,
        )
        same = {"job_id": JOB, "state": BatchState.QUEUED, "created_at": self.now, "due_at": 2e9}
        numbers = {f"{at:08d}": at for at in range(count)}
        queued = {
            number: Batch(
                number=number,
                records=Records(first_id=at, requests=1, sendable=1, body_size=10),
                **same,
            )
            for number, at in numbers.items()
        }
        self.ledger, self.store = Ledger(job, queued, self.calls), Objects(self.calls)
        self.services = SimpleNamespace(
            ledger=self.ledger,
            store=self.store,
            settings=SimpleNamespace(cloudflare_account_id="a"),
            budget=SimpleNamespace(waits=lambda *_: self.calls("read", list)),
            notices=SimpleNamespace(publish_job_over=lambda manifest, now: self.calls("write")),
            now=lambda: self.now,
        )

    def line(self, number):
        return json.dumps({"id": number, "text": "x" * self.size}).encode() + b"\n"

    def error(self, number):
        return (
            json.dumps({"id": number, "error": {"code": "rejected", "message": "bad"}}).encode()
            + b"\n"
        )

    def is_bad(self, number):
        return number % 40 == 39

    def answer(self, numbers):
        """These batches are done."""
        for number in numbers:
            name, failed = f"{number:08d}", self.is_bad(number)
            output, error = self.line(number), self.error(number) if failed else b""
            part = Part(name, len(output), len(error), 0, 0, int(not failed), int(failed))
            self.store.put_quietly(name, output + error)
            self.ledger.leaves[name] = replace(
                self.ledger.leaves[name],
                state=BatchState.DONE,
                part=part,
                completed_at=self.now,
                due_at=None,
            )

    def visit(self, left=lambda: 150.0):
        self.now += 10
        finish.visit_job(Watched(self.services, self.now + 150, left), JOB)

    @property
    def over(self):
        return self.ledger.held.completed_at is not None

    def check(self):
        """Every line is there, in order, and the manifest tells of what there is."""
        read = lambda name: self.store.held[f"{FOLDER}/{name}"][0]  # noqa: E731
        assert read("output.jsonl") == b"".join(self.line(number) for number in range(self.count))
        bad = [number for number in range(self.count) if self.is_bad(number)]
        assert read("errors.jsonl") == b"".join(self.error(number) for number in bad)
        manifest = json.loads(read("manifest.json"))
        assert manifest["counts"] == {
            "total": self.count,
            "succeeded": self.count - len(bad),
            "failed": len(bad),
        }
        for file in manifest["files"]:
            content = read(file["name"])
            lines = content.count(b"\n")
            told = (file["bytes"], file["sha256"], file["lines"])
            assert told == (len(content), hashlib.sha256(content).hexdigest(), lines)
        listed = manifest["batches"] or [
            json.loads(line) for line in read("batches.jsonl").splitlines()
        ]
        assert [entry["first_id"] for entry in listed] == list(range(self.count))
        assert json.loads(read("status.json"))["state"] == "completed"


def finish_all(world, at_once):
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
        pytest.param(100, 16, id="tiny answers-a few at a time", marks=pytest.mark.slow),
        pytest.param(100, 100_000, id="tiny answers-all at once"),
        pytest.param(20_000, 100_000, id="small answers-all at once", marks=pytest.mark.slow),
        pytest.param(20_000, 16, id="small answers-a few at a time", marks=pytest.mark.slow),
    ],
)
def test_work_for_batch_does_not_grow_with_job(size, at_once):
    def work(count):
        world = World(count, size=size)
        finish_all(world, at_once)
        return {name: made / count for name, made in world.calls.made.items()}

    few, many = work(1_100), work(5_500)

    assert many["item read"] < 12
    assert many["get"] < 2
    assert (
        many.pop("bytes read")
        < 3 * size + 200 + segments.MIN_COPY_BYTES / segments.MIN_STEP_BATCHES
    )
    for name, made in many.items():
        assert made < 1.2 * few[name] + 0.001, name


def test_late_batch_costs_others_little(monkeypatch):
    world = World(3_000)
    world.answer(range(1, 3_000))
    for _ in range(10):
        world.visit()
    assert world.calls.made["item read"] <= 10 * 100

    world.answer([0])
    while not world.over:
        world.visit()
    world.check()


def test_short_visit_does_a_step():
    world = World(2_500, size=30_000)
    world.answer(range(2_500))

    visits = 0
    while not world.over:
        looks = iter([50.0] * 3)
        world.visit(lambda looks=looks: next(looks, 0.0))
        visits += 1
        assert visits < 50

    assert visits > 5
    world.check()


def test_dying_visit_loses_and_doubles_nothing(monkeypatch):
    monkeypatch.setattr(segments, "MIN_STEP_BATCHES", 3)
    monkeypatch.setattr(segments, "MAX_STEP_BATCHES", 5)
    monkeypatch.setattr(segments, "MIN_COPY_BYTES", 500)
    monkeypatch.setattr(end, "MANIFEST_BATCHES", 10)
    monkeypatch.setitem(globals(), "MINIMUM", 1)

    def run(dies_after):
        world = World(42)
        world.calls.dies_after = dies_after
        world.answer(range(10))
        while not world.over:
            try:
                world.visit()
            except DiedError:
                world.now += 200  # its lease ends
            world.answer(range(10, 42))
        world.check()
        return world.calls.changes

    for dies_after in range(1, run(0) + 1):
        run(dies_after)


def test_removed_multipart_upload_is_restarted(monkeypatch):
    monkeypatch.setattr(segments, "MIN_COPY_BYTES", 500)
    monkeypatch.setitem(globals(), "MINIMUM", 1)
    world = World(1_500)
    world.answer(range(1_500))
    while not world.store.uploads:
        looks = iter([50.0] * 4)
        world.visit(lambda looks=looks: next(looks, 0.0))
    world.store.uploads.clear()
    world.store.uploads["other"] = {}

    while not world.over:
        world.visit()

    world.check()


@pytest.mark.parametrize("harm", ["missing", "overlap", "lines"])
def test_untiled_batches_never_finish(harm):
    world = World(50)
    world.answer(range(50))
    if harm == "missing":
        del world.ledger.leaves["00000049"]
    elif harm == "overlap":
        world.ledger.leaves["00000020"] = replace(
            world.ledger.leaves["00000020"],
            records=replace(world.ledger.leaves["00000020"].records, first_id=19),
        )
    else:
        part = replace(world.ledger.leaves["00000020"].part, succeeded=2)
        world.ledger.leaves["00000020"] = replace(world.ledger.leaves["00000020"], part=part)

    for _ in range(3):
        with pytest.raises(InvariantError):
            world.visit()
        world.now += 200

    assert f"{FOLDER}/manifest.json" not in world.store.held


def test_ten_thousand_pieces_hold_four_terabytes():
    joined = [
        segments._grown(segments.SEGMENT_BYTES, replace(World(1).ledger.held.output, segments=n))
        for n in range(10_000)
    ]
    assert sum(joined) > 3.9e12
    assert max(joined) <= 1 << 30
    assert segments.SEGMENT_BYTES % BLOCK_BYTES == 0


def test_status_has_constant_cost():
    """The API has accepted batches one after another; some it works on.

    The first of them has an answer.
    """
    world = World(3_000)
    for number in range(2_000):
        name = f"{number:08d}"
        accepted = Submission(f"id-{number}", 1, 1e9 + number)
        status = "running" if number < 30 else "queued" if number < 60 else ""
        world.ledger.leaves[name] = replace(
            world.ledger.leaves[name], submission=accepted, pending=Pending(1e9, status)
        )
    world.answer([0])
    world.visit()
    status = json.loads(world.store.held[f"{FOLDER}/status.json"][0])

    assert status["pending"] == {
        "batches": 99,
        "queued": 70,
        "running": 29,
        "oldest_since": "2001-09-09T01:46:41Z",
    }
    assert status["splitting"] is None
    assert world.calls.made["item read"] <= 200
