"""`python -m bench.latency`: the throughput of each step at AWS's latencies.

Writes `bench/latency.md`.

Split runs unchanged, on boto3, against a server in another process that replaces S3, DynamoDB and
SQS and answers after the time that they are known to take. It gets the share of a processor that
Lambda gives a function with its memory. The calls of the other steps are counted on moto
(`bench.meter`), and their time is computed from the same latencies.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from bench.cost import grid
from bench.meter import FULL_BATCHES, FULL_RECORDS, FULL_TEXT, measure
from bench.share import Share, memory_of, share_of
from bench.timing import AWS_SECONDS, S3_BYTES_A_SECOND
from dropbatch.core.names import JobState
from dropbatch.core.plan import SplitPlan
from functions.poll.schedule.due_items import THREADS
from functions.poll.schedule.due_polls import BATCHES_PER_MESSAGE
from functions.submit import stage_batches as staging
from functions.submit import stream as reading
from functions.submit.split import split
from functions.submit.turn import take_turn
from local.template import properties
from shared.aws.object_store import ObjectStore
from shared.aws.queues import Queues
from shared.invocation import Invocation
from shared.ledger import Ledger
from shared.ledger.item_keys import job_key
from shared.models import Batch, Job, Upload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from mypy_boto3_dynamodb import DynamoDBClient

WRITTEN = Path(__file__).with_name("latency.md")
MEMORY = memory_of("submit")
"""MB of both functions."""
S3, DYNAMODB, SQS = (AWS_SECONDS[name] for name in ("s3", "dynamodb", "sqs"))
RECORD = 1_024
RANGE = 8 << 20
SECONDS = 20.0
"""Duration of each split."""
SIZES = {"500 records": 500, "5,000 records": 5_000, "9.5 MB": 100_000}
"""Batches of records of 1 KB, by their size."""
TOGETHER = {"submit": 1, "poll": min(BATCHES_PER_MESSAGE, THREADS)}
"""By step: batches that a run handles at the same time."""
WALL = 100
"""Submits a minute within Cloudflare's limit of calls."""


# ── a slow AWS ────────────────────────────────────────────────────────────────────────────────────


