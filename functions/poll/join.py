"""The join: a batch's records and the API's items become result lines, in record order.

Bytes are spliced: an item's members are located and passed on. Nothing is guessed: an item counts
only for the record its `index` (or `id`) names, and only if it does not contradict the record's
`external_reference`. An item without a number in either counts for the only record that has its
`external_reference`; a placeholder counts for none. The lines of other formats than the native
one are made by their writers (`dropbatch.core.formats`). Pure: no S3, no ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from dropbatch.core.errors import PASSING_CODES, code_of
from dropbatch.core.formats.answers import flaw_of, read_answer, unwrapped
from dropbatch.core.formats.base import (
    NULL,
    Json,
    Outcome,
    escape_line_breaks,
    is_retried,
    one_line,
    readable_json,
    value_of,
)
from dropbatch.core.read.index import NO_REFERENCE, RecordEntry, RecordIndex
from dropbatch.core.read.lines import without_lone_surrogates
from dropbatch.core.read.records import LONE_SURROGATE
from shared.staged_batch import original_spans
from shared.workers_ai.results import (
    Answer,
    Item,
    decode_member,
    has_failed,
    is_placeholder,
    items_with_extras,
    place_of,
    plain_results,
)
from shared.workers_ai.usage import Usage, usage_of, usage_of_items

MAX_ERROR_CHARACTERS = 1_000  # Characters of the API's message in an error line
RUN_RECORDS, RUN_BYTES = 64, 1 << 17  # Records whose lines are made together, up to these bytes

_PLAIN_LINE = b'{"id":%d,"external_reference":%b,"success":true,"result":%b}\n'.__mod__
_NULL = bytes(NULL)
_LF, _CR, _U, _OPEN = b"\n\ru["  # Numbers: `in` finds them at a fraction of the cost of bytes.
_RETRYABLE = frozenset(map(str, PASSING_CODES))
NULL_VECTORS = "Workers AI's embedding has null in place of numbers."

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Answers:
    """A reply's items by the record they answer."""

    items: dict[int, Item] = field(default_factory=dict)  # by their record's place in the body
    contradicted: set[int] = field(default_factory=set)  # places with several answers
    foreign: int = 0  # items that name no record of the batch
    repeated: int = 0  # items that repeat another
    usage: Usage = field(default_factory=Usage)  # as the reply reports it
    itemized: bool = False  # whether the usage is the sum of what the items report


def sort_answers(answer: Answer, references: list[msgspec.Raw]) -> Answers:
    """Sort a complete reply's items by the record they answer."""
    answers = Answers()
    sent, sorted_, may_lack = len(references), answers.items, answer.unfinished
    places: dict[object, int] | None = None
    for item in answer.items:
        place = item.id if type(item.id) is int and item.index is None else place_of(item)
        if place is None:
            places = _places_by_reference(references) if places is None else places
            place = places.get(_reference(item.external_reference))
        if place is None or not 0 <= place < sent:
            answers.foreign += 1
        elif (may_lack or item.success is not True) and is_placeholder(item, unfinished=may_lack):
            continue
        elif place in sorted_:
            if sorted_[place] == item:
                answers.repeated += 1
            else:
                answers.contradicted.add(place)
        else:
            sorted_[place] = item
            ours = references[place]
            if item.external_reference != ours and _contradicts(item, ours):
                answers.contradicted.add(place)
    for place in answers.contradicted:
        sorted_.pop(place, None)
    answers.usage, answers.itemized = _reported(usage_of(answer.usage), sorted_.values())
    return answers


def _reported(whole: Usage, items: Iterable[Item]) -> tuple[Usage, bool]:
    """A reply's usage, and whether it is the sum of its items': the whole's may lack a part."""
    if whole.is_reported and whole.completion_tokens is not None:
        return whole, False
    of_items = usage_of_items(items)
    is_better = of_items.completion_tokens is not None or not whole.is_reported
    return (of_items, True) if is_better else (whole, False)


def add_reply(answers: Answers, later: Answers) -> None:
    """Fill in what an incomplete reply lacks from a later one; the first answer counts."""
    added = {place: item for place, item in later.items.items() if place not in answers.items}
    if answers.itemized and later.itemized:
        answers.usage = _together(answers, Answers(added, usage=usage_of_items(added.values())))
    else:
        answers.usage = max(answers.usage, later.usage, key=lambda usage: usage.sum)
        answers.itemized = False
    answers.items.update(added)
    answers.contradicted = (answers.contradicted | later.contradicted) - answers.items.keys()
    answers.foreign += later.foreign
    answers.repeated += later.repeated


def _together(first: Answers, later: Answers) -> Usage:
    """The usage of both; none if that of one is partial, which would count the rest as free."""
    silent = [one for one in (first, later) if not one.usage.is_reported]
    if any(result_of(item) is not None for one in silent for item in one.items.values()):
        return Usage()
    tokens = first.usage.completion_tokens, later.usage.completion_tokens
    if not silent and tokens.count(None) == 1:
        return Usage()
    return first.usage.plus(later.usage)


