"""Reads a whole file on this machine as the stack would, in flat memory; nothing is sent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from dropbatch.client.check import (
    Checked,
    Long,
    batches_of,
    blocks_of_stream,
    plan_with,
    resolved_options,
    unpacked,
)
from dropbatch.client.sources import given_options, open_source
from dropbatch.client.stack import Stack
from dropbatch.client.upload import upload_key
from dropbatch.core import names
from dropbatch.core.models import Model, model_advice, unknown_model
from dropbatch.core.options import Options, encode_options, metadata_of, options_keys
from dropbatch.core.plan import (
    Planned,
    StackLimits,
    check_model,
    check_path,
    first_plan,
    with_default_model,
)
from dropbatch.core.prices import Tokens, cost_of, estimate_tokens, output_tokens
from dropbatch.core.read import cut
from dropbatch.core.read.cut import Cut
from dropbatch.core.read.form import read_beginning
from dropbatch.errors import UploadRefused, UsageError

MAX_LISTED = 100
"""Bad records that a report lists."""
MAX_LISTED_CHARACTERS = 300
"""Characters that the report keeps of each of their messages."""
MAX_REFERENCES = 1_000_000
"""References that are compared with each other."""
CALLS_PER_BATCH = 3
"""API calls that a batch usually takes: a submit and two polls."""
DEFAULT_LIMITS = StackLimits()
_HASH_BYTES = 8


@dataclass
class Found:
    """What has been read of a file; its batches have a record that can be sent."""

    long: Long
    checked: Checked = field(default_factory=Checked)
    records: int = 0
    bytes: int = 0
    batches: int = 0
    sent: int = 0
    sent_bytes: int = 0
    output_tokens: int = 0
    bad: int = 0
    bad_first: list[dict[str, Any]] = field(default_factory=list)
    repeated: int = 0
    references: int = 0
    longest: dict[str, int | None] | None = None


def validate(
    source: object,
    name: str | None,
    options: Mapping[str, object],
    *,
    stack: Stack | None = None,
) -> dict[str, Any]:
    """Check a whole file, given as to `Client.submit`; return what the stack would find in it.

    The stack has the default model, `_options.json`, and objects that are named `s3://bucket/key`.
    """
    given = given_options(options)
    opened = open_source(source, given.get("template"), stack)
    with opened.stream as stream, tempfile.TemporaryFile() as copy:
        key = upload_key(name, opened.name)
        if not stream.seekable():
            shutil.copyfileobj(stream, copy)
        found = map(stack.read, options_keys(key)) if stack else ()
        nearest = next((one for one in found if one is not None), None)
        metadata = {**opened.metadata, **metadata_of({**opened.options, **given})}
        limits = StackLimits(default_model=(stack and stack.default_model) or "")
        return check_file(stream if stream.seekable() else copy, key, metadata, nearest, limits)


def check_file(
    file: BinaryIO,
    key: str,
    metadata: Mapping[str, str],
    folder_options: bytes | None = None,
    limits: StackLimits = DEFAULT_LIMITS,
) -> dict[str, Any]:
    """Check a file that can be read again; `folder_options`: the nearest `_options.json`."""
    error, options = None, Options()
    plan = first_plan(options, limits, by_default=True)
    found = Found(Long(plan.known_model))
    try:
        resolved = resolved_options(key, metadata, folder_options)
        options = with_default_model(resolved, limits)
        plan = first_plan(options, limits, by_default=resolved.model is None)
        check_path(key)
        file.seek(0)
        planned = plan_with(key, resolved, read_beginning(blocks_of_stream(file)), limits)
        plan, options = planned.plan, planned.options
        found.long = Long(plan.known_model)
        _read(file, planned, found)
    except UploadRefused as fault:
        error = {"code": fault.code, "message": fault.message}
    except OSError as fault:
        path = names.upload_path(key)
        raise UsageError(f"{path} cannot be read: {fault.strerror}.") from fault
    return {
        "path": names.upload_path(key),
        "error": error,
        "format": plan.format or None,
        "model": plan.known_model.id or None,
        "options": msgspec.json.decode(encode_options(options)),
        "records": found.records,
        "bytes": found.bytes,
        "batches": found.batches,
        "calls": found.batches * CALLS_PER_BATCH,
        "bad": found.bad,
        "bad_first": found.bad_first,
        "warnings": [*filter(None, [model_advice(plan.model), found.long.note()])],
        "repeated": found.repeated,
        "longest": found.longest,
        "not_sent": [*found.checked.unused],
        "first": found.checked.first,
        "estimate": _estimate(plan.known_model, found),
    }


def _read(file: BinaryIO, planned: Planned, found: Found) -> None:
    plan, seen, since = planned.plan, set[int](), 0
    found.bytes = plan.start

    def counted() -> Iterator[bytes]:
        nonlocal since
        for block in unpacked(file, plan):
            found.bytes += len(block)
            since += len(block)
            if since > cut.MAX_BYTES_WITHOUT_BATCH:
                raise cut.gap_error(plan.packing)
            yield block

    for one in batches_of(planned, counted(), found.checked):
        check_model(plan.model)
        if words := unknown_model(plan.model, planned.options.task):
            raise UploadRefused("bad_model", words)
        _add(found, one, plan.known_model, planned.options.output_tokens)
        _compare_references(found, seen, one.rows.references)
        found.long.add(one)
        found.records, since = one.end.record, 0


def _add(found: Found, cut: Cut, model: Model, answer_tokens: int | None) -> None:
    """Add a batch; `answer_tokens` is the option `output_tokens`."""
    rows, size = cut.rows, len(cut.body)
    named = output_tokens(model, cut.body, cut.sendable, answer_tokens)
    written = estimate_tokens(model, size, cut.sendable, named, answer_tokens).output
    found.batches += cut.sendable > 0
    found.sent += cut.sendable
    found.sent_bytes += size
    found.output_tokens += written or 0
    found.bad += len(rows.faults)
    for index in islice(rows.faults, MAX_LISTED - len(found.bad_first)):
        row = rows[index]
        why = {"code": row.code, "message": row.message[:MAX_LISTED_CHARACTERS]}
        found.bad_first.append({"id": cut.first_id + index, "line": row.line, **why})
    sizes = rows.originals or rows.lengths
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    if sizes[longest] > ((found.longest or {}).get("bytes") or 0):
        found.longest = {"line": rows[longest].line, "bytes": sizes[longest]}


def _compare_references(found: Found, seen: set[int], references: list[msgspec.Raw]) -> None:
    for reference in references:
        text = bytes(reference)
        if text == b"null" or found.references == MAX_REFERENCES:
            continue
        found.references += 1
        digest = int.from_bytes(blake2b(text, digest_size=_HASH_BYTES).digest())
        found.repeated += digest in seen
        seen.add(digest)


def _estimate(model: Model, found: Found) -> dict[str, Any]:
    tokens = Tokens(None, None)
    if model.id and found.sent:
        read = estimate_tokens(model, found.sent_bytes, found.sent).input
        tokens = Tokens(read, found.output_tokens)
    cost = cost_of(model, tokens, estimated=True)
    return {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "cost": cost.to_manifest() if cost else None,
    }
