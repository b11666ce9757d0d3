"""The cut: a stream of unpacked bytes becomes batches of records.

A record that is sent as written is read once, to validate it, and passed on unchanged; others are
converted by their format's reader, and kept as the user wrote them. Where a cut falls depends only
on the bytes, the plan, the batch's number and the job's pinned options, so every run cuts the same
way. Nothing here grows with the upload. Pure: no S3, no ledger, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import (
    API_BODY_LIMIT,
    UNREADABLE_CODES,
    Converted,
    Reader,
    RecordFault,
    is_text,
)
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.plan import Checkpoint, SplitPlan, body_room, max_records
from dropbatch.core.read.attachments import Load, attach, marked, names_any
from dropbatch.core.read.index import (
    NO_REFERENCE,
    WRAPPER_BYTES,
    RecordIndex,
    UnsendableRecord,
    build_body,
)
from dropbatch.core.read.inputs import Inputs
from dropbatch.core.read.lines import Window, elements, lines, windows
from dropbatch.core.read.records import (
    excerpt_json,
    judge_of,
    kept_of,
    located,
    reference_kept,
    reference_of,
    too_large,
    validate_record,
)
from dropbatch.core.read.rows import OverlongRecord

RANGE_BYTES = 8 << 20
"""Stored bytes that are read at a time. Large enough that S3's time to the first byte does not
matter."""
MAX_BYTES_WITHOUT_BATCH = 4 << 30
"""Most unpacked bytes without the end of a batch. Far more than 500 requests have, and read well
within one turn."""
MIN_RECORDS = 16
"""Records up to which a run that has an invalid one is validated one by one, not divided again."""

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Cut:
    """Consecutive records that make a batch; those that can be sent are in its body.

    The originals are the records as written, if what is sent differs.
    """

    first_id: int
    rows: RecordIndex
    body: bytes
    sendable: int
    end: Checkpoint
    originals: bytes = b""


def read_batches(
    plan: SplitPlan,
    start: Checkpoint,
    number: int,
    blocks: Iterable[bytes],
    reader: Reader | None = None,
    load: Load | None = None,
) -> Iterator[Cut]:
    """Cut an upload's records into batches.

    The blocks begin at the offset of `start`; `number` is that of the first batch. `load` reads the
    objects that records name; None to check only what names them. Damage is `UploadRefused`, after
    the records before it.
    """
    made = reader and _Made(plan, reader, Inputs(plan.known_model), load)
    runs = _converted(start, blocks, made) if made else _runs(plan, start, blocks)
    batch = _Batch(plan, number, start)
    problem: UploadRefused | None = None
    try:
        for run in runs:
            taken = batch.add(run, 0)
            while taken < len(run.weights):
                yield from batch.cut()
                number += 1
                batch = _Batch(plan, number, batch.end)
                taken += batch.add(run, taken)
    except UploadRefused as error:
        problem = error
    yield from batch.cut()
    if problem:
        raise problem


def gap_error(packing: str) -> UploadRefused:
    """Refuse one endless line, or blank lines compressed a thousandfold: turns read them again."""
    return UploadRefused(
        "unknown_format" if packing == "plain" else "broken_archive",
        f"More than {MAX_BYTES_WITHOUT_BATCH >> 20:,} MB of the upload's content in a row did not "
        "complete a batch. Upload JSON Lines, one request per line, without long stretches of "
        "blank or broken lines.",
    )


class _Batch:
    """The records gathered for the next batch, and what it has room for."""

    def __init__(self, plan: SplitPlan, number: int, start: Checkpoint) -> None:
        self.rows, self.end = RecordIndex(), start
        self._first_id = start.record
        self._most, self._room = max_records(plan, number), body_room(plan, number)
        self._originals_room = plan.max_bytes
        self._texts, self._originals = list[bytes](), list[bytes]()

    def add(self, run: _Run, begin: int) -> int:
        """Add as many records of a run as fit, from `begin` on, or one that is too large alone."""
        count, weight = run.fit(begin, self._most - len(self.rows), self._room)
        if len(run.original) > self._originals_room:
            count = 0
        if not (count or len(self.rows)):
            count, weight = min(1, len(run.weights)), self._room
        if count:
            self._room -= weight
            self._originals_room -= len(run.original)
            self._take(run, begin, begin + count)
            self.end = run.place(begin + count)
        return count

    def _take(self, run: _Run, begin: int, end: int) -> None:
        line = None if run.line is None else run.line + begin
        if run.original:
            self._originals.append(run.original)
        if run.fault:
            self.rows.add_unsendable(line, run.fault, run.references[0], len(run.original))
        elif end - begin == len(run.weights):
            self.rows.extend(run.weights, line, run.references, len(run.original))
            self._texts.append(run.text)
        else:
            weights = run.weights[begin:end]
            self.rows.extend(weights, line, run.references[begin:end])
            at = sum(run.weights[:begin]) + begin
            self._texts.append(run.text[at : at + sum(weights) + len(weights) - 1])

    def cut(self) -> Iterator[Cut]:
        """The records gathered, if any."""
        if len(self.rows):
            sendable = len(self.rows) - len(self.rows.faults)
            body, originals = build_body(self._texts), b"".join(self._originals)
            yield Cut(self._first_id, self.rows, body, sendable, self.end, originals)


class _Run(NamedTuple):
    """Consecutive records without a blank line between them.

    Valid ones, one that cannot be sent, or none: a place.

    Attributes:
        text: the records as they are in the body, with the commas between them; empty for one that
            cannot be sent.
        references: their `external_reference`s as JSON; empty if none has one.
        weights: bytes that each counts towards the batch's limit: for valid ones, their lengths.
        line: the first one's; None in a document.
        steps: if there are several, bytes from each one's beginning to its end.
        original: the only one as it was written, if what is sent differs.
    """

    text: bytes
    references: list[msgspec.Raw]
    weights: list[int]
    line: int | None
    start: Checkpoint
    end: Checkpoint
    steps: Sequence[int] = ()
    gap: int = 0
    fault: UnsendableRecord | None = None
    original: bytes = b""

    def fit(self, begin: int, most: int, room: int) -> tuple[int, int]:
        """How many records from `begin` on fit in the room, each with a comma, at most so many.

        And the bytes used up: all the room, unless all of them fit.
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
        return _after(self.start, sum(self.steps[:count]), self.gap, count)