def places_without_capacity(answers: Answers) -> list[int]:
    """Places of records that failed for lack of capacity or time, so that a retry may succeed."""
    return [
        place
        for place, item in items_with_extras(answers.items)
        if result_of(item) is None and error_text(item).partition(":")[0] in _RETRYABLE
    ]


def count_incomplete(answers: Answers) -> int:
    """How many good answers are none: empty, or cut off. A large one is not looked at."""
    results = filter(None, map(result_of, answers.items.values()))
    small = (result for result in results if len(result) < LARGE_RESULT_BYTES)
    return sum(flaw_of(read_answer(result))[0] != "" for result in small)


class Failure(NamedTuple):
    """A failed record: its output, error and retry line (empty for none), and the code."""

    output: bytes
    error: bytes
    retry: bytes
    code: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A batch's records, and what is known about them."""

    rows: RecordIndex  # the batch's index
    first_id: int  # id of the first record
    answers: Answers | None  # what the API answered; None if no answer will come
    ending: tuple[str, str] | None = None  # code and message for records without an answer
    vectors: bool = False  # whether the model makes embeddings, which hold no null

    def result_of(self, item: Item) -> bytes | None:
        """A good item's result on one line; None for a failed item."""
        result = result_of(item)
        return None if result is None or (self.vectors and _has_nulls(result)) else result

    def why_failed(self, place: int) -> tuple[str, str]:
        """Code and message of a record that was sent and has no good answer."""
        item = self.answers.items.get(place) if self.answers else None
        if item is not None:
            why = NULL_VECTORS if result_of(item) is not None else "Workers AI gave no reason."
            return "inference_failed", error_text(item) or why
        if self.answers and place in self.answers.contradicted:
            return "missing_response", "Workers AI sent answers that contradict each other."
        return self.ending or ("missing_response", "Workers AI sent no answer for this record.")


def join(batch: Answered, request_of: Callable[[int], bytes]) -> Iterator[bytes | Failure]:
    """The output lines of all records, in order: some at a time, or a failed record's."""
    rows, place = batch.rows, 0
    references: Sequence[Json] = rows.references or (NO_REFERENCE,) * len(rows)
    if not b"".join(references).isascii():
        references = list(map(escape_line_breaks, references))
    for begin in range(0, len(rows), RUN_RECORDS):
        run = range(begin, min(begin + RUN_RECORDS, len(rows)))
        if (lines := _plain_lines(batch, run, place, references)) is not None:
            yield lines
            place += len(run)
            continue
        for index in run:
            if index in rows.faults:
                yield _unsent_lines(batch, index)
            else:
                yield _lines(batch, index, place, references[index], request_of)
                place += 1


def _plain_lines(
    batch: Answered, run: range, place: int, references: Sequence[Json]
) -> bytes | None:
    """The lines of consecutive records if all have good, short and usual answers; else None.

    Most runs do. `map` and one look at all of their text cost a fraction of a loop.
    """
    faults = batch.rows.faults
    if batch.answers is None or (faults and not faults.keys().isdisjoint(run)):
        return None
    get = batch.answers.items.get
    first = get(place)
    if first is None or len(memoryview(first.result)) * len(run) > RUN_BYTES:
        return None
    raws = plain_results(map(get, range(place, place + len(run))))
    if len(raws) < len(run) or sum(len(memoryview(raw)) for raw in raws) > RUN_BYTES:
        return None
    results = list(map(bytes, raws))
    if _NULL in results or (batch.vectors and any(map(_has_nulls, results))):
        return None
    ids = range(batch.first_id + run.start, batch.first_id + run.stop)
    parts = zip(ids, references[run.start : run.stop], results, strict=True)
    lines = b"".join(map(_PLAIN_LINE, parts))
    is_plain = _CR not in lines and lines.count(b"\n") == len(run) and _escaped(lines) == lines
    return lines if is_plain else None


def _unsent_lines(batch: Answered, index: int) -> Failure:
    row = batch.rows[index]
    output = failed_line(batch.first_id + index, row, row.code, row.message)
    return Failure(output, error_line(output, row, bytes(row.request)), retry_line(row), row.code)


def _lines(
    batch: Answered, index: int, place: int, reference: Json, request_of: Callable[[int], bytes]
) -> bytes | Failure:
    """The line of a record that was sent, or its lines if it has no good answer."""
    item = batch.answers.items.get(place) if batch.answers else None
    if item is not None and (result := batch.result_of(item)) is not None:
        return answered_line(batch.first_id + index, reference, item, result)
    code, message = batch.why_failed(place)
    request, row = request_of(index), batch.rows[index]
    output = failed_line(batch.first_id + index, row, code, message)
    return Failure(output, error_line(output, row, readable_json(request)), request + b"\n", code)


