"""The cut: a stream of unpacked bytes becomes batches of records that are sent as the user wrote them.

Bytes are spliced: a record is read once, to validate it, and passed on unchanged. Where a cut falls
depends only on the bytes, the plan and the batch's number, so every run cuts the same way. Nothing
here grows with the upload. Records that are not sent as written are cut in
`dropbatch.core.read.convert`. Pure: no S3, no ledger, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import API_BODY_LIMIT, one_line, readable_json
from dropbatch.core.plan import Checkpoint, body_room, max_records
from dropbatch.core.read.form import whole_members
from dropbatch.core.read.index import (
    NO_REFERENCE,
    WRAPPER_BYTES,
    RecordIndex,
    UnsendableRecord,
    build_body,
)
from dropbatch.core.read.inputs import Inputs, Request, is_text
from dropbatch.core.read.lines import (
    LINE_SPACE,
    Window,
    about_lone_surrogate,
    elements,
    excerpt_of,
    lines,
    without_lone_surrogates,
)
from dropbatch.core.read.rows import EXCERPT_BYTES, OverlongRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dropbatch.core.plan import SplitPlan

MAX_BLANK_BYTES = 16 << 20
"""A batch ends before so many bytes of blank lines.

After each such stretch, the next turn may continue there.
"""

MIN_RECORDS = 16
"""Records up to which a run that has an invalid one is validated one by one, not divided again."""

LONE_SURROGATE = "bad_record"
"""The code of a record with half of a surrogate pair.

