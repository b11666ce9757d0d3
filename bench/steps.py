"""The measured steps: the product's own, and floors that no step can be faster than.

The product's steps are its own functions, from one local file to another, without the cost of S3. A
floor is the fastest way known to the same bytes from an input in which nothing is wrong or unusual,
with the same well-kept reader.
"""

import mmap
import re
import tempfile
from collections import deque
from collections.abc import Iterator
from http import HTTPStatus
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import msgspec

from bench.inputs import MODEL
from dropbatch.core.names import JobState
from dropbatch.core.plan import FIRST_BATCH_RECORDS, Checkpoint, SplitPlan, StackLimits
from dropbatch.core.read.cut import RANGE_BYTES, read_batches
from dropbatch.core.read.index import RecordIndex
from dropbatch.core.read.inputs import Request
from functions.poll.collect import StoredReply, collect
from shared.models import Batch, BatchState, Job, Records, Upload
from shared.observability import metrics
from shared.staged_batch import StagedInfo, encode_index
from shared.workers_ai.replies import parse_reply
from shared.workers_ai.results import Answer

MAX_RECORDS, MAX_BYTES = StackLimits().max_requests, StackLimits().max_bytes

LINES_TOGETHER = 64
_read_object = msgspec.json.Decoder(Request).decode


class _Item(msgspec.Struct, gc=False):
    id: int
    external_reference: msgspec.Raw
    success: bool
    result: msgspec.Raw


class _Items(msgspec.Struct):
    responses: list[_Item]


class _Envelope(msgspec.Struct):
    result: _Items


_read_items = msgspec.json.Decoder(_Envelope).decode
_LINE = b'{"id":%d,"external_reference":%b,"success":true,"result":%b}\n'


def blocks(path: Path) -> Iterator[bytes]:
    """A file in blocks of the size that split reads from uploads."""
    with path.open("rb", buffering=0) as file:
        for _ in range(0, path.stat().st_size, RANGE_BYTES):
            yield file.read(RANGE_BYTES)


def anonymous() -> float:
    """Anonymous memory of this process in MB, from /proc; 0 where there is no /proc."""
    status = Path("/proc/self/status")
    found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def split(upload: Path, output: IO[bytes], model: str = MODEL) -> int:
    """The product's split: cut, and write each batch's staged object; return how many."""
    plan = SplitPlan(
        model,
        MAX_RECORDS,
        MAX_BYTES,
        "account",
        "jsonl",
        "plain",
        first_requests=FIRST_BATCH_RECORDS,
    )
    batches = 0
    for piece in read_batches(plan, Checkpoint(), 0, blocks(upload)):
        assert StagedInfo.of_cut(piece).metadata()
        output.write(piece.body + encode_index(piece.rows))
        batches += 1
    return batches


def split_floor(upload: Path, output: IO[bytes]) -> None:
    """Read JSON Lines, check every line by a reader that skips values, write the same bytes."""
    rest = b""
    for block in blocks(upload):
        *lines, rest = (rest + block).split(b"\n")
        deque(map(_read_object, lines), maxlen=0)
        output.write(block)


class Collected:
    """Services for `collect` without AWS: an index to read, and a part to write."""

    def __init__(self, count: int) -> None:
        rows = RecordIndex()
        rows.extend(
            [1_000] * count, 1, [msgspec.Raw(b'"row-%d"' % number) for number in range(count)]
        )
        self.index = encode_index(rows)
        upload = Upload("bucket", "inbox/file.jsonl", "version", "etag", 1)
        plan = SplitPlan(MODEL, MAX_RECORDS, MAX_BYTES, "account", form="jsonl", packing="plain")
        self.job = Job(
            job_id="20261121T093000Z-5f3a9c1e",
            state=JobState.IN_PROGRESS,
            upload=upload,
            plan=plan,
            created_at=0.0,
        )
        self.batch = Batch(
            job_id=self.job.job_id,
            number="00000000",
            state=BatchState.QUEUED,
            records=Records(first_id=0, requests=count, sendable=count, body_size=0),
            created_at=0.0,
        )
        self.part_size = 0
        self.anonymous = 0.0
        self.services: Any = SimpleNamespace(
            store=SimpleNamespace(get=lambda *_: self.index, put_if_absent=self._put_if_absent),
            ledger=SimpleNamespace(finish_batch=lambda batch, *_: batch),
            now=lambda: 0.0,
        )

    def _put_if_absent(self, _key: str, spool: IO[bytes], _metadata: dict[str, str]) -> bool:
        self.part_size = spool.seek(0, 2)
        self.anonymous = anonymous()  # the answers are still in memory
        return True

    def collect(self, reply: Path) -> None:
        """The product's collect: parse the mapped reply, join its items, spool the part."""
        with reply.open("rb") as file:
            body = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        answer = parse_reply(HTTPStatus.OK, None, body, submitting=False)
        assert isinstance(answer, Answer)
        assert collect(self.services, self.job, self.batch, StoredReply("staging/reply", answer))
        assert self.part_size > 0
        metrics.clear_metrics()


def collect_floor(reply: Path) -> None:
    """Write the lines of a reply in which nothing is unusual: locate items, order them by id."""
    with reply.open("rb") as file, tempfile.TemporaryFile() as spool:
        body = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        items = sorted(_read_items(body).result.responses, key=attrgetter("id"))
        for begin in range(0, len(items), LINES_TOGETHER):
            some = items[begin : begin + LINES_TOGETHER]
            spool.write(
                b"".join([_LINE % (one.id, one.external_reference, one.result) for one in some])
            )
