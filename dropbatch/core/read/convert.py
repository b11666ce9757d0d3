"""The cut for formats whose records are not sent as written.

Each is converted, and kept as the user wrote it.

As in `dropbatch.core.read.cut`, where a cut falls depends only on the bytes, the plan, the
batch's number and the job's pinned options, so every run cuts the same way. Pure: no S3, no ledger,
no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import (
    API_BODY_LIMIT,
    UNREADABLE_CODES,
    RecordFault,
    compact,
    one_line,
)
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.plan import Checkpoint, body_room, max_records
from dropbatch.core.read.cut import (
    LONE_SURROGATE,
    MAX_BLANK_BYTES,
    Cut,
    beginning_of,
    excerpt_json,
    located,
    too_large,
    validate_record,
)
from dropbatch.core.read.form import whole_members
from dropbatch.core.read.index import (
    NO_REFERENCE,
    WRAPPER_BYTES,
    RecordIndex,
    UnsendableRecord,
    build_body,
)
from dropbatch.core.read.inputs import Inputs
from dropbatch.core.read.lines import LINE_SPACE, elements, lines, without_lone_surrogates
from dropbatch.core.read.rows import (
    EXCERPT_BYTES,
    OverlongRecord,
    RecordWindow,
    read_rows,
    whole_fields,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import msgspec

    from dropbatch.core.formats.base import Reader
    from dropbatch.core.plan import SplitPlan


class _Record(NamedTuple):
    """One record, validated and converted.

    Attributes:
        request: as it is sent; empty for one that cannot be sent.
        original: as it was written; empty if it is not kept.
        reference: its reference as JSON.
        line: 1-based; None in a document.
        begin: where it begins.
        end: where the next one begins.
        fault: why it cannot be sent.
    """

    request: bytes
    original: bytes
    reference: msgspec.Raw
    line: int | None
    begin: Checkpoint
    end: Checkpoint
    fault: UnsendableRecord | None = None

    @property
    def weight(self) -> int:
        """Bytes that it counts towards the limit of a body."""
        return len(memoryview(self.fault.request)) if self.fault else len(self.request)


@dataclass(slots=True)
class _Batch:
    """Records gathered for the next batch."""

    rows: RecordIndex = field(default_factory=RecordIndex)
    requests: list[bytes] = field(default_factory=list)
    originals: list[bytes] = field(default_factory=list)
    size: int = 0
    originals_size: int = 0

    def add(self, record: _Record) -> None:
        self.size += record.weight + 1
        self.originals_size += len(record.original)
        self.originals.append(record.original)
        if record.fault:
            self.rows.add_unsendable(
                record.line, record.fault, record.reference, len(record.original)
            )
        else:
            self.requests.append(record.request)
            self.rows.extend(
                [len(record.request)], record.line, [record.reference], len(record.original)
            )

    def cut(self, first_id: int, end: Checkpoint) -> Cut:
        body = build_body(self.requests)
        return Cut(first_id, self.rows, body, len(self.requests), end, b"".join(self.originals))


def cut_converted(
    plan: SplitPlan, start: Checkpoint, number: int, blocks: Iterable[bytes], reader: Reader
) -> Iterator[Cut | Checkpoint]:
    """Cut an upload's records into batches, each converted by its format's reader.

    Places as `cut` yields them.

    Args:
        plan: form, format and limits.
        start: where to continue; the stream begins at its offset.
        number: of the first batch that is cut.
        blocks: unpacked bytes.
        reader: converts records.

    Raises:
        UploadRefused: `broken_document`, after the records before the damage have been yielded.
    """
    first_id, end, batch = start.record, start, _Batch()
    problem: UploadRefused | None = None
    try:
        for record in _records(plan, start, blocks, reader):
            place = record if isinstance(record, Checkpoint) else record.begin
            if place.offset - end.offset >= MAX_BLANK_BYTES:
                if len(batch.rows):
                    yield batch.cut(first_id, end)
                    first_id, batch, number = end.record, _Batch(), number + 1
                end = place
                yield end
            if isinstance(record, Checkpoint):
                continue
            is_full = len(batch.rows) == max_records(plan, number)
            room = body_room(plan, number)
            too_many_bytes = (
                batch.size + record.weight + 1 > room
                or batch.originals_size + len(record.original) > plan.max_bytes
            )
            # a record larger than both has a batch to itself
            if len(batch.rows) and (is_full or too_many_bytes):
                yield batch.cut(first_id, end)
                first_id, batch, number = end.record, _Batch(), number + 1
            batch.add(record)
            end = record.end
    except UploadRefused as error:
        problem = error
    if len(batch.rows):
        yield batch.cut(first_id, end)
    if problem:
        raise problem


# ── records, several at a time ────────────────────────────────────────────────────────────────────


def windows(plan: SplitPlan, start: Checkpoint, blocks: Iterable[bytes]) -> Iterator[RecordWindow]:
    """An upload's records, several at a time, not validated yet; any form.

    Raises:
        UploadRefused: `broken_document`, after the records before the damage.
    """
    if plan.is_table:
        yield from read_rows(blocks, plan.delimiter.encode(), start.line)
    elif plan.is_document:
        for window in elements(plan.form, blocks, start.record):
            # A document is read whole.
            yield RecordWindow(window.records, *([[0] * len(window.records)] * 2))
    else:
        for window in lines(blocks):
            if window.blank_bytes:
                yield RecordWindow([b""], [window.blank_bytes], [window.blank_lines])
                continue
            yield RecordWindow(
                window.records, [len(one) + 1 for one in window.records], [1] * len(window.records)
            )


def _records(
    plan: SplitPlan, start: Checkpoint, blocks: Iterable[bytes], reader: Reader
) -> Iterator[_Record | Checkpoint]:
    """The records, and places after windows of blank lines."""
    judge = (
        validate_json
        if FORMATS[plan.format].is_json
        else validate_row
        if plan.is_table
        else validate_line
    )
    inputs = Inputs(plan.known_model)
    place = start
    for window in windows(plan, start, blocks):
        judged: list[bytes | UnsendableRecord | None] = []
        line = place.line
        for raw, taken in zip(window.records, window.lines, strict=True):
            judged.append(judge(raw, None if plan.is_document else line + 1))
            line += taken
        converted = iter(reader.convert([one for one in judged if isinstance(one, bytes)]))
        for raw, one, step, taken in zip(
            window.records, judged, window.steps, window.lines, strict=True
        ):
            line_number = None if plan.is_document else place.line + 1
            end = Checkpoint(
                place.offset + step, place.line + taken, place.record + (one is not None)
            )
            if isinstance(one, UnsendableRecord):
                kept, readable = _kept(plan, one, raw)
                reference = (
                    _normal(reader.convert([readable])[0].reference) if kept else NO_REFERENCE
                )
                yield _Record(b"", kept, reference, line_number, place, end, one)
            elif one is not None:
                yield _converted(plan, inputs, next(converted), one, line_number, place, end)
            place = end
        if judged == [None]:
            yield place


def _kept(
    plan: SplitPlan, fault: UnsendableRecord, raw: bytes | OverlongRecord
) -> tuple[bytes, bytes]:
    """What is kept of a record that cannot be sent, and the same as a reader can read it.

    Of one that is too large: the members, or a row's fields, that are whole in its beginning.
    """
    if fault.code == LONE_SURROGATE and isinstance(raw, bytes):
        return one_line(raw.removesuffix(b"\r")), without_lone_surrogates(raw)
    found = b""
    if fault.code == "too_large" and plan.is_table:
        beginning = raw.beginning if isinstance(raw, OverlongRecord) else raw[:EXCERPT_BYTES]
        found = whole_fields(beginning, plan.delimiter.encode())
    elif fault.code == "too_large" and FORMATS[plan.format].is_json:
        found = whole_members(beginning_of(raw))
    return found, found


def _converted(
    plan: SplitPlan,
    inputs: Inputs | None,
    found: tuple[bytes, msgspec.Raw] | RecordFault,
    raw: bytes,
    line: int | None,
    begin: Checkpoint,
    end: Checkpoint,
) -> _Record:
    if isinstance(found, RecordFault):
        request = excerpt_json(raw) if found.code in UNREADABLE_CODES else NO_REFERENCE
        fault = UnsendableRecord(found.code, located(line, found.message), request)
        return _Record(b"", raw, _normal(found.reference), line, begin, end, fault)
    sent, reference = found
    if inputs and (wrong := inputs.fault(sent)):
        fault = UnsendableRecord(wrong.code, located(line, wrong.message), NO_REFERENCE)
        return _Record(b"", raw, _normal(reference), line, begin, end, fault)
    if len(sent) >= API_BODY_LIMIT - WRAPPER_BYTES:
        fault = too_large(len(sent), line, excerpt_json(raw))
        return _Record(b"", _kept(plan, fault, raw)[0], _normal(reference), line, begin, end, fault)
    return _Record(sent, raw, _normal(reference), line, begin, end)


def _normal(reference: msgspec.Raw) -> msgspec.Raw:
    """The reference; for a record without one, the exact object that the index leaves out."""
    return NO_REFERENCE if reference == NO_REFERENCE else reference


# ── what a reader accepts ─────────────────────────────────────────────────────────────────────────


def validate_json(raw: bytes | OverlongRecord, line: int | None) -> bytes | UnsendableRecord | None:
    """A JSON object as it was written, on one line, or why it is not one; None for a blank line."""
    judged = validate_record(raw, line)
    if judged is None or isinstance(judged, UnsendableRecord):
        return judged
    return compact(judged.raw) if line is None else judged.raw


def validate_row(raw: bytes | OverlongRecord, line: int | None) -> bytes | UnsendableRecord | None:
    """A table's row as it was written; None for an empty line."""
    if isinstance(raw, OverlongRecord):
        return too_large(len(raw), line, excerpt_json(raw.beginning))
    return raw or None


def validate_line(raw: bytes | OverlongRecord, line: int | None) -> bytes | UnsendableRecord | None:
    """A line of text as it was written; None for a blank one."""
    if isinstance(raw, OverlongRecord):
        return too_large(len(raw), line, excerpt_json(raw.beginning)) if raw.beginning else None
    return raw.removesuffix(b"\r") if raw.strip(LINE_SPACE) else None
