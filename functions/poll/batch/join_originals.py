"""The join for formats that keep records as written: lines in the upload's format, retry lines as the user wrote them.

Pure: no S3, no ledger. Native records without defaults are joined in `functions.poll.batch.join`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropbatch.formats.base import NOT_RETRIED, Outcome
from dropbatch.records.index import NO_REFERENCE
from functions.poll.batch.join import (
    MAX_ERROR_CHARACTERS,
    Failure,
    answered_line,
    error_line,
    failed_line,
    result_of,
    why_failed,
)
from shared.staged_batch import original_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropbatch.formats.base import BatchFacts, Writer
    from dropbatch.records.index import RecordEntry, RecordIndex
    from functions.poll.batch.join import Answers


@dataclass(frozen=True, slots=True)
class Originals:
    """A batch's records as the user wrote them.

    Attributes:
        content: all that are kept, one after another.
        describe: returns a record as JSON on one line, for `errors.jsonl`.
    """

    content: bytes
    describe: Callable[[bytes], bytes]


def join_originals(
    rows: RecordIndex,
    first_id: int,
    answers: Answers | None,
    ending: tuple[str, str] | None,
    originals: Originals,
    writer: Writer | None,
    facts: BatchFacts,
) -> Iterator[bytes | Failure]:
    """One output line for each record, in order; a failed record has more lines.

    Args:
        rows: the batch's index.
        first_id: id of the first record.
        answers: what the API answered; None if no answer will come.
        ending: code and message for records without an answer.
        originals: the records as written.
        writer: makes the output lines; None if they are those of the native format.
        facts: what output lines contain about the batch.
    """
    place = -1
    for index, (start, length) in enumerate(original_spans(rows)):
        row, id_ = rows[index], first_id + index
        record = originals.content[start : start + length]
        if row.code:
            code, message = row.code, row.message
        else:
            place += 1
            item = answers.items.get(place) if answers else None
            if item is not None and (result := result_of(item)) is not None:
                if writer:
                    yield writer.line(facts, Outcome(id_, row.reference, record, result))
                else:
                    yield answered_line(id_, row.reference, item, result)
                continue
            code, message = why_failed(answers, place, ending)
        message = message[:MAX_ERROR_CHARACTERS]
        native = failed_line(id_, row, code, message)
        output = writer.line(facts, Outcome(id_, row.reference, record, None, code, message)) if writer else native
        retry = record + b"\n" if record and code not in NOT_RETRIED else b""
        yield Failure(output, error_line(native, row, _request(row, record, originals)), retry, code)


def _request(row: RecordEntry, record: bytes, originals: Originals) -> bytes:
    """A record's request as it is in `errors.jsonl`."""
    return originals.describe(record) if row.request == NO_REFERENCE and record else bytes(row.request)
