"""Reading a job's results, in input order, whatever the upload's format.

A record's place in the output is its id, and `errors.jsonl` has the id of each failed record. So
the two files, read side by side, tell every record's fate. A record's text is the answer in every
dialect, without a model's thoughts.
"""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from dropbatch.core.formats.answers import Answer, flaw_of, read_answer, vectors_of
from dropbatch.core.formats.base import BOM, NULL, encode, members_of, value_of
from dropbatch.core.formats.rows import REFERENCE_COLUMNS, first_of
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.formats.tables import IS_ANSWER, Columns, answer_text, read_fields
from dropbatch.core.read.rows import OverlongRecord, read_rows, split_row
from dropbatch.errors import Error, NotFound

DEFAULT_FORMAT = "native"
"""The format of a job that ended before its own was known."""
Path = tuple[str | int, ...]

_CONTENTS: tuple[Path, ...] = (
    ("content",),
    ("output", "message", "content"),
    ("results", 0, "outputText"),
    ("generation",),
    ("outputs", 0, "text"),
)
"""Where Anthropic and Bedrock's models have a text or its blocks; OpenAI's shapes are known."""
_ENDINGS: tuple[Path, ...] = (
    ("stop_reason",),
    ("stopReason",),
    ("results", 0, "completionReason"),
    ("outputs", 0, "stop_reason"),
)
_FINISH_WORDS = {
    **dict.fromkeys(("end_turn", "stop_sequence", "finish", "completed"), "stop"),
    "tool_use": "tool_calls",
}
_VECTORS: tuple[Path, ...] = (("embeddings", "float"), ("embeddings",), ("data",), ("response",))
_VECTOR_MEMBERS = frozenset({"embedding", "embeddings", "data"})
_NO_ANSWER = read_answer(b"null")

MAX_SHOWN = 80
"""Characters of an answer in a record's repr."""
MAX_ROW_BYTES = 1 << 30
"""Bytes of an output's row: a record and its answer."""


class RecordError(NamedTuple):
    """Why a record failed; docs/results.md lists the codes."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """A record's outcome.

    Attributes:
        id: its position in the upload, from 0.
        external_reference: the user's own name for it; None without one.
        success: whether it was answered, in the API's words: see `flaw`.
        result: the API's result; in a format of other vendors their body; in a table `response` has
            the answer's text. None if it failed.
        error: None if it was answered.
        value: what `Job.results(into=…)` made of the answer.
        misfit: why it could make nothing; None if it could, or was not asked to.
    """

    id: int
    external_reference: Any
    success: bool
    result: Any
    error: RecordError | None
    value: Any = None
    misfit: RecordError | None = None

    def __repr__(self) -> str:
        says = repr(f"{self.error.code}: {self.error.message}" if self.error else self.text)
        name = "" if self.external_reference is None else f" {self.external_reference!r}"
        more = "…" if len(says) > MAX_SHOWN else ""
        return f"<Record {self.id}{name} {says[:MAX_SHOWN]}{more}>"

    @property
    def text(self) -> str | None:
        """The answer's text without thoughts, else its tool calls or the result as JSON."""
        return text_of(self.result)

    @property
    def embedding(self) -> list[float] | None:
        """The answer's embedding; None if it is none, or `Error` if it has several."""
        return vector_of(self.result, self.id)

    @property
    def finish_reason(self) -> str:
        """Why the model stopped: `stop`, `length`, …; empty if it did not say."""
        return answer_of(self.result).finish

    @property
    def flaw(self) -> RecordError | None:
        """Why a good answer is none, `empty_answer` or `truncated_answer`; None if it is one."""
        code, message = flaw_of(answer_of(self.result)) if self.success else ("", "")
        return RecordError(code, message) if code else None


class Failure(msgspec.Struct):
    """A line of `errors.jsonl`."""

    class Detail(msgspec.Struct):
        """Code and message."""

        code: str
        message: str = ""

    id: int
    error: Detail
    external_reference: msgspec.Raw = NULL
    request: msgspec.Raw = NULL


