"""The cut: a stream of unpacked bytes becomes batches of records that are sent as the user wrote them.

Bytes are spliced: a record is decoded once to validate it, then passed on unchanged. Where a cut falls depends only on
the bytes, the plan and the batch's number, so every run cuts the same way. Nothing here grows with the upload. Records
that are not sent as written are cut in `dropbatch.core.records.convert`. Pure: no S3, no ledger, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import API_BODY_LIMIT, one_line
from dropbatch.core.formats.csv_rows import EXCERPT_BYTES, OverlongRecord
from dropbatch.core.records.detect_form import whole_members
from dropbatch.core.records.framing import LINE_SPACE, Window, elements, excerpt_of, lines
from dropbatch.core.records.index import NO_REFERENCE, WRAPPER_BYTES, RecordIndex, UnsendableRecord, build_body
from dropbatch.core.records.inputs import inputs_of
from dropbatch.core.records.plan import Checkpoint, max_records
from dropbatch.core.records.surrogates import first_lone_surrogate, without_lone_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dropbatch.core.records.inputs import Inputs
    from dropbatch.core.records.plan import SplitPlan

MAX_BLANK_BYTES = 16 << 20
"""A batch ends before so many bytes of blank lines: after each such stretch, the next turn may continue there."""

MIN_RECORDS = 16
"""Records up to which a run that has an invalid one is validated one by one, not divided again."""

LONE_SURROGATE = "bad_record"
"""The code of a record with half of a surrogate pair, the only one of those of `validate_record` that is retried."""

_decode = msgspec.json.Decoder().decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class _Reference(msgspec.Struct):
    external_reference: msgspec.Raw = NO_REFERENCE


_decode_reference = msgspec.json.Decoder(_Reference).decode


@dataclass(frozen=True, slots=True)
class Cut:
    """Consecutive records that make a batch.

    Attributes:
        first_id: id of the first record.
        rows: the record index.
        body: the exact request body; empty if no record can be sent.
        sendable: records that the body holds.
        end: where the next cut continues.
        originals: the records as written, if what is sent differs.
    """

    first_id: int
    rows: RecordIndex
    body: bytes
    sendable: int
    end: Checkpoint
    originals: bytes = b""


def cut(plan: SplitPlan, start: Checkpoint, number: int, blocks: Iterable[bytes]) -> Iterator[Cut | Checkpoint]:
    """Cut an upload's records into batches; yield a place instead where only blank lines lie before it.

    Args:
        plan: form and limits.
        start: where to continue; the stream begins at its offset.
        number: of the first batch that is cut; it and the plan decide how many records each batch may have.
        blocks: unpacked bytes.

    Raises:
        UploadRefused: `broken_document`, after the records before the damage have been yielded.
    """
    most, room = max_records(plan, number), plan.max_bytes - WRAPPER_BYTES + 1
    first_id, size, end = start.record, 0, start
    rows, raws = RecordIndex(), list[bytes]()
    problem: UploadRefused | None = None
    try:
        for run in _runs(plan, start, blocks):
            if run.start.offset - end.offset >= MAX_BLANK_BYTES:
                number += len(rows) > 0
                yield from _last_cut(first_id, rows, raws, end)
                first_id, size, rows, raws = end.record, 0, RecordIndex(), []
                most, end = max_records(plan, number), run.start
                yield end
            taken, whole = 0, len(run.weights)
            while taken < whole:
                fitting, weight = _fit(run.weights[taken : taken + most - len(rows)], room - size)
                if not (fitting or len(rows)):
                    fitting, weight = 1, room  # has a batch to itself
                if fitting:
                    run.put(taken, taken + fitting, rows, raws)
                    size += weight
                    taken += fitting
                    end = run.place(taken)
                if taken < whole:
                    yield Cut(first_id, rows, build_body(raws), len(raws), end)
                    first_id, size, rows, raws = end.record, 0, RecordIndex(), []
                    number += 1
                    most = max_records(plan, number)
    except UploadRefused as error:
        problem = error
    yield from _last_cut(first_id, rows, raws, end)
    if problem:
        raise problem


def _last_cut(first_id: int, rows: RecordIndex, raws: list[bytes], end: Checkpoint) -> Iterator[Cut]:
    """The records gathered, if there are any."""
    if len(rows):
        yield Cut(first_id, rows, build_body(raws), len(raws), end)


def _fit(weights: list[int], room: int) -> tuple[int, int]:
    """How many records fit in the room, each with a comma, and the bytes they use up: all of it, unless all fit."""
    weight = sum(weights) + len(weights)
    if weight <= room:
        return len(weights), weight
    return bisect_right(list(accumulate(weight + 1 for weight in weights)), room), room


# ── consecutive records ──────────────────────────────────────────────────────────────────────────────────────────────


class _Run(NamedTuple):
    """Consecutive records without a blank line between them: valid ones, one that cannot be sent, or none: a place.

    Attributes:
        raws: the records as they are in the body; none for one that cannot be sent.
        references: their `external_reference`s as JSON; empty if none has one.
        weights: bytes that each counts towards the batch's limit: for valid ones, their lengths.
        line: the first one's; None in a document.
        start: where the first begins.
        steps: bytes from each one's beginning to its end.
        gap: bytes between two.
        fault: why it cannot be sent.
    """

    raws: list[bytes]
    references: list[msgspec.Raw]
    weights: list[int]
    line: int | None
    start: Checkpoint
    steps: list[int]
    gap: int
    fault: UnsendableRecord | None = None

    @classmethod
    def blank(cls, start: Checkpoint, gap: int) -> _Run:
        """No record: a place after blank lines."""
        return cls([], [], [], None, start, [], gap)

    @classmethod
    def unsendable(
        cls, fault: UnsendableRecord, reference: msgspec.Raw, line: int | None, start: Checkpoint, step: int, gap: int
    ) -> _Run:
        """One record that cannot be sent."""
        return cls([], [reference], [len(memoryview(fault.request))], line, start, [step], gap, fault)

    def place(self, count: int) -> Checkpoint:
        """The place after the first `count` records."""
        return _rest_of(self.start, self.steps[:count], self.gap, count)

    def put(self, begin: int, end: int, rows: RecordIndex, raws: list[bytes]) -> None:
        """Add some of the records to a batch."""
        line = None if self.line is None else self.line + begin
        if self.fault:
            rows.add_unsendable(line, self.fault, self.references[0])
        else:
            rows.extend(self.weights[begin:end], line, self.references[begin:end])
            raws += self.raws[begin:end]


def _rest_of(start: Checkpoint, steps: list[int], gap: int, records: int) -> Checkpoint:
    return Checkpoint(start.offset + sum(steps) + gap * len(steps), start.line + len(steps), start.record + records)


def _runs(plan: SplitPlan, start: Checkpoint, blocks: Iterable[bytes]) -> Iterator[_Run]:
    """All records of an upload: valid ones together; a run with an invalid one is divided, down to single records."""
    place, gap = start, 0 if plan.is_document else 1
    inputs = inputs_of(plan)
    for window in elements(plan, start, blocks) if plan.is_document else lines(blocks):
        if window.blank_bytes:
            place = after_blank(place, window)
            yield _Run.blank(place, gap)
            continue
        spans = [(0, len(window.records))]
        while spans:
            begin, end = spans.pop()
            records = window.records[begin:end]
            steps = window.steps[begin:end] if window.steps else list(map(len, records))
            valid = _valid(window, records, inputs)
            if valid:
                raws, references = valid
                weights = list(map(len, raws)) if window.returns or plan.is_document else steps
                line = None if plan.is_document else place.line + 1
                yield _Run(raws, references, weights, line, place, steps, gap)
                place = _rest_of(place, steps, gap, len(raws))
            elif len(records) > MIN_RECORDS:
                middle = (begin + end) // 2
                spans += [(middle, end), (begin, middle)]
            else:
                for raw, step in zip(records, steps, strict=True):
                    line = None if plan.is_document else place.line + 1
                    judged = validate_record(raw, line, inputs)
                    if isinstance(judged, UnsendableRecord):
                        yield _Run.unsendable(judged, _reference_kept(raw, judged), line, place, step, gap)
                    elif judged:
                        yield _Run([judged.raw], [judged.reference], [len(judged.raw)], line, place, [step], gap)
                    place = _rest_of(place, [step], gap, 1 if judged else 0)


def after_blank(place: Checkpoint, window: Window) -> Checkpoint:
    """The place after a window of blank lines."""
    return Checkpoint(place.offset + window.blank_bytes, place.line + window.blank_lines, place.record)


def _valid(
    window: Window, records: list[bytes | OverlongRecord], inputs: Inputs | None
) -> tuple[list[bytes], list[msgspec.Raw]] | None:
    """Records that can all be sent, without the CR of a CRLF, and their references; None if perhaps one cannot be.

    Each is decoded separately, with the same outcome as `validate_record`. Lists and `map` cost a fraction of a loop,
    and values that are dropped immediately cost a fraction of others.
    """
    if sum(map(len, records)) >= API_BODY_LIMIT - WRAPPER_BYTES:
        return None  # One may be too large; an OverlongRecord is.
    raws: list[bytes] = records  # type: ignore[assignment]
    found = inputs.references(raws, wanted=window.referring) if inputs else _references(raws, wanted=window.referring)
    if found is None:
        return None
    references = list(map(_reference, found, raws)) if found.count(None) < len(found) else []
    return [raw.removesuffix(b"\r") for raw in raws] if window.returns else raws, references


def _references(raws: list[bytes], *, wanted: bool) -> list[Any] | None:
    """The references of records that are all JSON objects; none unless they are wanted; None if one is no object."""
    try:
        values = map(_decode_object, raws)
        if wanted:
            return [value.get("external_reference") for value in values]
        deque(values, maxlen=0)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return []


# ── one record ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Sendable(NamedTuple):
    """A valid record as it is in the body, and its `external_reference` as JSON."""

    raw: bytes
    reference: msgspec.Raw


def validate_record(
    raw: bytes | OverlongRecord, line: int | None, inputs: Inputs | None = None
) -> _Sendable | UnsendableRecord | None:
    """A record that can be sent, or why it cannot be; None for a blank line.

    Args:
        raw: the record's bytes, without the line feed.
        line: its 1-based line; None for a document's element.
        inputs: what it must have, if it is sent as written and that is known.
    """
    if not raw:
        return None
    if isinstance(raw, OverlongRecord) or len(raw) - raw.endswith(b"\r") >= API_BODY_LIMIT - WRAPPER_BYTES:
        beginning = beginning_of(raw)
        return too_large(len(raw), line, excerpt_json(beginning)) if beginning else None
    if inputs and (read := inputs.read(raw)):
        return _Sendable(raw.removesuffix(b"\r"), _reference(read.external_reference, raw))
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(raw, line, error)
    if type(value) is not dict:
        message = "The record is JSON, but not an object. Write one request object."
        return UnsendableRecord("not_an_object", located(line, message), msgspec.Raw(one_line(raw)))
    if inputs and (message := inputs.fault(raw)):
        return UnsendableRecord("bad_record", located(line, message), msgspec.Raw(one_line(raw)))
    return _Sendable(raw.removesuffix(b"\r"), _reference(value.get("external_reference"), raw))


def _reference(reference: object, raw: bytes) -> msgspec.Raw:
    """A record's `external_reference` as JSON on one line; as it was written if it is not a string."""
    if reference is None:
        return NO_REFERENCE
    if type(reference) is str:
        return msgspec.Raw(_encode(reference))
    return msgspec.Raw(one_line(_decode_reference(raw).external_reference))