def _after(start: Checkpoint, size: int, gap: int, records: int) -> Checkpoint:
    """The place after so many records, or elements, each with a gap."""
    offset = start.offset + size + gap * records
    return Checkpoint(offset, start.line + records, start.record + records)


def _blank(place: Checkpoint) -> _Run:
    """No record: a place after blank lines."""
    return _Run(b"", [], [], None, place, place)


def _refused(
    fault: UnsendableRecord,
    reference: msgspec.Raw,
    line: int | None,
    begin: Checkpoint,
    end: Checkpoint,
    original: bytes = b"",
) -> _Run:
    """One record that cannot be sent."""
    weight = len(memoryview(fault.request))
    return _Run(b"", [reference], [weight], line, begin, end, fault=fault, original=original)


# ── records that are sent as written ──────────────────────────────────────────────────────────────


def _runs(plan: SplitPlan, start: Checkpoint, blocks: Iterable[bytes]) -> Iterator[_Run]:
    """All records of an upload, valid ones together."""
    place, written = start, _Written(Inputs(plan.known_model), is_document=plan.is_document)
    for window in elements(plan.form, blocks, start.record) if plan.is_document else lines(blocks):
        if window.blank_bytes:
            line = place.line + window.blank_lines
            place = Checkpoint(place.offset + window.blank_bytes, line, place.record)
            yield _blank(place)
            continue
        for run in written.runs(window, window.records, place):
            yield run
            place = run.end


class _Written(NamedTuple):
    """Judges records that are sent as written, many at once if all of them are valid."""

    inputs: Inputs
    is_document: bool

    def runs(
        self, window: Window, records: list[bytes | OverlongRecord], place: Checkpoint
    ) -> Iterator[_Run]:
        """Some records of a window; one with an invalid record is divided, down to single ones."""
        if run := self._valid(window, records, place):
            yield run
            return
        if len(records) <= MIN_RECORDS:
            for raw in records:
                run = self._single(raw, place)
                yield run
                place = run.end
            return
        middle = len(records) // 2
        for half in (records[:middle], records[middle:]):
            for run in self.runs(window, half, place):
                yield run
                place = run.end

    def _valid(
        self, window: Window, records: list[bytes | OverlongRecord], place: Checkpoint
    ) -> _Run | None:
        """Records that can all be sent, without the CR of a CRLF; None if perhaps one cannot be."""
        lengths, is_whole = list(map(len, records)), len(records) == len(window.records)
        size = sum(lengths)
        if size >= API_BODY_LIMIT - WRAPPER_BYTES:
            return None  # One may be too large; an OverlongRecord is.
        raws: list[bytes] = records  # type: ignore[assignment]
        weights = lengths
        if window.lines and is_whole and not window.returns:
            text = window.lines.replace(b"\n", b",")
        else:
            raws = [raw.removesuffix(b"\r") for raw in raws] if window.returns else raws
            text, weights = b",".join(raws), list(map(len, raws))
        if not is_text(text) or names_any(text):
            return None
        found = self.inputs.references(raws, wanted=window.referring)
        if found is None:
            return None
        # A document is read whole by every run.
        gap, steps = (0, [0] * len(records)) if self.is_document else (1, lengths)
        after = _after(place, 0 if self.is_document else size, gap, len(records))
        references = _as_json(found, raws)
        return _Run(text, references, weights, self._line(place), place, after, steps, gap)

    def _single(self, raw: bytes | OverlongRecord, place: Checkpoint) -> _Run:
        line = self._line(place)
        judged = validate_record(raw, line, self.inputs)
        step = 0 if self.is_document else len(raw) + 1
        end = Checkpoint(place.offset + step, place.line + 1, place.record + (judged is not None))
        if judged is None:
            return _blank(end)
        if isinstance(judged, UnsendableRecord):
            return _refused(judged, reference_kept(raw, judged), line, place, end)
        return _Run(judged.raw, [judged.reference], [len(judged.raw)], line, place, end)

    def _line(self, place: Checkpoint) -> int | None:
        return None if self.is_document else place.line + 1


