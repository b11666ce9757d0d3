"""Answers of a job that still runs: the parts of the batches that are done, from the ledger and the bucket.

A batch that is done never changes, and its part holds the lines that the output will have. The ledger tells which are
done; spans of records that were handed out are not read again, so a call costs what is new and what is outstanding.
Records that were never sent have no part: once the job is over, all that is missing is read from the output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from dropbatch.client import aws
from dropbatch.client.results.downloads import blocks_of
from dropbatch.client.results.handed_out import HandedOut, Span
from dropbatch.client.results.reading import (
    DEFAULT_FORMAT,
    MAX_ROW_BYTES,
    Failure,
    answers_of,
    delimiter_of,
    is_native,
    lines_of,
    matched,
    native_records,
    read_failures,
    table_rows,
)
from dropbatch.client.transfer.objects import blocks
from dropbatch.core import keys
from dropbatch.core.formats.csv_rows import read_rows
from dropbatch.core.formats.registry import FORMATS, Form, file_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dropbatch.client.job_files import JobFiles
    from dropbatch.client.results.reading import Record

ATTRIBUTES = ("number", "state", "first_id", "requests", "part", "plan", "total")
"""What users may see of the ledger's items of a job and its batches; it holds no prompts."""
LONG_SPAN = 500
"""Batches of a span after which the ledger is read on from its end, instead of over it."""


class Piece(NamedTuple):
    """Lines that can be handed out.

    Attributes:
        first: the id of the first record.
        records: how many.
        batch: the number of the batch; empty if they are of several.
        output: the lines, in blocks; read once, and before the next piece is.
        errors: the lines of `errors.jsonl` for them; None if they are in the job's file.
    """

    first: int
    records: int
    batch: str
    output: Iterator[bytes]
    errors: Iterator[bytes] | None


@dataclass
class SoFar:
    """What of a job can be handed out now.

    Attributes:
        job: the job.
        done: what was handed out.
        total: its records; None until the upload has been read to its end.
        format: the job's.
        opening: what the output begins with: a table's header.
        manifest: the job's, if it is over.
    """

    job: JobFiles
    done: HandedOut
    total: int | None = None
    format: str = DEFAULT_FORMAT
    opening: bytes = b""
    manifest: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def pending(self) -> int | None:
        """Records that were not handed out; None if the job's number of records is not known."""
        return None if self.total is None else self.total - self.done.records

    @property
    def output(self) -> dict[str, Any] | None:
        """The output, as the manifest lists it; None if there is none yet."""
        files = self.manifest["files"] if self.manifest else ()
        return next((one for one in files if one["kind"] == "output"), None)

    def pieces(self) -> Iterator[Piece]:
        """What was not handed out, in order."""
        if not self.manifest:
            yield from _done_batches(self.job, self.done)
        elif self.output:
            yield from self._missing(self.output)

    def _missing(self, entry: dict[str, Any]) -> Iterator[Piece]:
        """The gaps, from the output. Where one ends is known of the last; in the others, lines are counted."""
        spans, gaps = self.done.spans, self.done.gaps(entry["lines"])
        at, before = len(self.opening), 0
        for first, end in gaps:
            at += sum(one.size for one in spans if before <= one.first < first)
            stop = entry["bytes"] - sum(one.size for one in spans if one.first > first)
            found = blocks_of(self.job, entry | {"bytes": stop}, at)
            read = Counted(found if (first, end) == gaps[-1] else self._first_lines(found, end - first))
            yield Piece(first, end - first, "", iter(read), None)
            at, before = at + read.size, end

    def _first_lines(self, found: Iterator[bytes], count: int) -> Iterator[bytes]:
        if not FORMATS[self.format].is_table:
            rows: Iterator[bytes] = lines_of(found)
        else:
            windows = read_rows(found, delimiter_of(self.opening), limit=MAX_ROW_BYTES)
            rows = (bytes(row) for window in windows for row in window.records)  # type: ignore[arg-type] # no long rows
        return (row + b"\n" for row in islice(rows, count))


class Counted:
    """Blocks, and how many bytes of them were read."""

    def __init__(self, found: Iterable[bytes]) -> None:
        self._found, self.size = found, 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self._found:
            self.size += len(block)
            yield block


def look(job: JobFiles, done: HandedOut) -> SoFar:
    """See how far a job is.

    Args:
        job: the job.
        done: what of it was handed out.

    Raises:
        NotFound: there is no such job.
        NotPermitted: AWS denied it.
    """
    job.exists()
    item = next(_items(job, "META", "META"), None)
    state = item["state"]["S"] if item else job.status()["state"]
    if state in keys.FINAL_JOB_STATES:
        return _over(job, done)
    if item is None:
        return SoFar(job, done)
    plan = item["plan"]["M"]
    format_ = plan.get("format", {"S": DEFAULT_FORMAT})["S"]
    total = int(item["total"]["N"]) if "total" in item else None
    if not FORMATS[format_].is_table:
        return SoFar(job, done, total, format_)
    header = job.stack.read(keys.header(job.id))
    names = job.stack.read_json(keys.answer_columns(job.id)) if "answers" in plan else None
    form = Form(format_, header or b"", plan.get("delimiter", {"S": ""})["S"], tuple(names or ()))
    opening = file_names(form, keys.INBOX + job.path).output_opening if header else b""
    return SoFar(job, done, total, format_, opening)


