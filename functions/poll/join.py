"""The join: a batch's records and the API's items become result lines, in record order. Pure: knows no S3, no ledger.

Bytes are spliced: an item's members are located and passed on. Nothing is guessed: an item counts only for the record
its `id` (or `index`) names, and only if it does not contradict the record's `external_reference`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shared.verdicts import RETRYABLE_ITEM_CODES
from shared.words import Usage

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Iterator

    from shared.sidecar import Row

Item = dict[str, msgspec.Raw]

LONGEST_WORDS = 1_000
"""Characters of the API's words in an error line."""

_NULL, _TRUE = b"null", msgspec.Raw(b"true")
_RETRYABLE = frozenset(map(str, RETRYABLE_ITEM_CODES))
_LONGEST_ID = 18
_OWN = frozenset({"id", "index", "external_reference", "success", "result"})


class _Inner(msgspec.Struct):
    responses: list[Item] | msgspec.UnsetType = msgspec.UNSET
    results: list[Item] | msgspec.UnsetType = msgspec.UNSET
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Reply(_Inner):
    result: _Inner | msgspec.UnsetType = msgspec.UNSET


class _OddInner(msgspec.Struct):
    responses: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    results: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _OddReply(_OddInner):
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_reply = msgspec.json.Decoder(_Reply).decode
_decode_odd_reply = msgspec.json.Decoder(_OddReply).decode
_decode_odd_inner = msgspec.json.Decoder(_OddInner).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_item = msgspec.json.Decoder(Item).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Answers:
    """A reply's items by the record they answer.

    Attributes:
        items: the one item for each answered record, by its place in what was submitted.
        contradicted: places for which there is more than one answer, or one for another record.
        foreign: items that name no record of the batch.
        repeated: items that say again what another said.
        usage: as the reply tells it.
    """

    items: dict[int, Item] = field(default_factory=dict)
    contradicted: set[int] = field(default_factory=set)
    foreign: int = 0
    repeated: int = 0
    usage: Usage = field(default_factory=Usage)


def read_answers(body: bytes | mmap.mmap, references: list[msgspec.Raw]) -> Answers:
    """Sort a complete reply's items by the record they answer.

    Args:
        body: the reply, of either shape, with or without the envelope.
        references: each submitted record's `external_reference`, in the order of submission.

    Raises:
        msgspec.MsgspecError: no reply with `responses` or `results`.
    """
    items, usage = _items_of(body)
    answers = Answers(usage=_usage(usage))
    for item in items:
        place = _place(item)
        if place is None or not 0 <= place < len(references):
            answers.foreign += 1
        elif place in answers.items:
            if answers.items[place] == item:
                answers.repeated += 1
            else:
                answers.contradicted.add(place)
        else:
            answers.items[place] = item
            if _contradicts(item.get("external_reference"), references[place]):
                answers.contradicted.add(place)
    for place in answers.contradicted:
        answers.items.pop(place, None)
    if answers.usage == Usage():
        for item in answers.items.values():
            answers.usage = answers.usage.plus(_item_usage(item))
    return answers


def add_round(answers: Answers, later: Answers, places: list[int]) -> None:
    """Put the answers of records that were tried again in the place of the failed ones."""
    for at, item in later.items.items():
        answers.items[places[at]] = item
    answers.usage = answers.usage.plus(later.usage)


def worth_a_retry(answers: Answers) -> list[int]:
    """Places of records that failed because the service was short of something."""
    complaining = [(place, item) for place, item in answers.items.items() if not _OWN.issuperset(item)]
    return sorted(
        place
        for place, item in complaining
        if _result(item) is None and _complaint(item).partition(":")[0] in _RETRYABLE
    )


class Line(NamedTuple):
    """One record's result: its output line; of a failed one its error line, if it can be sent its request, and why."""

    output: bytes
    error: bytes = b""
    retry: bytes = b""
    code: str = ""


def join(
    rows: Iterable[Row],
    first_id: int,
    answers: Answers | None,
    ending: tuple[str, str] | None,
    request_of: Callable[[int], bytes],
) -> Iterator[Line]:
    """One line for each record, in order.

    Args:
        rows: the sidecar.
        first_id: id of the first record.
        answers: what the API answered; None where no answer is to come.
        ending: code and words for records without an answer.
        request_of: gives a row's request on one line; asked only for records that failed.
    """
    place = -1
    for index, row in enumerate(rows):
        head = b'{"id":%d,"external_reference":%b,"success":' % (first_id + index, row.reference)
        if row.code:
            yield _failed(head, row, row.code, row.message, bytes(row.request), b"")
            continue
        place += 1
        item = answers.items.get(place) if answers else None
        if item is not None and (result := _result(item)) is not None:
            yield Line(b"".join((head, b'true,"result":', result, *_rest(item), b"}\n")))
            continue
        request = request_of(index)
        if item is not None:
            code, words = "inference_failed", _complaint(item) or "Workers AI gave no reason."
        elif answers and place in answers.contradicted:
            code, words = "missing_response", "Workers AI sent answers that contradict each other."
        else:
            code, words = ending or ("missing_response", "Workers AI sent no answer for this record.")
        yield _failed(head, row, code, words, request, request)


def one_line(raw: msgspec.Raw | bytes) -> bytes:
    """JSON on one line, byte for byte unless it holds line breaks between its tokens."""
    json = bytes(raw)
    return msgspec.json.format(json, indent=-1) if b"\n" in json or b"\r" in json else json


