"""CSV and TSV: a row is a record, the first row names the columns; answers are added as columns.

The row itself is copied unchanged wherever possible, both to the output and to the retry file.
Objects of JSON Lines are rows, too: their members are the columns. Text: a line is a record.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.answers import (
    Answer,
    flaw_of,
    json_in,
    read_answer,
    text_value,
    without_thoughts,
)
from dropbatch.core.formats.base import (
    API_BODY_LIMIT,
    NULL,
    BatchFacts,
    Converted,
    Json,
    LineReader,
    Outcome,
    RecordFault,
    Target,
    compact,
    encode,
    is_text,
    json_line,
    object_of,
    value_of,
    with_defaults,
)
from dropbatch.core.formats.conversion.requests import text_input
from dropbatch.core.formats.conversion.tools import arguments_object
from dropbatch.core.formats.rows import (
    REFERENCE_COLUMNS,
    Rows,
    Template,
    first_of,
    named_in,
    template_of,
    text_reference_of,
)
from dropbatch.core.read.lines import without_lone_surrogates
from dropbatch.core.read.rows import split_row

csv.field_size_limit(API_BODY_LIMIT)  # Python's own limit is 128 KB; rows are bounded already.

ADDED_COLUMNS = ("answer", "finish_reason", "error_code", "error_message")
IS_ANSWER = re.compile(r"answer(_\d+)?")
"""Names that the column of the answer may have; the last such column of an output is it."""

_BOM = "\ufeff"


class Columns:
    """A table's header: the names of its columns, each of them unique.

    Attributes:
        header: its exact bytes, with its BOM, without line end.
        names: a name that occurs again gets `_2`, `_3`, … as a suffix.
        answers: columns of an answer's members, in the output.
        only: the position of the only column that has a name, if it is no reference.
    """

    def __init__(self, header: bytes, delimiter: bytes, answers: Iterable[str] = ()) -> None:
        """Read a header."""
        self.delimiter = delimiter
        self.answers = tuple(answers)
        try:
            text = header.decode().lstrip(_BOM)
            (fields,) = (
                csv.reader([text], delimiter=delimiter.decode(), strict=True) if text else ([""],)
            )
        except (UnicodeDecodeError, csv.Error, ValueError) as error:
            raise UploadRefused(
                "unknown_format",
                f"The first row cannot be read as column names ({error}). Save the file as "
                "UTF-8, with LF or CRLF.",
            ) from error
        self.header = header
        self.names = _made_unique(fields)
        named = [index for index, field in enumerate(fields) if field.strip()]
        only = named[0] if len(named) == 1 else 0 if len(fields) == 1 else None
        self.only = None if only == first_of(self.names, REFERENCE_COLUMNS) else only

    def added_header(self) -> bytes:
        """The header of the output, line feed included."""
        answer, *ends = ADDED_COLUMNS
        members = (f"{one}_of_answer" if IS_ANSWER.fullmatch(one) else one for one in self.answers)
        names = _made_unique([*self.names, answer, *members, *ends])[len(self.names) :]
        return (
            self.delimiter.join(
                [self.header, *(quoted(name.encode(), self.delimiter) for name in names)]
            )
            + b"\n"
        )


def _made_unique(names: list[str]) -> list[str]:
    taken: set[str] = set()
    unique = []
    for name in names:
        choice, number = name, 2
        while choice in taken:
            choice, number = f"{name}_{number}", number + 1
        taken.add(choice)
        unique.append(choice)
    return unique


_FIX = "Put a field with a quote or a line break in quotes, and double the quotes in it."


def read_fields(rows: list[bytes], delimiter: bytes) -> list[list[str] | RecordFault]:
    """Each row's values, or why it has none."""
    try:
        found = list(
            csv.reader([row.decode() for row in rows], delimiter=delimiter.decode(), strict=True)
        )
    except (UnicodeDecodeError, csv.Error):
        found = []
    if len(found) == len(rows):
        return [*found]
    return [_read_row(row, delimiter) for row in rows]