def _over(job: JobFiles, done: HandedOut) -> SoFar:
    manifest = job.manifest()
    found = SoFar(job, done, None, manifest["format"] or DEFAULT_FORMAT, b"", manifest)
    if entry := found.output:
        found.total = entry["lines"]
        if FORMATS[found.format].is_table and entry["bytes"]:
            found.opening = next(table_rows(blocks_of(job, entry))) + b"\n"
    else:
        found.total = done.records
    return found


def _done_batches(job: JobFiles, done: HandedOut) -> Iterator[Piece]:
    """The batches of a running job that are done and were not handed out, in order."""
    known = {one.first: one for one in done.spans}
    after = ""
    while True:
        for item in _items(job, f"BATCH#{after}", "BATCH#~"):
            number, first = item["number"]["S"], int(item["first_id"]["N"])
            if number <= after:
                continue
            after = number
            if span := known.get(first):
                after = span.last_batch
                if int(after[:8]) - int(number[:8]) > LONG_SPAN:
                    break
            elif item["state"]["S"] == "done" and (part := item.get("part", {"M": {}})["M"]) and part["key"]["S"]:
                yield _piece(job, number, first, int(item["requests"]["N"]), part)
        else:
            return


def _piece(job: JobFiles, number: str, first: int, records: int, part: Mapping[str, Any]) -> Piece:
    place = {"Bucket": job.stack.bucket, "Key": part["key"]["S"]}
    size, errors = (int(part[name]["N"]) for name in ("output", "errors"))
    output = blocks(job.stack.s3, place, size)
    return Piece(first, records, number, output, blocks(job.stack.s3, place, size + errors, size))


def _items(job: JobFiles, first: str, last: str) -> Iterator[dict[str, Any]]:
    """Items of the ledger, as DynamoDB writes them."""
    wanted: dict[str, Any] = {
        "TableName": job.stack.outputs["TableName"],
        "KeyConditionExpression": "pk = :pk AND sk BETWEEN :first AND :last",
        "ExpressionAttributeValues": {":pk": {"S": f"JOB#{job.id}"}, ":first": {"S": first}, ":last": {"S": last}},
        "ProjectionExpression": ", ".join(f"#{name}" for name in ATTRIBUTES),
        "ExpressionAttributeNames": {f"#{name}": name for name in ATTRIBUTES},
        "Select": "SPECIFIC_ATTRIBUTES",
        "ConsistentRead": True,
    }
    while True:
        with aws.explained():
            page = job.stack.service("dynamodb").query(**wanted)
        yield from page["Items"]
        if "LastEvaluatedKey" not in page:
            return
        wanted["ExclusiveStartKey"] = page["LastEvaluatedKey"]


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def new_records(found: SoFar) -> Iterator[Record]:
    """The records that can be handed out now, in input order; each is noted when it is taken."""
    done, failures = found.done, _Failures(found)
    for piece in found.pieces():
        read = Counted(piece.output)
        for record in _records(found, piece, read, failures):
            if any(first <= record.id < end for first, end in done.begun):
                continue
            try:
                yield record
            except GeneratorExit:
                done.begun.append((piece.first, record.id + 1))
                raise
        done.add([Span(piece.first, piece.first + piece.records, read.size, piece.batch)])


class _Failures:
    """The failed records of a job that is over, in order; each is taken once."""

    def __init__(self, found: SoFar) -> None:
        files = found.manifest["files"] if found.manifest else ()
        entry = next((one for one in files if one["kind"] == "errors"), None)
        self._left = read_failures(blocks_of(found.job, entry)) if entry else iter(())
        self._next = None if is_native(found.format) else next(self._left, None)

    def between(self, first: int, end: int) -> Iterator[Failure]:
        """Those with these ids."""
        while self._next and self._next.id < end:
            one, self._next = self._next, next(self._left, None)
            if one.id >= first:
                yield one


def _records(found: SoFar, piece: Piece, output: Iterable[bytes], failures: _Failures) -> Iterator[Record]:
    if is_native(found.format):
        return native_records(output)
    answers = enumerate(answers_of(chain([found.opening], output), found.format), piece.first)
    if piece.errors is None:
        return matched(answers, failures.between(piece.first, piece.first + piece.records))
    return matched(answers, read_failures(piece.errors))
