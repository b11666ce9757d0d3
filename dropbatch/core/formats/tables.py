"""CSV and TSV: a row is a record, the first row names the columns; answers are added as columns.

The row itself is copied unchanged wherever possible, both to the output and to the retry file.
Text files: a line is a record.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence

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
    Shape,
    Target,
    compact,
    encode,
    is_text,
    object_of,
    value_of,
    with_defaults,
)
from dropbatch.core.formats.conversion.requests import CHAT_SHAPES, text_input
from dropbatch.core.formats.conversion.tools import arguments_object
from dropbatch.core.read.rows import split_row

csv.field_size_limit(API_BODY_LIMIT)  # Python's own limit is 128 KB; rows are bounded already.

INPUT_COLUMNS = ("text", "prompt", "input", "question")
"""Columns used as the input if there is no template. A table's only column is used, whatever its
name."""

REFERENCE_COLUMNS = ("external_reference", "custom_id", "recordId", "id")
"""Columns used as a row's reference: the first one that exists."""

ADDED_COLUMNS = ("answer", "finish_reason", "error_code", "error_message")
IS_ANSWER = re.compile(r"answer(_\d+)?")
"""Names that the column of the answer may have; the last such column of an output is it."""

_BOM = "\ufeff"


class Columns:
    """A table's header: the names of its columns, each of them unique.

    Attributes:
        header: its exact bytes, with its BOM, without line end.
        delimiter: one byte.
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
        self.only = None if only == self.find(REFERENCE_COLUMNS) else only

    def find(self, candidates: Iterable[str]) -> int | None:
        """The position of the first candidate that exists; None if none does."""
        found = (position(self.names, name) for name in candidates)
        return next((index for index in found if index is not None), None)

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
    """Turns rows into requests."""

    def __init__(self, target: Target, columns: Columns) -> None:
        """Choose the column that is the input, or read the template."""
        self._target = target
        self._columns = columns
        self._template = _template(target, columns.names)
        self._input = 0
        if not self._template:
            self._input = _input_column(columns) if columns.only is None else columns.only
        self._reference = columns.find(REFERENCE_COLUMNS)

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
        reference = self._reference_of(fields)
        expected = len(self._columns.names)
        if len(fields) != expected:
            message = (
                f"The row has {len(fields)} fields, but the header has {expected}. Quote a "
                "field that contains a comma."
            )
            return RecordFault("bad_record", message, reference)
        if self._template and self._template.is_blank(fields):
            return RecordFault(
                "bad_record", "template: All cells that it names are empty in this row.", reference
            )
        text = self._template.fill(fields) if self._template else fields[self._input]
        attached = self._template.attached if self._template else []
        needed = attached or ([] if text else [self._input])
        if empty := [column for column in needed if not fields[column]]:
            message = f"{self._columns.names[empty[0]]}: The cell is empty."
            return RecordFault("bad_record", message, reference)
        request = text_input(text, self._target, [fields[column] for column in attached])
        return Converted(with_defaults(request, self._target, reference), reference)

    def _readable_reference(self, row: bytes) -> msgspec.Raw:
        """The reference of a row that cannot be read, if that field can be."""
        written = split_row(row, self._columns.delimiter)
        if self._reference is None or len(written) != len(self._columns.names):
            return NULL
        (field,) = read_fields([written[self._reference]], self._columns.delimiter)
        return NULL if isinstance(field, RecordFault) or not field else _as_json(field[0])

    def _reference_of(self, fields: list[str]) -> msgspec.Raw:
        if self._reference is None or self._reference >= len(fields):
            return NULL
        return _as_json(fields[self._reference])


def _as_json(reference: str) -> msgspec.Raw:
    return type(NULL)(encode(reference)) if reference else NULL


def _input_column(columns: Columns) -> int:
    found = columns.find(INPUT_COLUMNS)
    if found is None:
        raise UploadRefused(
            "bad_options",
            f"template: none is given, and no column is named {', '.join(INPUT_COLUMNS)}. Set "
            "the option template to a text with columns in braces, such as "
            f"{{{columns.names[0][:60]}}}. The columns are: {listed(columns.names)}.",
        )
    return found


class TableWriter:
    """Writes rows with their answers."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:  # noqa: ARG002
        """The row as it was, its answer, and code and message of an error or a flawed answer."""
        text, finish, code, message = "", "", outcome.code, outcome.message
        if outcome.result is not None:
            answer = read_answer(outcome.result)
            text, finish = answer_text(answer, outcome.result), answer.finish
            code, message = flaw_of(answer)
        members = _members(text, self._columns.answers) if self._columns.answers else ()
        texts = (text, *members, finish, code, message)
        added = [text.encode(errors="replace") for text in texts]
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
    if answer.text is None and not answer.is_known:
        return compact(result).decode(errors="replace")
    return without_thoughts(answer.text or "")


