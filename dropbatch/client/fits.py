"""Whether answers fit what was asked for: a model of Python's, or a JSON Schema.

The promise: each answer is judged by the schema of its own request, or by the option `schema`, past
thoughts and code fences, when it is read; the stack judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from typing import Any

import msgspec

from dropbatch.client.again import options_of, records_of_upload
from dropbatch.client.job import Job
from dropbatch.client.records import Record, RecordError, at
from dropbatch.core.formats.answers import json_in
from dropbatch.core.formats.base import Converted, encode, value_of
from dropbatch.core.plan import make_reader
from dropbatch.errors import UsageError

MISFIT = "misfit"
Read = Callable[[str], Any]
"""Returns the value of an answer's JSON, or raises what tells why there is none."""

_SCHEMAS = (
    ("response_format", "json_schema", "schema"),
    ("response_format", "json_schema"),
    ("response_format", "schema"),
    ("text", "format", "schema"),
)
"""Where a request has the schema of its answer."""


def judged(job: Job, records: Iterable[Record], into: Any = None) -> Iterator[Record]:
    """Records, each with its answer's `value`, or with `misfit`: why it has none.

    `into`: what the values are made; without it, they are checked against the requests' schemas.

    Raises:
        UsageError: it is no such type, or the package that checks schemas is missing.
    """
    readers = repeat(_reader_into(into)) if into else _readers_of(job)
    for record in records:
        read = next(readers, None)
        if not record.success or read is None:
            yield record
            continue
        try:
            value = read(json_in(record.text or ""))
        except (ValueError, msgspec.MsgspecError) as error:
            yield replace(record, misfit=RecordError(MISFIT, _words(error)))
        else:
            yield replace(record, value=value)


def _reader_into(into: Any) -> Read:
    if hasattr(into, "model_validate_json"):  # pydantic's
        read: Read = into.model_validate_json
        return read
    try:
        return msgspec.json.Decoder(into).decode
    except TypeError as error:
        raise UsageError(
            f"into: {error}. Give a pydantic model, a Struct or a dataclass."
        ) from None


def _readers_of(job: Job) -> Iterator[Read | None]:
    """For each record of a job, what reads its answer; None if its request has no schema."""
    if schema := options_of(job).schema:
        yield from repeat(_reader_of(encode(schema)))
    planned, records = records_of_upload(job, job.manifest())
    reader = make_reader(planned.plan, planned.options, planned.header)
    for record in records:
        request = record
        if reader:
            (made,) = reader.convert([record])
            request = made.request if isinstance(made, Converted) else b""
        asked = value_of(request)
        found = next((one for path in _SCHEMAS if isinstance(one := at(asked, path), dict)), None)
        yield _reader_of(encode(found)) if found else None


@lru_cache(64)
def _reader_of(schema: bytes) -> Read:
    try:
        import fastjsonschema
    except ImportError:
        raise UsageError(
            "Schemas are checked with fastjsonschema: pip install 'dropbatch[check]'."
        ) from None
    refused = dict.fromkeys(("http", "https", "file", "ftp"), _refuse)
    try:
        check = fastjsonschema.compile(value_of(schema), handlers=refused, use_default=False)
    except fastjsonschema.JsonSchemaDefinitionException as error:
        raise UsageError(f"The schema is wrong: {error}") from None
    return lambda text: check(msgspec.json.decode(text))


def _refuse(uri: str) -> Any:
    raise UsageError(f"The schema names {uri}, which is not read. Write it into the schema.")


def _words(error: Exception) -> str:
    """Where an answer does not fit, and why: `price: must be number`."""
    if errors := getattr(error, "errors", None):  # pydantic's
        first = errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'answer'}: {first['msg']}"
    if name := getattr(error, "name", ""):  # fastjsonschema's
        path = name.removeprefix("data").removeprefix(".") or "answer"
        return f"{path}: {str(error).removeprefix(name).strip()}"
    words, _, path = str(error).partition(" - at `$")
    return f"{path.strip('.`') or 'answer'}: {words}"