The only one of those of `validate_record` that is retried.
"""

_decode = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_request = msgspec.json.Decoder(Request).decode
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


def cut(
    plan: SplitPlan, start: Checkpoint, number: int, blocks: Iterable[bytes]
) -> Iterator[Cut | Checkpoint]:
    """Cut an upload's records into batches.

    Yield a place instead where only blank lines lie before it.

    Args:
        plan: form and limits.
        start: where to continue; the stream begins at its offset.
        number: of the first batch that is cut; it and the plan decide how many records each batch
            may have.
        blocks: unpacked bytes.

    Raises:
        UploadRefused: `broken_document`, after the records before the damage have been yielded.
    """
    most, room = max_records(plan, number), body_room(plan, number)
    first_id, size, end = start.record, 0, start
    rows, texts = RecordIndex(), list[bytes]()
    problem: UploadRefused | None = None
    try:
        for run in _runs(plan, start, blocks):
            if run.start.offset - end.offset >= MAX_BLANK_BYTES:
                number += len(rows) > 0
                yield from _gathered(first_id, rows, texts, end)
                first_id, size, rows, texts = end.record, 0, RecordIndex(), []
                most, room, end = max_records(plan, number), body_room(plan, number), run.start
                yield end
            taken, whole = 0, len(run.weights)
            while taken < whole:
                fitting, weight = run.fit(taken, most - len(rows), room - size)
                if not (fitting or len(rows)):
                    fitting, weight = 1, room  # has a batch to itself
                if fitting:
                    run.put(taken, taken + fitting, rows, texts)
                    size += weight
                    taken += fitting
                    end = run.place(taken)
                if taken < whole:
                    yield from _gathered(first_id, rows, texts, end)
                    first_id, size, rows, texts = end.record, 0, RecordIndex(), []
                    number += 1
                    most, room = max_records(plan, number), body_room(plan, number)
    except UploadRefused as error:
        problem = error
    yield from _gathered(first_id, rows, texts, end)
    if problem:
        raise problem


def _gathered(
    first_id: int, rows: RecordIndex, texts: list[bytes], end: Checkpoint
) -> Iterator[Cut]:
    """The records gathered, if any."""
    if len(rows):
        yield Cut(first_id, rows, build_body(texts), len(rows) - len(rows.faults), end)


# ── consecutive records ───────────────────────────────────────────────────────────────────────────


class _Run(NamedTuple):
    """Consecutive records without a blank line between them.

    Valid ones, one that cannot be sent, or none: a place.

    Attributes:
        text: the records as they are in the body, with the commas between them; empty for one that
            cannot be sent.
        references: their `external_reference`s as JSON; empty if none has one.
        weights: bytes that each counts towards the batch's limit: for valid ones, their lengths.
        line: the first one's; None in a document.
        start: where the first begins.
        steps: bytes from each one's beginning to its end.
        gap: bytes between two.
        end: where the next one begins.
        fault: why it cannot be sent.
    """

    text: bytes
    references: list[msgspec.Raw]
    weights: list[int]
    line: int | None
    start: Checkpoint
    steps: list[int]
    gap: int
    end: Checkpoint
    fault: UnsendableRecord | None = None

    @classmethod
    def blank(cls, start: Checkpoint, gap: int) -> _Run:
        """No record: a place after blank lines."""
        return cls(b"", [], [], None, start, [], gap, start)

    def fit(self, begin: int, most: int, room: int) -> tuple[int, int]:
        """How many records from `begin` on fit in the room, each with a comma, at most so many.

        And the bytes used up.

        All the room is used up, unless all of them fit.
        """
        if begin == 0 and not self.fault and len(self.weights) <= most and len(self.text) < room:
            return len(self.weights), len(self.text) + 1
        weights = self.weights[begin : begin + most]
        weight = sum(weights) + len(weights)
        if weight <= room:
            return len(weights), weight
        return bisect_right(list(accumulate(weight + 1 for weight in weights)), room), room

    def place(self, count: int) -> Checkpoint:
        """The place after the first `count` records."""
        if count == len(self.weights):
            return self.end
        return _after(self.start, sum(self.steps[:count]), self.gap, count, count)

    def put(self, begin: int, end: int, rows: RecordIndex, texts: list[bytes]) -> None:
        """Add some of the records to a batch."""
        line = None if self.line is None else self.line + begin
        if self.fault:
            rows.add_unsendable(line, self.fault, self.references[0])
        elif end - begin == len(self.weights):
            rows.extend(self.weights, line, self.references)
            texts.append(self.text)
        else:
            weights = self.weights[begin:end]
            rows.extend(weights, line, self.references[begin:end])
            at = sum(self.weights[:begin]) + begin
            texts.append(self.text[at : at + sum(weights) + len(weights) - 1])


def _after(start: Checkpoint, size: int, gap: int, lines: int, records: int) -> Checkpoint:
    """The place after so many lines, or elements."""
    return Checkpoint(start.offset + size + gap * lines, start.line + lines, start.record + records)


def _runs(plan: SplitPlan, start: Checkpoint, blocks: Iterable[bytes]) -> Iterator[_Run]:
    """All records of an upload: valid ones together.

    A run with an invalid one is divided, down to single records.
    """
    place, gap = start, 0 if plan.is_document else 1
    inputs = Inputs(plan.known_model)
    for window in elements(plan.form, blocks, start.record) if plan.is_document else lines(blocks):
        if window.blank_bytes:
            place = after_blank(place, window)
            yield _Run.blank(place, gap)
            continue
        spans = [(0, len(window.records))]
        while spans:
            begin, end = spans.pop()
            records = window.records[begin:end]
            lengths = list(map(len, records))
            # A document is read whole by every run.
            steps = [0] * len(records) if plan.is_document else lengths
            size = (
                len(window.lines) - len(records) + 1 if _is_whole(window, records) else sum(lengths)
            )
            # One may be too large; an OverlongRecord is.
            valid = (
                _valid(window, records, lengths, inputs)
                if size < API_BODY_LIMIT - WRAPPER_BYTES
                else None
            )
            if valid:
                text, weights, references = valid
                line = None if plan.is_document else place.line + 1
                after = _after(place, 0 if plan.is_document else size, gap, len(steps), len(steps))
                yield _Run(text, references, weights, line, place, steps, gap, after)
                place = after
            elif len(records) > MIN_RECORDS:
                middle = (begin + end) // 2
                spans += [(middle, end), (begin, middle)]
            else:
                for raw, step in zip(records, steps, strict=True):
                    line = None if plan.is_document else place.line + 1
                    judged = validate_record(raw, line, inputs)
                    after = _after(place, step, gap, 1, 1 if judged else 0)
                    if isinstance(judged, UnsendableRecord):
                        reference, weight = (
                            _reference_kept(raw, judged),
                            len(memoryview(judged.request)),
                        )
                        yield _Run(
                            b"", [reference], [weight], line, place, [step], gap, after, judged
                        )
                    elif judged:
                        yield _Run(
                            judged.raw,
                            [judged.reference],
                            [len(judged.raw)],
                            line,
                            place,
                            [step],
                            gap,
                            after,
                        )
                    place = after


def after_blank(place: Checkpoint, window: Window) -> Checkpoint:
    """The place after a window of blank lines."""
    return Checkpoint(
        place.offset + window.blank_bytes, place.line + window.blank_lines, place.record
    )


def _valid(
    window: Window, records: list[bytes | OverlongRecord], lengths: list[int], inputs: Inputs
) -> tuple[bytes, list[int], list[msgspec.Raw]] | None:
    """Records that can all be sent, without the CR of a CRLF.

    Their text with commas, their lengths and references.

    None if perhaps one cannot be sent: each is read separately, as `validate_record` does it.
    """
    raws: list[bytes] = records  # type: ignore[assignment]
    weights = lengths
    if _is_whole(window, raws) and not window.returns:
        text = window.lines.replace(b"\n", b",")
    else:
        raws = [raw.removesuffix(b"\r") for raw in raws] if window.returns else raws
        text, weights = b",".join(raws), list(map(len, raws))
    if not is_text(text) or (found := inputs.references(raws, wanted=window.referring)) is None:
        return None
    return text, weights, _as_json(found, raws)


def _is_whole(window: Window, records: Sequence[object]) -> bool:
    """Whether these are all records of a window of lines."""
    return bool(window.lines) and len(records) == len(window.records)


def _as_json(references: list[Any], raws: list[bytes]) -> list[msgspec.Raw]:
    """The references of records as JSON; empty if none has one."""
    kinds = set(map(type, references))
    if kinds <= {type(None)}:
        return []
    return (
        _decode_raws(_encode(references))
        if kinds == {str}
        else list(map(_reference, references, raws))
    )


# ── one record ────────────────────────────────────────────────────────────────────────────────────


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
        inputs: what it must have, if it is sent as written: a number that no computer holds, as
            1e999, only prevents that in its `external_reference`, which result lines have. None if
            it is converted, so that all is read.
    """
    if not raw:
        return None
    if (
        isinstance(raw, OverlongRecord)
        or len(raw) - raw.endswith(b"\r") >= API_BODY_LIMIT - WRAPPER_BYTES
    ):
        beginning = beginning_of(raw)
        return too_large(len(raw), line, excerpt_json(beginning)) if beginning else None
    if inputs and (read := inputs.read(raw)):
        return _Sendable(raw.removesuffix(b"\r"), _reference(read.external_reference, raw))
    try:
        is_object = _is_object(raw, out_of_range=inputs is not None)
        reference = _decode_request(raw).external_reference if is_object else None
        fault = inputs.fault(raw) if inputs and is_object else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(raw, line, error)
    if not is_object:
        message = "The record is JSON, but not an object. Write one request object."
        return UnsendableRecord(
            "not_an_object",
            located(line, message),
            msgspec.Raw(readable_json(raw.removesuffix(b"\r"))),
        )
    if fault:
        return UnsendableRecord(
            fault.code,
            located(line, fault.message),
            msgspec.Raw(readable_json(raw.removesuffix(b"\r"))),
        )
    return _Sendable(raw.removesuffix(b"\r"), _reference(reference, raw))


