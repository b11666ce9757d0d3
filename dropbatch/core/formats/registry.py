"""The table of formats, `FORMATS`: a new format is a module and a line in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import NULL, FileNames, Sign, Target, Task, one_line
from dropbatch.core.formats.conversion.requests import convert_defaults
from dropbatch.core.formats.model_catalog import find_model, schema_of, with_task
from dropbatch.core.formats.native import NativeReader
from dropbatch.core.formats.tables import Columns, TableReader, TableWriter
from dropbatch.core.formats.text import TextReader, text_request
from dropbatch.core.formats.vendors.anthropic import AnthropicReader, AnthropicWriter
from dropbatch.core.formats.vendors.bedrock import BedrockReader, BedrockWriter, output_name
from dropbatch.core.formats.vendors.gemini import GeminiReader, GeminiWriter, reference_of
from dropbatch.core.formats.vendors.openai import OpenAIReader, OpenAIWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import msgspec

    from dropbatch.core.formats.base import Json, Reader, Writer


@dataclass(frozen=True, slots=True)
class Format:
    """What there is to know about a format.

    Attributes:
        reader: makes what turns records into requests; None for a table.
        writer: makes what writes the answers; None if they are written in the native format.
        sign: the members by which its records are detected; None if only its name or an extension tells.
        extension: of its uploads' keys; empty if it is known by its records.
        delimiter: of a table's fields, unless the header has another.
        content_type: of a table's result files.
        describe: returns a record as JSON on one line; a table's writer does.
        reference: returns the record's reference, from the members of its output line.
        answer: the members in which the output line has the answer, from the outer one on.
        names: the names of the result files for an upload's key.
    """

    reader: Callable[[Target], Reader] | None = None
    writer: Callable[[Target], Writer] | None = None
    sign: Sign | None = None
    extension: str = ""
    delimiter: bytes = b""
    content_type: str = ""
    describe: Callable[[bytes], bytes] = one_line
    reference: Callable[[dict[str, msgspec.Raw]], msgspec.Raw] = lambda _: NULL
    answer: tuple[str, ...] = ()
    names: Callable[[str], FileNames] = lambda _: FileNames()


def _named(member: str) -> Callable[[dict[str, msgspec.Raw]], msgspec.Raw]:
    return lambda line: line.get(member, NULL)


FORMATS = {
    "native": Format(NativeReader),
    "openai": Format(
        OpenAIReader,
        lambda target: OpenAIWriter(target.task),
        Sign("body", beside=("custom_id", "url"), names_model=True),
        reference=_named("custom_id"),
        answer=("response", "body"),
    ),
    "anthropic": Format(
        AnthropicReader,
        lambda _: AnthropicWriter(),
        Sign("params", beside=("custom_id",), names_model=True),
        reference=_named("custom_id"),
        answer=("result", "message"),
    ),
    "gemini": Format(
        GeminiReader,
        lambda _: GeminiWriter(),
        Sign("request", inside=("contents", "content")),
        reference=reference_of,
        answer=("response",),
    ),
    "bedrock": Format(
        BedrockReader,
        lambda _: BedrockWriter(),
        Sign("modelInput"),
        names=lambda key: FileNames(output=output_name(key)),
        reference=_named("recordId"),
        answer=("modelOutput",),
    ),
    "csv": Format(extension=".csv", delimiter=b",", content_type="text/csv; charset=utf-8"),
    "tsv": Format(extension=".tsv", delimiter=b"\t", content_type="text/tab-separated-values; charset=utf-8"),
    "text": Format(
        TextReader,
        extension=".txt",
        describe=text_request,
        names=lambda _: FileNames(retry="retry.txt", retry_type="text/plain; charset=utf-8"),
    ),
}

DELIMITERS = {name: known.delimiter for name, known in FORMATS.items() if known.delimiter}
"""Formats whose records are rows."""
ARRAYS = frozenset(name for name, known in FORMATS.items() if not known.extension)
"""Formats whose records are JSON, and may be the elements of an array."""
TEXTS = frozenset(name for name in FORMATS if name not in ARRAYS and name not in DELIMITERS)
"""Formats whose records are lines of text."""


@dataclass(frozen=True, slots=True)
class Form:
    """A file's format, and what that format needs to know.

    Attributes:
        format: one of `FORMATS`.
        header: a table's first row, with its BOM, without line end; empty for others.
        delimiter: between a table's fields; empty for the format's own.
        answers: columns of a table's answers besides `answer`.
    """

    format: str
    header: bytes = b""
    delimiter: str = ""
    answers: tuple[str, ...] = ()

    @property
    def columns(self) -> Columns:
        """A table's columns.

        Raises:
            UploadRefused: `unknown_format`: the header cannot be read.
        """
        return Columns(self.header, self.delimiter.encode() or DELIMITERS[self.format], self.answers)


def target_of(
    model_id: str,
    template: str = "",
    defaults: Mapping[str, Json] | None = None,
    system: str = "",
    endpoint: str = "",
    task: str = "",
) -> Target:
    """What is known about a job's model, with the job's options."""
    model = with_task(find_model(model_id), task)
    return Target(
        model=model_id,
        task=model.task,
        shape=model.shape,
        images=model.images,
        plain_schema=model.plain_schema,
        template=template,
        system=system,
        endpoint=endpoint,
        defaults=defaults or {},
        schema=schema_of(model_id, task),
        dimensions=model.dimensions,
    )


def reader_of(form: Form, target: Target) -> Reader:
    """The reader that turns a file's records into requests.

    Raises:
        UploadRefused: `unknown_format` or `bad_options`: the header, or the template, does not determine what to send.
    """
    if target.system and form.format not in ARRAYS and target.task not in {Task.GENERATION, Task.UNKNOWN}:
        raise UploadRefused("bad_options", f"system: {target.model} is a model for {target.task} and takes none.")
    if form.format != "native" and target.defaults:
        target = replace(target, defaults=convert_defaults(target))
    if form.format in DELIMITERS:
        return TableReader(target, form.columns)
    make = FORMATS[form.format].reader
    assert make is not None  # noqa: S101 # Only tables have none.
    return make(target)


def writer_of(form: Form, target: Target) -> Writer | None:
    """The writer of a file's answers; None if they are written in the native format."""
    if form.format in DELIMITERS:
        return TableWriter(form.columns)
    make = FORMATS[form.format].writer
    return make(target) if make else None


def describer_of(form: Form) -> Callable[[bytes], bytes]:
    """The function that returns a record as JSON on one line, for `errors.jsonl`."""
    return TableWriter(form.columns).request if form.format in DELIMITERS else FORMATS[form.format].describe


def file_names(form: Form, upload_key: str) -> FileNames:
    """Names, content types and beginnings of a job's result files."""
    if form.format in DELIMITERS:
        columns = form.columns
        kind = FORMATS[form.format].content_type
        return FileNames(
            output=f"output.{form.format}",
            output_type=kind,
            retry=f"retry.{form.format}",
            retry_type=kind,
            output_opening=columns.added_header() if form.header else b"",
            retry_opening=columns.header + b"\n",
        )
    return FORMATS[form.format].names(upload_key)