def answered_line(id_: int, reference: Json, item: Item, result: bytes) -> bytes:
    """The native output line of a record with a good answer."""
    head = b'{"id":%d,"external_reference":' % id_
    return b"".join((head, reference, b',"success":true,"result":', result, _rest(item), b"}\n"))


def failed_line(id_: int, row: RecordEntry, code: str, message: str) -> bytes:
    """The native output line of a failed record."""
    error = _encode({"code": code, "message": message[:MAX_ERROR_CHARACTERS]})
    values = (id_, row.reference, error)
    return escape_line_breaks(
        b'{"id":%d,"external_reference":%b,"success":false,"error":%b}\n' % values
    )


def error_line(output: bytes, row: RecordEntry, request: bytes) -> bytes:
    """The line of `errors.jsonl` for a native output line: with the record's line and request."""
    line = _NULL if row.line is None else b"%d" % row.line
    return b'%b,"line":%b,"request":%b}\n' % (output[:-2], line, escape_line_breaks(request))


def retry_line(row: RecordEntry) -> bytes:
    """The retry line of a native record that could not be sent: its text, if that can be mended."""
    if not is_retried(row.code, row.request):
        return b""
    return b"%b\n" % one_line(str(value_of(row.request)).encode())


def _rest(item: Item) -> bytes:
    """The members of a good item that are the API's own and not in every line."""
    others = item.extra_members()
    if not others:
        return b""
    texts = ((name, _text(raw)) for name, raw in others.items())
    return b"".join(b",%b:%b" % (_encode(name), text) for name, text in texts if text is not None)


def _places_by_reference(references: list[msgspec.Raw]) -> dict[object, int]:
    """The place of each record whose `external_reference` no other record has."""
    keys = [_reference(one) for one in references]
    times = Counter(keys)
    return {key: place for place, key in enumerate(keys) if times[key] == 1 and key != _NULL}


def _reference(raw: msgspec.Raw) -> object:
    """A reference that can be compared: its text, however it is escaped; else its JSON."""
    json = bytes(raw)
    return decode_member(json) if json.startswith(b'"') else json


def _contradicts(item: Item, ours: msgspec.Raw) -> bool:
    theirs, sent = bytes(item.external_reference), bytes(ours)
    if not (theirs.startswith(b'"') and sent.startswith(b'"')):
        return False
    return bool(decode_member(theirs) != decode_member(sent))


def result_of(item: Item) -> bytes | None:
    """A good item's result on one line; None for a failed item, and for one that is not UTF-8."""
    if item.success is not True and has_failed(item):
        return None
    result = bytes(item.result)
    if not result.isascii() or _LF in result or _CR in result:
        return _text(result)
    return None if result == _NULL else result


def _has_nulls(result: bytes) -> bool:
    """Whether an embedding has null in place of numbers, as JSON writes NaN."""
    # One byte is found at a fraction of the cost of four; texts have no bracket, embeddings no u.
    if _OPEN not in result or _U not in result or _NULL not in result:
        return False
    members = unwrapped(result)
    return any(_NULL in bytes(members[name]) for name in ("data", "response") if name in members)


def _text(raw: msgspec.Raw | bytes) -> bytes | None:
    """A member on one line; None if it is not UTF-8, which msgspec checks only when it decodes."""
    return _escaped(one_line(raw))


def _escaped(json: bytes) -> bytes | None:
    """JSON with what some readers take for a line's end escaped; None if it is not UTF-8."""
    if json.isascii():
        return json
    try:
        text = json.decode()
    except UnicodeDecodeError:
        return None
    # Found in text at a fraction of the cost of bytes.
    is_broken = "\u2028" in text or "\u2029" in text or "\x85" in text
    return escape_line_breaks(json) if is_broken else json


def error_text(item: Item) -> str:
    """The message of a failed item, with its code; where the API puts it is not documented."""
    others = item.extra_members()
    for name in ("error", "errors", "message"):
        value = decode_member(others.get(name, _NULL))
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict):
            code, message = code_of(value), value.get("message") or value.get("description") or ""
            return str(message) if code is None else f"{code}: {message}"
        if isinstance(value, str) and value:
            return value
    return ""


# ── formats that keep records as written ──────────────────────────────────────────────────────────

LARGE_RESULT_BYTES, MAX_PARTS = 1 << 20, 500_000  # A larger result is converted if it has few parts
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
        output = native
        if write:
            output = write(Outcome(id_, row.reference, readable, None, code, message))
        retry = record + b"\n" if record and is_retried(code, row.request) else b""
        error = error_line(native, row, _request(row, record, originals))
        yield Failure(output, error, retry, code)


def _is_convertible(result: bytes) -> bool:
    """Whether a result can be decoded in little memory."""
    parts = map(result.count, (b"{", b"[", b","))
    return len(result) < LARGE_RESULT_BYTES or sum(parts) <= MAX_PARTS


def _request(row: RecordEntry, record: bytes, originals: Originals) -> bytes:
    is_own = row.request == NO_REFERENCE and record
    return originals.describe(record) if is_own else bytes(row.request)
