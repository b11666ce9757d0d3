"""The table of formats, `FORMATS`: a new format is a module and a line in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.anthropic import AnthropicReader, AnthropicWriter
from dropbatch.core.formats.base import (
    NULL,
    Converted,
    FileNames,
    Json,
    LineReader,
    Reader,
    Sign,
    Target,
    Task,
    Writer,
    encode,
    object_of,
    one_line,
)
from dropbatch.core.formats.bedrock import BedrockReader, BedrockWriter, output_name
from dropbatch.core.formats.conversion.requests import convert_defaults
from dropbatch.core.formats.openai import OpenAIReader, OpenAIWriter
from dropbatch.core.formats.tables import (
    Columns,
    ObjectReader,
    ObjectWriter,
    TableReader,
    TableWriter,
    TextReader,
    text_request,
)
from dropbatch.core.models import Model
from dropbatch.core.requests import schema_of


@dataclass(frozen=True, slots=True)
class Format:
    """What there is to know about a format.

    Attributes:
        reader: makes what turns records into requests.
        writer: makes what writes the answers; None if they are written in the native format.
        sign: the members by which its records are detected; None if only its name or an extension
            tells.
        extension: of its uploads' keys; empty if it is known by its records.
        delimiter: of a table's fields, unless the header has another; empty for other formats.
        reference: the member of an output line that has the record's reference; empty if none has.
        answer: the members in which the output line has the answer, from the outer one on.
        has_rows: whether a record is a row of cells, so that a template may name them.
    """

    reader: Callable[[Form, Target], Reader]
    writer: Callable[[Form, Target], Writer] | None = None
    sign: Sign | None = None
    extension: str = ""
    delimiter: bytes = b""
    describer: Callable[[Form], Callable[[bytes], bytes]] = lambda _: one_line
    reference: str = ""
    answer: tuple[str, ...] = ()
    names: Callable[[Form, str], FileNames] = lambda *_: FileNames()
    has_rows: bool = False

    @property
    def is_table(self) -> bool:
        """Whether records are rows."""
        return bool(self.delimiter)

    @property
    def is_json(self) -> bool:
        """Whether records are JSON, and may be the elements of an array; not rows or texts."""
        return not self.extension


def _table(extension: str, delimiter: bytes, content_type: str) -> Format:
    def names(form: Form, _key: str) -> FileNames:
        columns = form.columns
        return FileNames(
            output=f"output{extension}",
            output_type=content_type,
            retry=f"retry{extension}",
            retry_type=content_type,
            output_opening=columns.added_header() if form.header else b"",
            retry_opening=columns.header + b"\n",
        )

    return Format(
        lambda form, target: TableReader(target, form.columns),
        lambda form, _: TableWriter(form.columns),
        extension=extension,
        delimiter=delimiter,
        describer=lambda form: TableWriter(form.columns).request,
        names=names,
        has_rows=True,
    )


FORMATS = {
    "native": Format(
        lambda _, target: NativeReader(target), reference="external_reference", answer=("result",)
    ),
    "openai": Format(
        lambda _, target: OpenAIReader(target),
        lambda _, target: OpenAIWriter(target.task),
        Sign("body", beside=("custom_id", "url"), names_model=True),
        reference="custom_id",
        answer=("response", "body"),
    ),
    "anthropic": Format(
        lambda _, target: AnthropicReader(target),
        lambda *_: AnthropicWriter(),
        Sign("params", beside=("custom_id",), names_model=True),
        reference="custom_id",
        answer=("result", "message"),
    ),
    "bedrock": Format(
        lambda _, target: BedrockReader(target),
        lambda *_: BedrockWriter(),
        Sign("modelInput"),
        names=lambda _, key: FileNames(output=output_name(key)),
        reference="recordId",
        answer=("modelOutput",),
    ),
    "objects": Format(
        lambda _, target: ObjectReader(target),
        lambda *_: ObjectWriter(),
        answer=("answer",),
        has_rows=True,
    ),
    "csv": _table(".csv", b",", "text/csv; charset=utf-8"),
    "tsv": _table(".tsv", b"\t", "text/tab-separated-values; charset=utf-8"),
    "text": Format(
        lambda _, target: TextReader(target),
        extension=".txt",
        reference="external_reference",
        answer=("result",),
        describer=lambda _: text_request,
        names=lambda *_: FileNames(retry="retry.txt", retry_type="text/plain; charset=utf-8"),
        has_rows=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Form:
    """A file's format, and what that format needs to know.

    Attributes:
        header: a table's first row, with its BOM, without line end; empty for others.
        answers: columns of a table's answers besides `answer`.
    """

    format: str
    header: bytes = b""
    delimiter: str = ""
    answers: tuple[str, ...] = ()

    @property
    def columns(self) -> Columns:
        """A table's columns; or `UploadRefused`: the header cannot be read."""
        return Columns(
            self.header, self.delimiter.encode() or FORMATS[self.format].delimiter, self.answers
        )


def target_of(
    model: Model,
    template: str = "",
    defaults: Mapping[str, msgspec.Raw] | None = None,
    system: str = "",
    endpoint: str = "",
) -> Target:
    """What is known about a job's model, with the job's options."""
    return Target(
        model=model.id,
        task=model.task,
        shape=model.shape,
        images=model.images,
        plain_schema=model.plain_schema,
        template=template,
        system=system,
        endpoint=endpoint,
        defaults=defaults or {},
        schema=schema_of(model),
        dimensions=model.dimensions,
    )


def reader_of(form: Form, target: Target) -> Reader:
    """What turns records into requests; or `UploadRefused`: nothing says what to send."""
    known = FORMATS[form.format]
    if target.system and known.has_rows and target.task not in {Task.GENERATION, Task.UNKNOWN}:
        raise UploadRefused(
            "bad_options", f"system: {target.model} is a model for {target.task} and takes none."
        )
    if form.format != "native" and target.defaults:
        target = replace(target, defaults=convert_defaults(target))
    return known.reader(form, target)


def writer_of(form: Form, target: Target) -> Writer | None:
    """The writer of a file's answers; None if they are written in the native format."""
    make = FORMATS[form.format].writer
    return make(form, target) if make else None


def describer_of(form: Form) -> Callable[[bytes], bytes]:
    """The function that returns a record as JSON on one line, for `errors.jsonl`."""
    return FORMATS[form.format].describer(form)


def file_names(form: Form, upload_key: str) -> FileNames:
    """Names, content types and beginnings of a job's result files."""
    return FORMATS[form.format].names(form, upload_key)


class _Line(msgspec.Struct):
    external_reference: msgspec.Raw = NULL


_decode_line = msgspec.json.Decoder(_Line).decode


class NativeReader(LineReader):
    """Adds the job's defaults to requests of Workers AI; never finds a fault."""

    def _convert(self, record: bytes) -> Converted:
        reference = msgspec.Raw(one_line(_decode_line(record).external_reference))
        return Converted(merge_defaults(record, self._target.defaults), reference)


def merge_defaults(request: bytes, defaults: Mapping[str, Json]) -> bytes:
    """A request with the defaults for members that it lacks, added after its own members."""
    members = object_of(request)
    added = [
        b"%b:%b" % (encode(name), value) for name, value in defaults.items() if name not in members
    ]
    if not added:
        return request
    end = request.rindex(b"}")
    return b"%b%b%b%b" % (request[:end], b"," if members else b"", b",".join(added), request[end:])