ATTACHED = ":s3}"
"""The end of what a template says of a column that names an object in S3."""
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Template:
    """A template, read once: text, column, text, column, … text.

    Attributes:
        attached: the positions of the columns whose cells name objects in S3.
    """

    def __init__(self, template: str, columns: Sequence[str]) -> None:
        """Parse it."""
        self._texts = [""]
        self._columns: list[int] = []
        self.attached: list[int] = []
        at = 0
        for token in _TOKEN.finditer(template):
            self._texts[-1] += template[at : token.start()]
            at = token.end()
            name = token.group(1)
            if name is not None:
                column = position(columns, name)
                object_column = position(columns, name.removesuffix(":s3"))
                if column is None and object_column is not None:
                    self.attached.append(object_column)
                    continue
                if column is None:
                    raise UploadRefused(
                        "bad_options",
                        f"template: there is no column {name!r}. The columns "
                        f"are: {listed(columns)}.",
                    )
                self._columns.append(column)
                self._texts.append("")
            elif len(token.group()) == 1:
                raise UploadRefused(
                    "bad_options",
                    f"template: a {token.group()} is unmatched. Write {{{{ and }}}} for "
                    "literal braces.",
                )
            else:
                self._texts[-1] += token.group()[0]
        self._texts[-1] += template[at:]
        if not self.columns:
            message = (
                f"template: it names no column; the columns are {listed(columns)}. Write one in "
                f"braces, such as {{{columns[0][:60]}}}."
            )
            raise UploadRefused("bad_options", message)

    def is_blank(self, values: Sequence[str]) -> bool:
        """Whether every value that would be filled in is empty, and no object is named."""
        is_filled = self._columns and not self.attached
        return bool(is_filled) and not any(values[column] for column in self._columns)

    @property
    def columns(self) -> list[int]:
        """The positions of the columns that it names."""
        return self._columns + self.attached

    def fill(self, values: Sequence[str]) -> str:
        """The text for one row's values."""
        pieces = [self._texts[0]]
        for column, text in zip(self._columns, self._texts[1:], strict=True):
            pieces += (values[column], text)
        return "".join(pieces)


def _template(target: Target, columns: Sequence[str]) -> Template | None:
    """The template of a job, if it has one; `UploadRefused` if its model takes no such objects."""
    found = Template(target.template, columns) if target.template else None
    if found and found.attached:
        if target.images is False and target.shape is not Shape.AUDIO:
            message = f"template: {target.model} takes only text, no objects as {{…{ATTACHED}."
            raise UploadRefused("bad_options", message)
        if len(found.attached) > 1 and target.shape not in CHAT_SHAPES:
            message = f"template: {target.model} takes one object a request. Name one column."
            raise UploadRefused("bad_options", message)
    return found


def position(columns: Sequence[str], name: str) -> int | None:
    """Where a column is; one that differs in case or space counts if no other does."""
    if name in columns:
        return columns.index(name)
    like = [
        index
        for index, column in enumerate(columns)
        if column.strip().casefold() == name.strip().casefold()
    ]
    return like[0] if len(like) == 1 and name.strip() else None


def listed(columns: Sequence[str]) -> str:
    """The first columns, for an error message."""
    names = ", ".join(repr(column[:60]) for column in columns[:20])
    return names if len(columns) <= 20 else f"{names} and {len(columns) - 20} more"  # noqa: PLR2004


COLUMNS = ("text",)
"""What a template may name."""


class TextReader(LineReader):
    """Turns lines into requests."""

    def __init__(self, target: Target) -> None:
        """Read the template."""
        super().__init__(target)
        self._template = _template(target, COLUMNS)

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