def _reference_kept(raw: bytes | OverlongRecord, fault: UnsendableRecord) -> msgspec.Raw:
    """The reference of a record that cannot be sent: of one that is too large, if its beginning has it."""
    found = b""
    if fault.code == "too_large":
        found = whole_members(beginning_of(raw))
    elif fault.code == "bad_record" and isinstance(raw, bytes):
        found = without_lone_surrogates(raw)
    return _reference(_decode_object(found).get("external_reference"), found) if found else NO_REFERENCE


def beginning_of(raw: bytes | OverlongRecord) -> bytes:
    """What is kept of a record that is too large, wherever the blocks end in which it was read."""
    return raw.beginning if isinstance(raw, OverlongRecord) else excerpt_of(raw)


def too_large(length: int, line: int | None, request: msgspec.Raw) -> UnsendableRecord:
    """A record whose request reaches the limit of a body; `request` is its beginning, as JSON."""
    message = f"The record has {length:,} bytes; a request body must stay under {API_BODY_LIMIT:,}. Shorten it."
    return UnsendableRecord("too_large", located(line, message), request)


def _unreadable(raw: bytes, line: int | None, error: Exception) -> UnsendableRecord | None:
    if not raw.strip(LINE_SPACE):
        return None
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        code, message = "invalid_utf8", f"Byte {wrong.start + 1} of the record is not UTF-8. Save the file as UTF-8."
    else:
        if found := _lone_surrogate(raw, line):
            return found
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        code, message = "invalid_json", f"The record is not valid JSON ({reason}). Write one JSON object per line."
    return UnsendableRecord(code, located(line, message), excerpt_json(raw))


def _lone_surrogate(raw: bytes, line: int | None) -> UnsendableRecord | None:
    """A record that is an object but for half of a surrogate pair, with its whole text as a JSON string."""
    try:
        _decode_object(without_lone_surrogates(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    member, half = first_lone_surrogate(raw)
    message = (
        f"{member}: It has half of a surrogate pair ({half}), as where a text is cut in the middle of an emoji. Cut it "
        "elsewhere, or replace that character."
    )
    text = raw.removesuffix(b"\r").decode()
    return UnsendableRecord(LONE_SURROGATE, located(line, message), msgspec.Raw(_encode(text)))


def excerpt_json(text: bytes) -> msgspec.Raw:
    """The beginning of a record that cannot be read, as a JSON string."""
    return msgspec.Raw(_encode(text[:EXCERPT_BYTES].removesuffix(b"\r").decode(errors="replace")))


def located(line: int | None, message: str) -> str:
    """A message with the record's line, if it has one."""
    return message if line is None else f"Line {line}: {message}"