_LAST_COLUMNS = re.compile(rb"([,;\t|])error_code(?:_\d+)?\1error_message(?:_\d+)?\n")
_failure = msgspec.json.Decoder(Failure).decode
_decode = msgspec.json.decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ResultFiles(NamedTuple):
    """A finished job's output and `errors.jsonl`, which can be read more than once, in blocks."""

    output: Callable[[], Iterable[bytes]]
    errors: Callable[[], Iterable[bytes]]
    format: str

    def records(self) -> Iterator[Record]:
        """The job's records, in input order."""
        return records_of(self.output(), self.errors(), self.format)


def files_of(
    manifest: dict[str, Any], blocks: Callable[[dict[str, Any]], Iterable[bytes]]
) -> ResultFiles:
    """A job's files."""
    entries = {entry["kind"]: entry for entry in manifest["files"]}
    if "output" not in entries:
        raise NotFound(f"Job {manifest['job_id']} has no output.")
    output, errors = entries["output"], entries.get("errors")
    return ResultFiles(
        lambda: blocks(output),
        lambda: blocks(errors) if errors else (),
        manifest["format"] or DEFAULT_FORMAT,
    )


def records_of(output: Iterable[bytes], errors: Iterable[bytes], format_: str) -> Iterator[Record]:
    """The records of an output and of its `errors.jsonl`, which are given in blocks."""
    failures = read_failures(errors)
    failure = next(failures, None)
    for id_, (reference, result) in enumerate(answers_of(output, format_)):
        if failure is None or failure.id != id_:
            yield Record(id_, reference, success=True, result=result, error=None)
            continue
        error = RecordError(failure.error.code, failure.error.message)
        own = reference if reference is not None else _decode(failure.external_reference)
        yield Record(id_, own, success=False, result=None, error=error)
        failure = next(failures, None)


def read_failures(errors: Iterable[bytes]) -> Iterator[Failure]:
    """The failed records, in order, of an `errors.jsonl` that is given in blocks."""
    return map(_failure, lines_of(errors))


def is_native(format_: str) -> bool:
    """Whether a format's output has the lines of the native format."""
    return FORMATS[format_].writer is None


def answers_of(output: Iterable[bytes], format_: str) -> Iterator[tuple[Any, Any]]:
    """Each record's reference, and what its line has as an answer."""
    form = FORMATS[format_]
    if form.is_table:
        yield from _rows(output)
        return
    for line in lines_of(output):
        members = _members(line)
        if not form.reference:  # Objects, whose own members are beside the answer.
            yield _of_object(members)
            continue
        value: Any = _decode(members.get(form.answer[0], NULL))
        for name in form.answer[1:]:
            value = value.get(name) if isinstance(value, dict) else None
        yield _decode(members.get(form.reference, NULL)), value


def _of_object(members: dict[str, msgspec.Raw]) -> tuple[Any, Any]:
    names = list(members)
    answer = answer_position(names)
    reference = first_of(names[:answer], REFERENCE_COLUMNS)
    own = NULL if reference is None else members[names[reference]]
    text, finish = (_decode(members[one]) for one in names[answer : answer + 2])
    return _decode(own), text if isinstance(text, dict) else _cell_result(text or "", finish or "")