def _read_row(row: bytes, delimiter: bytes) -> list[str] | RecordFault:
    try:
        (fields,) = csv.reader([row.decode()], delimiter=delimiter.decode(), strict=True)
    except UnicodeDecodeError as error:
        message = f"Byte {error.start + 1} of the row is not UTF-8. Save the file as UTF-8."
        return RecordFault("invalid_utf8", message)
    except (csv.Error, ValueError) as error:
        reason = str(error).replace("\t", r"\t")
        return RecordFault("bad_record", f"The row cannot be read ({reason}). {_FIX}")
    return fields


class TableReader:
    """Turns rows into requests; `unused`: the columns of which nothing is sent."""

    def __init__(self, target: Target, columns: Columns) -> None:
        """Choose what is sent of a row."""
        self._columns = columns
        self._rows = Rows(target, columns.names, columns.only)
        self.unused = self._rows.unused

    def convert(self, records: list[bytes]) -> list[Converted | RecordFault]:
        """One request or fault for each row."""
        found = zip(records, read_fields(records, self._columns.delimiter), strict=True)
        return [
            fields._replace(reference=self._readable_reference(row))
            if isinstance(fields, RecordFault)
            else self._convert(fields)
            for row, fields in found
        ]

    def _convert(self, fields: list[str]) -> Converted | RecordFault:
        expected = len(self._columns.names)
        if len(fields) != expected:
            message = (
                f"The row has {len(fields)} fields, but the header has {expected}. Quote a "
                "field that contains a comma."
            )
            return RecordFault("bad_record", message, self._rows.reference_of(fields))
        return self._rows.request(fields)

    def _readable_reference(self, row: bytes) -> msgspec.Raw:
        """The reference of a row that cannot be read, if that field can be."""
        written = split_row(row, self._columns.delimiter)
        if self._rows.reference is None or len(written) != len(self._columns.names):
            return NULL
        (field,) = read_fields([written[self._rows.reference]], self._columns.delimiter)
        return NULL if isinstance(field, RecordFault) or not field else text_reference_of(field[0])


