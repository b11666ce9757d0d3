"""Whole result files of an upload, as the functions write them, without AWS.

Cut, answered, collected.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from dropbatch.core.formats.table import FORMATS, Form, file_names, reader_of
from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read.cut import read_batches
from functions.poll.collect import StoredReply, collect
from shared import keys
from shared.models import Batch, BatchState, Job, Records, Upload
from shared.staged_batch import encode_index
from shared.workers_ai.results import parse_answer
from tests.support.converted import target_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

JOB = "20261121T093000Z-5f3a9c1e"


class ResultFiles(NamedTuple):
    """The content of an upload's result files."""

    output: bytes
    errors: bytes
    retry: bytes


def result_files(
    format_: str, header: bytes, content: bytes, model: str, answer: Callable[[Any], Any]
) -> ResultFiles:
    """What a job of one upload leaves.

    Args:
        format_: the upload's.
        header: a table's first row, without line end; empty for others.
        content: the records.
        model: the job's.
        answer: the members of the item that answers a request.
    """
    form, is_table = Form(format_, header), FORMATS[format_].is_table
    shape = "rows" if is_table else "jsonl"
    delimiter, converts = FORMATS[format_].delimiter.decode(), format_ != "native"
    plan = SplitPlan(
        model,
        500,
        9_500_000,
        "a",
        shape,
        "plain",
        format=format_,
        converts=converts,
        delimiter=delimiter,
    )
    job = Job(
        job_id=JOB,
        state=JobState.IN_PROGRESS,
        upload=Upload("b", "inbox/a", "v", "e", 1),
        plan=plan,
        created_at=0.0,
        lease_until=1.0,
    )
    reader = reader_of(form, target_of(model)) if plan.converts else None
    store = _Store({keys.header(JOB): header})
    services: Any = SimpleNamespace(
        store=store, ledger=SimpleNamespace(finish_batch=lambda batch, *_: batch), now=lambda: 0.0
    )
    for cut in read_batches(plan, Checkpoint(line=int(is_table)), 0, [content], reader):
        batch = Batch(
            job_id=JOB,
            number=f"{len(store.parts):08d}",
            state=BatchState.QUEUED,
            records=Records(
                first_id=cut.first_id,
                requests=len(cut.rows),
                sendable=cut.sendable,
                body_size=len(cut.body),
                originals_size=len(cut.originals),
            ),
            created_at=0.0,
            given_up=3,  # It is submitted no more, whatever fails.
        )
        store.objects[keys.staged(JOB, batch.number)] = (
            cut.body + cut.originals + encode_index(cut.rows)
        )
        requests = json.loads(cut.body)["requests"] if cut.body else []
        items = [
            {"id": id_, "external_reference": one.get("external_reference"), **answer(one)}
            for id_, one in enumerate(requests)
        ]
        reply = parse_answer(json.dumps({"responses": items}, ensure_ascii=False).encode())
        assert collect(services, job, batch, StoredReply("reply", reply))
    names = file_names(form, "inbox/a")
    openings = (names.output_opening, b"", names.retry_opening if is_table else b"")
    return ResultFiles(
        *(first + b"".join(part[at] for part in store.parts) for at, first in enumerate(openings))
    )


class _Store:
    """Staged objects to read, and parts to write."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.parts: list[tuple[bytes, ...]] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self.objects[key][start : None if length is None else start + length]

    def put_if_absent(self, _key: str, spool: IO[bytes], metadata: dict[str, str]) -> bool:
        sizes = json.loads(metadata["part"])
        self.parts.append(tuple(spool.read(sizes[name]) for name in ("output", "errors", "retry")))
        return True