def _rows(output: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
    rows = table_rows(output)
    header = next(rows, b"")
    if not header:  # of an empty file
        return
    delimiter = delimiter_of(header + b"\n")
    columns = Columns(header, delimiter)
    answer = answer_position(columns.names)
    reference = first_of(columns.names[:answer], REFERENCE_COLUMNS)
    for row in rows:
        fields = split_row(row, delimiter)
        if len(fields) != len(columns.names):
            raise Error("The output was changed: a row does not fit its header.")
        own = _field(fields[reference], delimiter) if reference is not None else ""
        text, finish = (_field(fields[at], delimiter) for at in (answer, -3))
        yield own or None, _cell_result(text, finish)


def _cell_result(text: str, finish: str) -> dict[str, Any]:
    """The result that a table's answer was: the API's own object of an embedding, or a text."""
    own = value_of(text.encode()) if text.startswith("{") else None
    if isinstance(own, dict) and vectors_of(members_of(text.encode()) or {}):
        return own
    return {"response": text, **({"finish_reason": finish} if finish else {})}


def _field(written: bytes, delimiter: bytes) -> str:
    """A field's value; empty if it cannot be read."""
    (found,) = read_fields([written], delimiter)
    return found[0] if isinstance(found, list) and found else ""


def answer_position(names: Sequence[str]) -> int:
    """The answer's position in a row: the last column whose name Dropbatch made for it."""
    return max(at for at, name in enumerate(names) if IS_ANSWER.fullmatch(name))


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file that is given in blocks, without line ends; the last needs none."""
    held: list[bytes] = []
    for block in blocks:
        first, *others = block.split(b"\n")
        held.append(first)
        for line in others:
            if whole := b"".join(held):
                yield whole
            held = [line]
    if whole := b"".join(held):
        yield whole


def table_rows(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The rows of an output that is a table, its header with its BOM first, without line ends."""
    beginning, stream = b"", iter(blocks)
    while b"\n" not in beginning and (block := next(stream, b"")):
        beginning += block
    delimiter = delimiter_of(beginning)
    bom = BOM if beginning.startswith(BOM) else b""  # Before it, a quote would begin no field.
    whole = chain([beginning.removeprefix(BOM)], stream)
    for window in read_rows(whole, delimiter, limit=MAX_ROW_BYTES):
        for row in window.records:
            if isinstance(row, OverlongRecord):
                raise Error(f"A row has {row.length:,} bytes, more than {MAX_ROW_BYTES:,}.")
            yield bom + row
            bom = b""


def delimiter_of(beginning: bytes) -> bytes:
    """The byte before an output's last column, which Dropbatch added."""
    found = _LAST_COLUMNS.search(beginning)
    return found.group(1) if found else b","


# ── what a result says, in the shape of every format ──────────────────────────────────────────────


def answer_of(result: Any) -> Answer:
    """The answer that a result is; an embedding is none, and is not read."""
    if isinstance(result, dict) and _VECTOR_MEMBERS & result.keys():
        return _NO_ANSWER
    content = _first(result, _CONTENTS)
    if content is not None:
        result = _own_shape(content, _first(result, _ENDINGS))
    answer = read_answer(encode(result))
    return answer._replace(finish=_FINISH_WORDS.get(answer.finish, answer.finish))


def text_of(result: Any) -> str | None:
    """An answer's text, else its tool calls or the whole result as JSON."""
    if result is None:
        return None
    return answer_text(answer_of(result), encode(result))


def vector_of(result: Any, id_: int) -> list[float] | None:
    """An answer's embedding; None if it is none."""
    if not isinstance(result, dict):
        return None
    own = at(result, ("embedding",))
    found = [own] if own is not None else _first(result, _VECTORS)
    if not isinstance(found, list) or not found:
        return None
    vectors = [_numbers(one) for one in found]
    if None in vectors:
        return None
    if len(vectors) > 1:
        raise Error(
            f"Record {id_} has {len(vectors)} vectors. Send one text a record, or read them with "
            "`Job.results()`."
        )
    return vectors[0]


def _numbers(found: Any) -> list[float] | None:
    """A vector as it is written: numbers, those of OpenAI's object, or their base64."""
    if isinstance(found, dict):
        return _numbers(found.get("embedding"))
    if isinstance(found, list):
        return found if all(isinstance(one, int | float) for one in found) else None
    if not isinstance(found, str):
        return None
    try:
        return array("f", base64.b64decode(found, validate=True)).tolist()
    except ValueError:
        return None


def at(value: Any, path: Path) -> Any:
    """What a value has at a path; None if nothing."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and len(value) > step else None
    return value


def _first(value: Any, paths: tuple[Path, ...]) -> Any:
    return next((found for path in paths if (found := at(value, path)) is not None), None)


def _own_shape(content: Any, ending: Any) -> dict[str, Any]:
    """A text, or blocks of one, as Workers AI's own answer."""
    blocks = content if isinstance(content, list) else [{"text": content}]
    texts = [at(one, ("text",)) for one in blocks]
    calls = [
        call
        for one in blocks
        if (call := one if at(one, ("type",)) == "tool_use" else at(one, ("toolUse",)))
    ]
    return {
        "response": "".join(one for one in texts if isinstance(one, str)),
        "tool_calls": [{"name": one["name"], "arguments": one["input"]} for one in calls],
        "finish_reason": ending,
    }
