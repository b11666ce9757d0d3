"""The join for formats that keep records as written: retry lines are as the user wrote them.

Pure: no S3, no ledger. Native records without defaults are joined in `functions.poll.join`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dropbatch.core.formats.base import Outcome, escape_line_breaks, is_retried
from dropbatch.core.read.index import NO_REFERENCE, RecordEntry
from dropbatch.core.read.lines import without_lone_surrogates
from dropbatch.core.read.records import LONE_SURROGATE
from functions.poll.join import (
    MAX_ERROR_CHARACTERS,
    Answered,
    Failure,
    answered_line,
    error_line,
    failed_line,
)
from shared.staged_batch import original_spans

LARGE_RESULT_BYTES, MAX_PARTS = 1 << 20, 500_000
"""Results from this size on are converted only with so few parts: each may take 200 bytes."""
TOO_MANY_PARTS = (
    "rejected",
    f"Its answer has more than {MAX_PARTS:,} parts, too many for this format.",
)


@dataclass(frozen=True, slots=True)
class Originals:
    """A batch's records as the user wrote them."""

    content: bytes  # all that are kept, one after another
    describe: Callable[[bytes], bytes]  # returns a record as JSON on one line, for `errors.jsonl`.


def join_originals(
    batch: Answered, originals: Originals, write: Callable[[Outcome], bytes] | None
) -> Iterator[bytes | Failure]:
    """One output line for each record, in order; a failed record has more lines."""
    place = -1
    for index, (start, length) in enumerate(original_spans(batch.rows)):
        row, id_ = batch.rows[index], batch.first_id + index
        record = originals.content[start : start + length]
        if row.code:
            code, message = row.code, row.message
        else:
            place += 1
            item = batch.answers.items.get(place) if batch.answers else None
            result = None if item is None else batch.result_of(item)
            if item is not None and result is not None:
                if write is None:
                    yield answered_line(id_, escape_line_breaks(row.reference), item, result)
                    continue
                if _is_convertible(result):
                    yield write(Outcome(id_, row.reference, record, result))
                    continue
            code, message = TOO_MANY_PARTS if result is not None else batch.why_failed(place)
        message = message[:MAX_ERROR_CHARACTERS]
        native = failed_line(id_, row, code, message)
        readable = record
        if row.code == LONE_SURROGATE and row.request != NO_REFERENCE:
            readable = without_lone_surrogates(record)
        output = (
            write(Outcome(id_, row.reference, readable, None, code, message)) if write else native
        )
        retry = record + b"\n" if record and is_retried(code, row.request) else b""
        yield Failure(
            output, error_line(native, row, _request(row, record, originals)), retry, code
        )


def _is_convertible(result: bytes) -> bool:
    """Whether a result can be decoded in little memory."""
    return (
        len(result) < LARGE_RESULT_BYTES or sum(map(result.count, (b"{", b"[", b","))) <= MAX_PARTS
    )


def _request(row: RecordEntry, record: bytes, originals: Originals) -> bytes:
    """A record's request as it is in `errors.jsonl`."""
    return (
        originals.describe(record) if row.request == NO_REFERENCE and record else bytes(row.request)
    )