def _is_object(raw: bytes, *, out_of_range: bool) -> bool:
    """Whether JSON is an object; its numbers may be out of range only if that is said."""
    try:
        return type(_decode(raw)) is dict
    except msgspec.ValidationError:
        if not out_of_range:
            raise
    raw.decode()
    return bytes(_decode_raw(raw)).startswith(b"{")


def _reference(reference: object, raw: bytes) -> msgspec.Raw:
    """A record's `external_reference` as JSON on one line.

    As it was written if it is not a string.
    """
    if reference is None:
        return NO_REFERENCE
    if type(reference) is str:
        return msgspec.Raw(_encode(reference))
    return msgspec.Raw(one_line(_decode_reference(raw).external_reference))


def _reference_kept(raw: bytes | OverlongRecord, fault: UnsendableRecord) -> msgspec.Raw:
    """The reference of a record that cannot be sent.

    Of one that is too large, if its beginning has it.
    """
    found = b""
    if fault.code == "too_large":
        found = whole_members(beginning_of(raw))
    elif fault.code in {"bad_record", "mismatched_model"} and isinstance(raw, bytes):
        found = without_lone_surrogates(raw)
    return _reference(_decode_request(found).external_reference, found) if found else NO_REFERENCE


def beginning_of(raw: bytes | OverlongRecord) -> bytes:
    """What is kept of a record that is too large, wherever the blocks end in which it was read."""
    return raw.beginning if isinstance(raw, OverlongRecord) else excerpt_of(raw)


def too_large(length: int, line: int | None, request: msgspec.Raw) -> UnsendableRecord:
    """A record whose request reaches the limit of a body; `request` is its beginning, as JSON."""
    message = (
        f"The record has {length:,} bytes; a request body must stay under "
        f"{API_BODY_LIMIT:,}. Shorten it."
    )
    return UnsendableRecord("too_large", located(line, message), request)


def _unreadable(raw: bytes, line: int | None, error: Exception) -> UnsendableRecord | None:
    if not raw.strip(LINE_SPACE):
        return None
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        code, message = (
            "invalid_utf8",
            (f"Byte {wrong.start + 1} of the record is not UTF-8. Save the file as UTF-8."),
        )
    else:
        if found := _lone_surrogate(raw, line):
            return found
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        code, message = (
            "invalid_json",
            (f"The record is not valid JSON ({reason}). Write one JSON object per line."),
        )
    return UnsendableRecord(code, located(line, message), excerpt_json(raw))


def _lone_surrogate(raw: bytes, line: int | None) -> UnsendableRecord | None:
    """A record that is an object but for half of a surrogate pair.

    With its whole text as a JSON string.
    """
    try:
        _decode_request(without_lone_surrogates(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    message = about_lone_surrogate(raw)
    if not message:  # It is not JSON for another reason, such as a number out of range.
        return None
    text = raw.removesuffix(b"\r").decode()
    return UnsendableRecord(LONE_SURROGATE, located(line, message), msgspec.Raw(_encode(text)))


def excerpt_json(text: bytes) -> msgspec.Raw:
    """The beginning of a record that cannot be read, as a JSON string."""
    return msgspec.Raw(_encode(text[:EXCERPT_BYTES].removesuffix(b"\r").decode(errors="replace")))


def located(line: int | None, message: str) -> str:
    """A message with the record's line, if it has one."""
    return message if line is None else f"Line {line}: {message}"