def _failed(head: bytes, row: Row, code: str, message: str, request: bytes, retry: bytes) -> Line:
    told = b'%bfalse,"error":%b' % (head, _encode({"code": code, "message": message[:LONGEST_WORDS]}))
    line = _NULL if row.line is None else b"%d" % row.line
    error = b'%b,"line":%b,"request":%b}\n' % (told, line, request)
    return Line(told + b"}\n", error, retry + b"\n" if retry else b"", code)


def _rest(item: Item) -> list[bytes]:
    """The members of a good item that are the API's own and not in every line."""
    if _OWN.issuperset(item):
        return []  # nearly always
    others = ((name, _text(raw)) for name, raw in item.items() if name not in _OWN)
    return [b",%b:%b" % (_encode(name), text) for name, text in others if text is not None]


def _items_of(body: bytes | mmap.mmap) -> tuple[list[Item], msgspec.Raw | msgspec.UnsetType]:
    """A reply's items and its usage, in one pass over its bytes: nearly all of the work of reading a reply."""
    try:
        outer = _decode_reply(body)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return _odd_items_of(body)
    bare = outer.responses is not msgspec.UNSET or outer.results is not msgspec.UNSET
    inner = outer if bare or outer.result is msgspec.UNSET else outer.result
    items = inner.results if inner.responses is msgspec.UNSET else inner.responses
    if items is msgspec.UNSET:
        raise msgspec.ValidationError("a reply without responses or results")
    return items, inner.usage


def _odd_items_of(body: bytes | mmap.mmap) -> tuple[list[Item], msgspec.Raw | msgspec.UnsetType]:
    """The same where something is not of the type it should be, say an item that is no object: in four passes."""
    outer = _decode_odd_reply(body)
    inner: _OddInner = outer
    if not (_begins(outer.responses, b"[") or _begins(outer.results, b"[")) and _begins(outer.result, b"{"):
        inner = _decode_odd_inner(outer.result)  # type: ignore[arg-type]  # a Raw is bytes to msgspec
    array = inner.responses if _begins(inner.responses, b"[") else inner.results
    if not _begins(array, b"["):
        raise msgspec.ValidationError("a reply without responses or results")
    return [_read_item(raw) for raw in _decode_raws(array)], inner.usage  # type: ignore[arg-type]


def _read_item(raw: msgspec.Raw) -> Item:
    try:
        return _decode_item(raw)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return {}  # no object, or its keys are no text: it answers nobody


def _place(item: Item) -> int | None:
    for name in ("id", "index"):
        raw = bytes(item.get(name, b"")).strip(b'"')
        if raw.isdigit() and len(raw) <= _LONGEST_ID:
            return int(raw)
    return None


def _contradicts(theirs: msgspec.Raw | None, ours: msgspec.Raw) -> bool:
    """Whether both are strings, and not the same."""
    if theirs is None or theirs == ours:
        return False
    told, wanted = bytes(theirs), bytes(ours)
    if not (told.startswith(b'"') and wanted.startswith(b'"')):
        return False
    return bool(_value(told) != _value(wanted))


def _result(item: Item) -> bytes | None:
    """A good item's result on one line; None for a failed item, and for one whose bytes are no text."""
    if item.get("success", _TRUE) != _TRUE:
        return None
    result = _text(item.get("result", _NULL))
    return None if result == _NULL else result


def _text(raw: msgspec.Raw | bytes) -> bytes | None:
    """A member on one line; None if its bytes are no text: msgspec looks at those only that it makes values of."""
    json = one_line(raw)
    if not json.isascii():
        try:
            json.decode()
        except UnicodeDecodeError:
            return None
    return json


def _value(raw: msgspec.Raw | bytes) -> Any:  # noqa: ANN401  # whatever the API sent
    """A member's value; None if it has none: no text, or a number beyond all bounds."""
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _complaint(item: Item) -> str:
    """The words of a failed item, with its code; the API's place for them is not documented."""
    for name in ("error", "errors", "message"):
        value = _value(item.get(name, _NULL))
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict):
            code = value.get("code") if value.get("code") is not None else value.get("internalCode")
            words = str(value.get("message") or value.get("description") or "")
            return f"{code}: {words}" if re.fullmatch("[0-9]{1,9}", str(code)) else words
        if isinstance(value, str) and value:
            return value
    return ""


def _begins(raw: msgspec.Raw | msgspec.UnsetType, with_byte: bytes) -> bool:
    return raw is not msgspec.UNSET and bytes(memoryview(raw)[:1]) == with_byte


def _usage(raw: msgspec.Raw | bytes | msgspec.UnsetType) -> Usage:
    if raw is msgspec.UNSET:
        return Usage()
    value = _value(raw)
    if not isinstance(value, dict):
        return Usage()
    told = {name: value[name] for name in Usage.__slots__ if type(value.get(name)) is int}
    return Usage(**told)


class _ResultUsage(msgspec.Struct):
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_result_usage = msgspec.json.Decoder(_ResultUsage).decode


def _item_usage(item: Item) -> Usage:
    """Usage inside one item's result, as chat models tell it."""
    result = item.get("result")
    if result is None or bytes(memoryview(result)[:1]) != b"{":
        return Usage()
    return _usage(_decode_result_usage(result).usage)
