"""One reply of the API as data, one class for each meaning (`Reply`).

Accepts what Cloudflare does not specify: any 2xx, bodies with or without the envelope, both shapes
of a completed batch, unknown status words. Every number and text that is stored is bounded. What an
error means: `shared.workers_ai.error_codes`.
"""

from __future__ import annotations

import mmap
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec

from dropbatch.core.errors import first_error
from dropbatch.core.formats.base import NULL, begins
from dropbatch.core.read.lines import REPLACEMENT, SURROGATES
from shared.workers_ai.results import (
    COMPLETED_WORDS,
    FAILED_WORDS,
    Answer,
    TooManyItemsError,
    decode_member,
    is_placeholder,
    only_object,
    parse_answer,
)

MAX_RETRY_AFTER_SECONDS = 900.0
"""Maximum `retry-after` that is obeyed."""
MAX_REQUEST_ID_CHARACTERS = 1_024
"""Documented ones have 36."""

MAX_ERROR_BYTES = 1_000_000
"""Maximum bytes of a reply without results; a larger one is not read."""
MAX_ITEMS_FOR_EACH = 2
"""Maximum items of a reply for each request that was sent; with more it is no answer."""
LARGEST_BATCH = 100_000
"""Requests of the largest batch that `MaxRequestsPerBatch` allows."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The API accepted the batch."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pending:
    """Not finished; `status` is the API's own, empty if it gave none."""

    status: str


@dataclass(frozen=True, slots=True)
class NoAnswers:
    """Reported as completed, but without any answers: doubtful."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An HTTP error, or no connection (status 0). What it proves: `error_codes.is_ambiguous`.

    `enveloped`: the body is the API's own JSON, whose first code and truncated message these are.
    """

    status: int
    code: int | None
    message: str
    retry_after: float | None = None
    enveloped: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The batch as a whole failed after acceptance; `enveloped` as of `Rejected`."""

    code: int | None
    message: str
    enveloped: bool = True


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """What the API did is unknown: the reply is incomplete or not the API's."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A whole reply that is an answer, but not JSON that can be read."""

    reason: str = "its answer cannot be read as JSON"


Reply = Accepted | Answer | Pending | NoAnswers | Rejected | Failed | OutcomeUnknown | Unreadable


class _Body(msgspec.Struct):
    """Every key of any known reply, with or without the envelope; arrays and results stay bytes."""

    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    success: Any = None
    errors: Any = None
    error: Any = None
    responses: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    results: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    request_id: Any = None
    status: Any = None
    message: Any = None
    code: Any = None
    internalCode: Any = None  # noqa: N815 - the API's own name
    description: Any = None


_decode = msgspec.json.Decoder(_Body).decode
_skip = msgspec.json.Decoder(msgspec.Raw).decode
_MOST_SPACE = 64
"""Bytes of white space that may follow a reply's JSON."""
_OBJECT = re.compile(rb"\s*\{")
_ARRAY = re.compile(rb'"(?:responses|results)"\s*:\s*\[')
_RESULT = re.compile(rb'"result"\s*:\s*[^n\s]')


