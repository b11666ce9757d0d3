"""The table of formats: what reads each, what writes it, and what its result files are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.errors import UploadError
from shared.formats.anthropic import AnthropicReader, AnthropicWriter
from shared.formats.base import FileNames, Target, Task, one_line
from shared.formats.bedrock import BedrockReader, BedrockWriter, output_name
from shared.formats.gemini import GeminiReader, GeminiWriter
from shared.formats.native import NativeReader
from shared.formats.openai import OpenAIReader, OpenAIWriter
from shared.formats.requests import convert_defaults
from shared.formats.schemas import SCHEMAS
from shared.formats.tables import Columns, TableReader, TableWriter
from shared.formats.text import TextReader, text_request
from shared.model_catalog import find_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.formats.base import Json, Reader, Writer

FORMATS = ("native", "openai", "anthropic", "gemini", "bedrock", "csv", "tsv", "text")

DELIMITERS = {"csv": b",", "tsv": b"\t"}
"""Formats whose records are rows, and the delimiters of their fields unless the header has another."""


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
            UploadError: `unknown_format`: the header cannot be read.
        """
        return Columns(self.header, self.delimiter.encode() or DELIMITERS[self.format], self.answers)


def target_of(
    model_id: str, template: str = "", defaults: Mapping[str, Json] | None = None, system: str = ""
) -> Target:
    """What is known about a job's model, with the job's options."""
    model = find_model(model_id)
    return Target(
        model=model_id,
        task=model.task,
        shape=model.shape,
        images=model.images,
        plain_schema=model.plain_schema,
        template=template,
        system=system,
        defaults=defaults or {},
        schema=SCHEMAS[model.schema],
        dimensions=model.dimensions,
    )


def reader_of(form: Form, target: Target) -> Reader:
    """The reader that turns a file's records into requests.

    Raises:
        UploadError: `unknown_format` or `bad_options`: the header, or the template, does not determine what to send.
    """
    if target.system and form.format in {*DELIMITERS, "text"} and target.task not in {Task.GENERATION, Task.UNKNOWN}:
        raise UploadError("bad_options", f"system: {target.model} is a model for {target.task} and takes none.")
    if form.format != "native" and target.defaults:
        target = replace(target, defaults=convert_defaults(target))
    if form.format in DELIMITERS:
        return TableReader(target, form.columns)
    return _READERS[form.format](target)


_READERS: dict[str, Callable[[Target], Reader]] = {
    "native": NativeReader,
    "openai": OpenAIReader,
    "anthropic": AnthropicReader,
    "gemini": GeminiReader,
    "bedrock": BedrockReader,
    "text": TextReader,
}


def writer_of(form: Form, target: Target) -> Writer | None:
    """The writer of a file's answers; None if they are written in the native format."""
    if form.format in DELIMITERS:
        return TableWriter(form.columns)
    if form.format == "openai":
        return OpenAIWriter(target.task)
    make = _WRITERS.get(form.format)
    return make() if make else None


_WRITERS: dict[str, Callable[[], Writer]] = {
    "anthropic": AnthropicWriter,
    "gemini": GeminiWriter,
    "bedrock": BedrockWriter,
}


def describer_of(form: Form) -> Callable[[bytes], bytes]:
    """The function that returns a record as JSON on one line, for `errors.jsonl`."""
    writer = writer_of(form, target_of(""))
    if writer is None:
        return text_request if form.format == "text" else one_line
    return writer.request


def file_names(form: Form, upload_key: str) -> FileNames:
    """Names, content types and beginnings of a job's result files."""
    if form.format in DELIMITERS:
        columns = form.columns
        kind = "text/csv; charset=utf-8" if form.format == "csv" else "text/tab-separated-values; charset=utf-8"
        return FileNames(
            output=f"output.{form.format}",
            output_type=kind,
            retry=f"retry.{form.format}",
            retry_type=kind,
            output_opening=columns.added_header() if form.header else b"",
            retry_opening=columns.header + b"\n",
        )
    if form.format == "bedrock":
        return FileNames(output=output_name(upload_key))
    if form.format == "text":
        return FileNames(retry="retry.txt", retry_type="text/plain; charset=utf-8")
    return FileNames()