class TableWriter:
    """Writes rows with their answers."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:  # noqa: ARG002
        """The row as it was, its answer, and code and message of an error or a flawed answer."""
        text, *ends = _added(outcome)
        members = _members(text, self._columns.answers) if self._columns.answers else ()
        added = [text.encode(errors="replace") for text in (text, *members, *ends)]
        fields = [self.fit(outcome.record), *map(self._quoted, added)]
        return self._columns.delimiter.join(fields) + b"\n"

    def request(self, record: bytes) -> bytes:
        """The row as an object of its columns; of one that cannot be read, what there is."""
        fields = _read_row(record, self._columns.delimiter)
        if isinstance(fields, RecordFault):
            return encode(record.decode(errors="replace"))
        names = self._columns.names
        named = dict(zip(names, fields, strict=False))
        if len(fields) > len(names):
            named[""] = self._columns.delimiter.decode().join(fields[len(names) :])
        return encode(named)

    def fit(self, row: bytes) -> bytes:
        """A row with as many fields as the header; as it was, if it has them and can be read."""
        columns = len(self._columns.names)
        fields = split_row(row, self._columns.delimiter)
        if len(fields) == columns and b"\r" not in row and is_text(row):
            return row
        kept = [self._safe(field) for field in fields[:columns]]
        return self._columns.delimiter.join(kept + [b""] * (columns - len(kept)))

    def _safe(self, field: bytes) -> bytes:
        """A field that others can read: UTF-8, and in quotes with a carriage return in it."""
        field = field if is_text(field) else field.decode(errors="replace").encode()
        return (
            field if b"\r" not in field or _QUOTED_FIELD.fullmatch(field) else self._quoted(field)
        )

    def _quoted(self, value: bytes) -> bytes:
        return quoted(value, self._columns.delimiter)


def _added(outcome: Outcome) -> tuple[str, str, str, str]:
    """What is added to a row: `ADDED_COLUMNS`, each empty if there is none."""
    if outcome.result is None:
        return "", "", outcome.code, outcome.message
    answer = read_answer(outcome.result)
    return answer_text(answer, outcome.result), answer.finish, *flaw_of(answer)


_QUOTED_FIELD = re.compile(rb'"[^"]*+(?:""[^"]*+)*+"')


def quoted(value: bytes, delimiter: bytes) -> bytes:
    """A field, in quotes if it needs them."""
    if any(special in value for special in (delimiter, b'"', b"\n", b"\r")):
        return b'"%b"' % value.replace(b'"', b'""')
    return value


def _members(answer: str, names: Sequence[str]) -> list[str]:
    """The members of an answer that is a JSON object: texts, other values as compact JSON."""
    members = object_of(json_in(answer).encode(errors="replace"))
    found = (members.get(name, NULL) for name in names)
    return ["" if raw == NULL else text_value(raw) for raw in found]


def answer_columns(defaults: Mapping[str, Json]) -> list[str]:
    """The members that a schema in `response_format` gives each answer; empty without one."""
    format_ = value_of(defaults.get("response_format", NULL))
    inner = format_.get("json_schema", format_) if isinstance(format_, dict) else None
    schema = inner.get("schema", inner) if isinstance(inner, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return [*properties] if isinstance(properties, dict) else []


def answer_text(answer: Answer, result: Json) -> str:
    """The text of an answer without thoughts, or its calls; else the result as compact JSON."""
    if not answer.text and answer.calls:
        calls = [{"name": call.name, "arguments": arguments_object(call)} for call in answer.calls]
        return compact(encode(calls)).decode(errors="replace")
    if not answer.is_known:
        return compact(result).decode(errors="replace")
    return without_thoughts(answer.text or "")


COLUMNS = ("text",)
"""What a template may name."""


class TextReader(LineReader):
    """Turns lines into requests."""

    def __init__(self, target: Target) -> None:
        """Read the template."""
        super().__init__(target)
        self._template = template_of(target, COLUMNS)

    def _convert(self, record: bytes) -> Converted | RecordFault:
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            message = f"Byte {error.start + 1} of the line is not UTF-8. Save the file as UTF-8."
            return RecordFault("invalid_utf8", message)
        # joined files have them, and the first line of a retry file loses its own
        text = text.removeprefix(_BOM)
        attached = [text] if self._template and self._template.attached else []
        if self._template:
            text = self._template.fill([text])
        request = text_input(text, self._target, attached)
        return Converted(with_defaults(request, self._target, NULL), NULL)


def text_request(record: bytes) -> bytes:
    """A line as JSON, for `errors.jsonl`: as a row with the one column."""
    return encode({COLUMNS[0]: record.decode(errors="replace").removeprefix(_BOM)})


# ── objects ───────────────────────────────────────────────────────────────────────────────────────


class ObjectReader(LineReader):
    """Turns objects into requests: their members are the columns; `unused` as of a table."""

    def __init__(self, target: Target) -> None:
        """Check the template by itself: which members there are, each object says."""
        super().__init__(target)
        if target.template:
            Template(target.template, named_in(target.template))
        self._rows = lru_cache(100)(partial(Rows, target))
        self.unused = list[str]()

    def _convert(self, record: bytes) -> Converted | RecordFault:
        members = object_of(record)
        cells = ["" if raw == NULL else text_value(raw) for raw in members.values()]
        try:
            rows = self._rows(tuple(members), 0 if len(members) == 1 else None)
        except UploadRefused as error:
            at = first_of(list(members), REFERENCE_COLUMNS)
            own = NULL if at is None else list(members.values())[at]
            return RecordFault("bad_record", error.message, own)
        self.unused = self.unused or rows.unused
        return rows.request(cells, list(members.values()))


class ObjectWriter:
    """Writes objects with their answers."""

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:  # noqa: ARG002
        """The object's members, then its answer, or its error's code and message."""
        own = object_of(without_lone_surrogates(outcome.record))
        result = compact(outcome.result or NULL)
        added: list[object] = [
            one.encode(errors="replace").decode() or None for one in _added(outcome)
        ]
        if added[0] == result.decode(errors="replace"):
            added[0] = msgspec.Raw(result)
        names = _made_unique([*own, *ADDED_COLUMNS])[len(own) :]
        return json_line({**own, **dict(zip(names, added, strict=True))})