def parse_reply(
    status: int,
    retry_after: str | None,
    content: bytes | mmap.mmap,
    *,
    submitting: bool,
    sent: int = LARGEST_BATCH,
) -> Reply:
    """Turn a complete reply to a submit or a poll of so many requests into data."""
    wait = _seconds(retry_after)
    good = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
    most = MAX_ITEMS_FOR_EACH * sent
    try:
        answer = _answer_in(content, most) if good else None
        if good and answer is None and len(content) > MAX_ERROR_BYTES:
            answer = _answer_in(without_lone_surrogates(content), most)
        if answer and _is_paid(answer, sent):
            return _with_items(status, answer, submitting=submitting)
        if len(content) > MAX_ERROR_BYTES:
            return _unread(status, wait, content, answer)
        try:
            content, outer, inner = _decoded(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _unread(status, wait, content, answer)
        if good and answer is None:
            answer = _answer_in(content, most)  # now without lone surrogates
    except TooManyItemsError:
        return OutcomeUnknown(
            f"HTTP {status} with more than {MAX_ITEMS_FOR_EACH} items for each request"
        )
    if answer and _is_paid(answer, sent):
        return _with_items(status, answer, submitting=submitting)
    if not good or outer.success is False:
        return _no_answer(status, wait, outer)
    word = inner.status.lower() if isinstance(inner.status, str) else ""
    return _unfinished(status, wait, outer, inner, word, submitting=submitting)


def parse_beginning(status: int, retry_after: str | None, beginning: bytes, most: int) -> Reply:
    """What a reply of over `most` bytes means: an answer begins as one, with a result."""
    if _begins_as_answer(status, beginning):
        return Failed(None, f"its answer has over {most:,} bytes, more than Dropbatch can hold")
    return _no_answer(status, _seconds(retry_after), None)


def _unread(
    status: int, wait: float | None, content: bytes | mmap.mmap, answer: Answer | None
) -> Reply:
    """What a complete reply means that could not be read, as if a record is nested too deeply.

    One that was cut off says nothing of its records: the next poll may bring it whole.
    """
    if answer is None and _begins_as_answer(status, content) and not _is_cut_off(content):
        return Unreadable()
    return _no_answer(status, wait, None)


def _begins_as_answer(status: int, content: bytes | mmap.mmap) -> bool:
    """Whether a good reply begins with `{`, and has an array of answers with a result."""
    good = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
    array = _ARRAY.search(content) if good and _OBJECT.match(content) else None
    return array is not None and _RESULT.search(content, array.end()) is not None


def _is_cut_off(content: bytes | mmap.mmap) -> bool:
    """Whether all that is wrong with JSON that cannot be read is that its end is missing."""
    if not content[-_MOST_SPACE:].rstrip().endswith(b"}"):
        return True
    try:
        _skip(content)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:
        pass
    return False


def _is_paid(answer: Answer, sent: int) -> bool:
    """Whether an array is an answer, or a part of one; under `"success":false`, only as a whole."""
    if not answer.refused:
        return not all(is_placeholder(item, unfinished=answer.unfinished) for item in answer.items)
    return len(answer.items) == sent > 0 and all(item.result != NULL for item in answer.items)


def _with_items(status: int, answer: Answer, *, submitting: bool) -> Reply:
    """What a reply with items means; the status 202 says that the batch may still run."""
    if status in {HTTPStatus.ACCEPTED, HTTPStatus.PARTIAL_CONTENT} and not answer.status:
        answer = replace(answer, unfinished=True)
    if submitting and answer.unfinished and (own := _id_of(decode_member(answer.request_id))):
        return Accepted(own)
    return answer


def _unfinished(
    status: int, wait: float | None, outer: _Body, inner: _Body, word: str, *, submitting: bool
) -> Reply:
    # A body without the envelope may be the API's or a proxy's: it must name the batch.
    enveloped = outer.success is not None or inner is not outer or bool(inner.request_id)
    if word in FAILED_WORDS:
        problem = _problem(inner)
        if problem == (None, ""):
            problem = _problem(outer)
        if submitting and not enveloped:
            return OutcomeUnknown(f"HTTP {status} with a body that is not the API's JSON")
        return Failed(*problem, enveloped=enveloped)
    code, message = _problem(outer)
    if code is not None and not word and not inner.request_id:
        return Rejected(status, code, message, wait, enveloped=True)
    if not submitting:
        if word == "completed" or (enveloped and word and word in COMPLETED_WORDS):
            return NoAnswers()
        has_array = begins(outer.responses, b"[") or begins(outer.results, b"[")
        if enveloped or word or has_array or outer.result is not msgspec.UNSET:
            return Pending(word[:32])
        return OutcomeUnknown(f"HTTP {status} with a body that is not the API's JSON")
    if request_id := _id_of(inner.request_id):
        return Accepted(request_id)
    return OutcomeUnknown(f"HTTP {status} with neither request_id nor results")


def _id_of(value: object) -> str:
    """A request_id, given as text or as a positive integer; empty if it is too long."""
    if type(value) is int and value > 0:
        value = str(value)
    return value if isinstance(value, str) and len(value) <= MAX_REQUEST_ID_CHARACTERS else ""


def _no_answer(status: int, wait: float | None, body: _Body | None) -> Reply:
    """An error reply: rejected, unless it is not the API's own and the outcome is unknown."""
    code, message = _problem(body) if body else (None, f"HTTP {status} without the API's JSON")
    enveloped = body is not None and (
        code is not None or body.success is False or isinstance(body.errors, list)
    )
    is_refusal = HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    if not enveloped and not is_refusal:
        return OutcomeUnknown(f"HTTP {status} with a body that is not the API's JSON")
    return Rejected(status, code, message, wait, enveloped=enveloped)


def says_success(content: bytes | mmap.mmap) -> bool:
    """Whether a body is the API's own JSON and contains `"success":true`."""
    try:
        return len(content) <= MAX_ERROR_BYTES and _decode(content).success is True
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _answer_in(content: bytes | mmap.mmap, most: int) -> Answer | None:
    """A batch's results, if it holds any: tried first, because such replies are the large ones."""
    try:
        return parse_answer(content, most)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # parsed in other ways next


def _decoded(content: bytes | mmap.mmap) -> tuple[bytes | mmap.mmap, _Body, _Body]:
    """The body with and without its envelope, and the bytes they were read from."""
    try:
        outer = _decode(content)
    except msgspec.DecodeError:
        content = without_lone_surrogates(content)
        outer = _decode(content)
    return content, outer, _unwrapped(outer)


def _unwrapped(outer: _Body) -> _Body:
    has_array = begins(outer.responses, b"[") or begins(outer.results, b"[")
    result = None if has_array else only_object(outer.result)
    return outer if result is None else _decode(result)


def _problem(body: _Body) -> tuple[int | None, str]:
    return first_error(msgspec.structs.asdict(body))


def _seconds(header: str | None) -> float | None:
    """The seconds of a `retry-after` header, at most `MAX_RETRY_AFTER_SECONDS`."""
    if header is None:
        return None
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", header):
        seconds = float(header)
    else:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(seconds, MAX_RETRY_AFTER_SECONDS) if seconds > 0 else None


# ── lone surrogates ───────────────────────────────────────────────────────────────────────────────

# Such as `\ud83d` alone, where a text was cut by UTF-16 units: valid JSON, no text.

CHUNK_BYTES = 1 << 20
"""Bytes copied at a time."""


def without_lone_surrogates(content: bytes | mmap.mmap) -> bytes | mmap.mmap:
    """The same JSON with U+FFFD in place of each lone surrogate; on disk if the content is."""
    if isinstance(content, bytes):
        return b"".join(_pieces(content))
    with tempfile.TemporaryFile() as file:
        file.writelines(_pieces(content))
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _pieces(content: bytes | mmap.mmap) -> Iterator[bytes]:
    done = 0
    for match in SURROGATES.finditer(content):
        if match[1] is not None:
            yield from _slices(content, done, match.start())
            yield REPLACEMENT
            done = match.end()
    yield from _slices(content, done, len(content))


def _slices(content: bytes | mmap.mmap, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, CHUNK_BYTES):
        yield content[at : min(at + CHUNK_BYTES, end)]