def _as_json(references: list[Any], raws: list[bytes]) -> list[msgspec.Raw]:
    """The references of records as JSON; empty if none has one."""
    kinds = set(map(type, references))
    if kinds <= {type(None)}:
        return []
    if kinds == {str}:
        return _decode_raws(_encode(references))
    return list(map(reference_of, references, raws))


# ── records that are converted ────────────────────────────────────────────────────────────────────


def _converted(start: Checkpoint, blocks: Iterable[bytes], made: _Made) -> Iterator[_Run]:
    """The records one by one, and places after blank lines."""
    plan, place = made.plan, start
    judge = judge_of(plan)
    for window in windows(plan, start, blocks):
        judged: list[bytes | UnsendableRecord | None] = []
        line = place.line
        for raw, taken in zip(window.records, window.lines, strict=True):
            judged.append(judge(raw, None if plan.is_document else line + 1))
            line += taken
        converted = made.convert([one for one in judged if isinstance(one, bytes)])
        for raw, one, step, taken in zip(
            window.records, judged, window.steps, window.lines, strict=True
        ):
            begin = place
            record = place.record + (one is not None)
            place = Checkpoint(place.offset + step, place.line + taken, record)
            if isinstance(one, UnsendableRecord):
                yield made.refused(one, raw, begin, place)
            elif one is not None:
                yield made.run(next(converted), one, begin, place)
            else:
                yield _blank(place)


class _Made(NamedTuple):
    """Judges requests that a reader made of records."""

    plan: SplitPlan
    reader: Reader
    inputs: Inputs
    load: Load | None = None

    def convert(self, records: list[bytes]) -> Iterator[Converted | RecordFault]:
        """The records as they are sent, or why one cannot be."""
        if not self.plan.attaches:
            return map(self._checked, self.reader.convert(records))
        if FORMATS[self.plan.format].is_json:
            records = list(map(marked, records))
        found = map(self._checked, self.reader.convert(records))
        return attach(found, self.load, self.plan.known_model) if self.load else found

    def _checked(self, made: Converted | RecordFault) -> Converted | RecordFault:
        wrong = isinstance(made, Converted) and self.inputs.fault(made.request)
        return wrong._replace(reference=made.reference) if wrong else made

    def _line(self, place: Checkpoint) -> int | None:
        return None if self.plan.is_document else place.line + 1

    def refused(
        self,
        fault: UnsendableRecord,
        raw: bytes | OverlongRecord,
        begin: Checkpoint,
        end: Checkpoint,
    ) -> _Run:
        """A record that no reader can convert."""
        kept, readable = kept_of(self.plan, fault, raw)
        reference = NO_REFERENCE
        if kept:
            reference = _normal(self.reader.convert([readable])[0].reference)
        return _refused(fault, reference, self._line(begin), begin, end, kept)

    def run(
        self, made: Converted | RecordFault, raw: bytes, begin: Checkpoint, end: Checkpoint
    ) -> _Run:
        """A record that was converted, or why it was not."""
        line, reference, original = self._line(begin), _normal(made.reference), raw
        if isinstance(made, RecordFault):
            request = excerpt_json(raw) if made.code in UNREADABLE_CODES else NO_REFERENCE
            fault = UnsendableRecord(made.code, located(line, made.message), request)
        elif len(made.request) >= API_BODY_LIMIT - WRAPPER_BYTES:
            fault = too_large(len(made.request), line, excerpt_json(raw))
            original = kept_of(self.plan, fault, raw)[0]
        else:
            weights = [len(made.request)]
            return _Run(made.request, [reference], weights, line, begin, end, original=original)
        return _refused(fault, reference, line, begin, end, original)


def _normal(reference: msgspec.Raw) -> msgspec.Raw:
    """The reference; for a record without one, the exact object that the index leaves out."""
    return NO_REFERENCE if reference == NO_REFERENCE else reference