class SlowAws(BaseHTTPRequestHandler):
    """Serves any range of an endless upload.

    Accepts any object, item and message, and keeps none. As slow as AWS.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    line = b'{"text":"' + b"w" * (RECORD - 12) + b'"}\n'
    content = line * (RANGE // RECORD)

    def do_GET(self) -> None:
        """Send a range of the upload."""
        begin, end = map(int, re.findall(r"\d+", self.headers["Range"]))
        size = end - begin + 1
        time.sleep(S3)
        self.head(HTTPStatus.PARTIAL_CONTENT, size)
        sent, sending_since = 0, time.monotonic()
        while sent < size:
            at = (begin + sent) % RANGE
            piece = self.content[at : at + min(size - sent, 256 << 10)]
            self.wfile.write(piece)
            sent += len(piece)
            time.sleep(max(sending_since + sent / S3_BYTES_A_SECOND - time.monotonic(), 0.0))

    def do_HEAD(self) -> None:
        """Have no command for the job."""
        time.sleep(S3)
        self.head(HTTPStatus.NOT_FOUND, 0)

    def do_PUT(self) -> None:
        """Accept an object."""
        if self.headers.get("Expect"):
            self.send_response_only(HTTPStatus.CONTINUE)
            self.end_headers()
        size = int(self.headers["Content-Length"])
        began, read = time.monotonic(), 0
        while read < size:
            read += len(self.rfile.read(min(size - read, 256 << 10)))
        time.sleep(max(began + S3 + size / S3_BYTES_A_SECOND - time.monotonic(), 0.0))
        self.head(HTTPStatus.OK, 0)

    def do_POST(self) -> None:
        """Answer a call to DynamoDB or SQS."""
        self.rfile.read(int(self.headers["Content-Length"]))
        service, _, operation = self.headers["X-Amz-Target"].rpartition(".")
        time.sleep(DYNAMODB if service.startswith("DynamoDB") else SQS)
        answer = {
            "Query": {"Items": [], "Count": 0},
            "SendMessageBatch": {"Successful": [], "Failed": []},
        }
        body = json.dumps(answer.get(operation, {})).encode()
        self.head(HTTPStatus.OK, len(body))
        self.wfile.write(body)

    def head(self, status: HTTPStatus, length: int) -> None:
        """Send the status line and the headers of an answer."""
        self.send_response_only(status)
        self.send_header("ETag", '"etag"')
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""


def _serve(port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowAws)
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def serving() -> Iterator[str]:
    """Run the server in its own process, so that its answers cost this one nothing.

    Yield its address.
    """
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs,), daemon=True
    )
    server.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        server.terminate()
        server.join()


# ── split ─────────────────────────────────────────────────────────────────────────────────────────


class OneJob(Ledger):
    """The ledger of one job; every transition succeeds."""

    def __init__(self, client: DynamoDBClient, job: Job) -> None:
        """Keep the job."""
        super().__init__(client, "table")
        self.present, self.created = job, 0

    def _change_job(
        self,
        job_id: str,
        expected: Mapping[str, object],
        changes: Mapping[str, object],
        remove: Sequence[str] = (),
    ) -> Job:
        del expected, remove
        self.call("update_item", Key=job_key(job_id))
        # only in the table
        changes = {name: value for name, value in changes.items() if name != "work"}
        self.present = replace(self.present, **changes)  # type: ignore[arg-type] # The ledger's own members.
        return self.present

    def create_batch(self, batch: Batch) -> Batch | None:
        """Count the batch."""
        self.created += 1
        return super().create_batch(batch)


def split_for(endpoint: str, records: int, *, ahead: bool) -> dict[str, float]:
    """Split an endless upload for some seconds; return batches, seconds and processor seconds."""
    staging.MAX_AHEAD = staging.MAX_AHEAD if ahead else 0
    if not ahead:
        stored = reading.read_stored
        reading.read_stored = lambda store, upload, start=0, _=None: stored(store, upload, start)  # type: ignore[assignment]
    session = boto3.Session("test", "test", region_name="eu-west-1")
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=32)
    s3 = session.client("s3", endpoint_url=endpoint, config=config)
    dynamodb = session.client("dynamodb", endpoint_url=endpoint, config=config)
    sqs = session.client("sqs", endpoint_url=endpoint, config=config)
    upload = Upload("bucket", "inbox/a.jsonl", "version", "etag", 1 << 40)
    plan = SplitPlan("@cf/a/b", records, 9_500_000, "account", "jsonl", "plain")
    job = Job(
        job_id="job",
        state=JobState.SPLITTING,
        upload=upload,
        plan=plan,
        created_at=time.time(),
        due_at=0.0,
    )
    ledger = OneJob(dynamodb, job)
    services: Any = SimpleNamespace(
        store=ObjectStore(s3, "bucket"),
        ledger=ledger,
        queues=Queues(
            sqs, *(f"{endpoint}/{name}" for name in ("upload", "split", "submit", "poll", "visit"))
        ),
        budget=SimpleNamespace(burst=100, slot_seconds=0.3),
        now=time.time,
    )
    began, computed = time.monotonic(), time.process_time()
    take_turn(Invocation(services, time.time() + SECONDS + 30.0), job, split)
    seconds = time.monotonic() - began
    return {"batches": ledger.created, "seconds": seconds, "cpu": time.process_time() - computed}


def measure_split(endpoint: str, records: int, *, ahead: bool, share: float) -> dict[str, float]:
    """Run `split_for` in its own process with a share of a processor.

    Its imports are not measured.
    """
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_child, args=(theirs, endpoint, records, ahead), daemon=True)
    child.start()
    assert ours.recv() == "ready"
    watch = Share(share, lambda: [child.pid or 0])
    watch.start()
    ours.send("go")
    found: dict[str, float] = ours.recv()
    watch.end()
    child.join()
    return found


def _child(port: Connection, endpoint: str, records: int, ahead: bool) -> None:  # noqa: FBT001 - a process's arguments
    port.send("ready")
    port.recv()
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = nowhere
        port.send(split_for(endpoint, records, ahead=ahead))


def split_rows() -> list[list[str]]:
    """A row for each batch size."""
    rows = []
    with serving() as endpoint:
        for name, records in SIZES.items():
            cells = []
            for ahead, share in ((True, share_of(MEMORY)), (False, share_of(MEMORY)), (True, 1.0)):
                found = measure_split(endpoint, records, ahead=ahead, share=share)
                print(name, f"ahead={ahead}", f"share={share:.2f}", found, flush=True)
                a_minute = 60 * found["batches"] / found["seconds"]
                cells.append(f"{a_minute:,.0f}")
                if ahead and share < 1:
                    cells.append(f"{found['cpu'] / found['batches'] * 1_000:.0f} ms")
            rows.append([name, *cells, f"{4 * WALL}"])
    return rows


# ── the other steps ───────────────────────────────────────────────────────────────────────────────


def _concurrency(step: str) -> list[Any]:
    """`Fn::If` of the concurrent runs that a step's queue allows.

    Its condition, with a reservation, and without.
    """
    batches = properties(f"{step.title()}Function")["Events"]["Batches"]["Properties"]
    condition, reserved, runs = batches["ScalingConfig"]["MaximumConcurrency"]["Fn::If"]
    return [condition, reserved["Fn::If"][2] if isinstance(reserved, dict) else reserved, runs]


def other_rows() -> list[list[str]]:
    """A row for each step, computed from its calls: for small batches and for the largest."""
    share = share_of(MEMORY)
    small, large = (measure(batches, 1, 20, 60.0) for batches in (40, 120))
    few, full = (measure(batches, FULL_RECORDS, FULL_TEXT, 60.0) for batches in (1, FULL_BATCHES))
    jobs = (
        ("1 record", small, large, 80),
        (f"{FULL_RECORDS:,} records", few, full, FULL_BATCHES - 1),
    )
    rows = []
    for step, together in TOGETHER.items():
        _, reserved, runs = _concurrency(step)
        for name, one, other, batches in jobs:
            used = {
                key: (other.steps[step][key] - one.steps[step][key]) / batches
                for key in other.steps[step]
            }
            waiting, computing = used["waiting"], used["computing"] / share
            seconds = max(computing, (waiting + computing) / together)
            rows.append(
                [
                    f"{step}, {name}",
                    *(
                        f"{used.get(service, 0.0):.1f}"
                        for service in ("dynamodb", "s3", "sqs", "api")
                    ),
                    f"{waiting:.2f} s",
                    f"{computing:.2f} s",
                    f"{runs}",
                    f"{together}",
                    f"{60 * runs / seconds:,.0f}",
                    f"{reserved}",
                    f"{60 * reserved / seconds:,.0f}",
                    f"{2 * WALL}",
                ]
            )
    return rows


_TEXT = """\
# Throughput of each step at AWS's latencies

Written by `python -m bench.latency`; do not edit. S3 answers after {s3:.0f} ms and moves 80 MB a second on each
connection, DynamoDB answers after {dynamodb:.0f} ms, SQS after {sqs:.0f} ms. A function with {memory} MB has
{share:.2f} of a processor. Cloudflare's call limit leaves room for {wall} submits a minute. The target is four times as
many batches for split, and twice as many for the other steps with a reservation.

## Split

Batches a minute, measured over {seconds:.0f} s each, on boto3 over plain HTTP, where it hashes each body that it sends.
*One after another* is the same code without reading or putting ahead, in the same run.

{split}

## The other steps

Figures for one batch, counted on moto as the difference between two jobs: calls; seconds of waiting for them (parallel
calls count once; Workers AI answers a submit after 1 s, a poll after 0.3 s, or after 0.8 s with an answer); and seconds
of computing on the function's share of a processor. *Runs* are the concurrent invocations that a function's queue
allows, *reserved runs* those with `ReserveConcurrency=yes`. *Batches in a run* are those that one invocation waits for
at the same time; they share its processor.

{others}
"""


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.latency", description=(__doc__ or "").splitlines()[0]
    )
    parser.parse_args()
    split_head = [
        "batches of",
        "several in parallel",
        "computing",
        "one after another",
        "on a whole processor",
        "target",
    ]
    calls = ["DynamoDB", "S3", "SQS", "Workers AI"]
    head = ["step", *calls, "waiting", "computing", "runs", "batches in a run", "batches a minute"]
    head += ["reserved runs", "batches a minute with them", "target"]
    text = _TEXT.format(
        s3=S3 * 1e3,
        dynamodb=DYNAMODB * 1e3,
        sqs=SQS * 1e3,
        memory=MEMORY,
        share=share_of(MEMORY),
        wall=WALL,
        seconds=SECONDS,
        split=grid(split_head, split_rows()),
        others=grid(head, other_rows()),
    )
    print(text)
    WRITTEN.write_text(text)


if __name__ == "__main__":
    main()
