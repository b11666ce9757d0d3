"""Reads a whole file on this machine as the stack would, in flat memory; nothing is sent."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import msgspec

from dropbatch.client.check import batches_of, plan_with, resolved_options
from dropbatch.client.sources import open_source
from dropbatch.client.upload import upload_key
from dropbatch.core import names
from dropbatch.core.formats.base import begins
from dropbatch.core.models import Model, model_advice
from dropbatch.core.options import Options, encode_options, metadata_of, options_keys
from dropbatch.core.plan import (
    Checkpoint,
    Planned,
    SplitPlan,
    StackLimits,
    check_model,
    check_path,
    first_plan,
    with_default_model,
)
from dropbatch.core.prices import BYTES_PER_TOKEN, Tokens, cost_of, estimate_tokens, output_tokens
from dropbatch.core.read import cut
from dropbatch.core.read.cut import Cut
from dropbatch.core.read.form import read_beginning
from dropbatch.core.read.index import record_spans
from dropbatch.core.read.unpack import decompress
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
_MEDIA = re.compile(rb'"(?:image_url|input_image|input_audio|video_url|file|audio|image)"\s*:')


class BadRecord(msgspec.Struct):
    """A record that cannot be sent."""

    id: int
    line: int | None
    code: str
    message: str


class Longest(msgspec.Struct):
    """The longest record; its line is None in a document."""

    line: int | None = None
    bytes: int = 0


class Progress(msgspec.Struct):
    """What has been read of a file.

    Attributes:
        batches: those with a record that can be sent.
        output_tokens: the most that the requests may use.
        repeated: records with the same reference as an earlier one.
        long: requests whose text probably does not fit the model's context window.
        long_first: line of the first of them, None in a document.
    """

    record: int = 0
    bytes: int = 0
    batches: int = 0
    sent: int = 0
    sent_bytes: int = 0
    output_tokens: int = 0
    bad: int = 0
    bad_first: list[BadRecord] = []
    repeated: int = 0
    references: int = 0
    longest: Longest = msgspec.field(default_factory=Longest)
    long: int = 0
    long_first: int | None = None
    long_first_id: int = 0
    long_first_tokens: int = 0


def validate(
    source: object,
    name: str | None,
    options: Mapping[str, object],
    *,
    read: Callable[[str], bytes | None] = lambda _: None,
    default_model: str | None = None,
) -> dict[str, Any]:
    """Check a whole file; return what the stack would find in it.

    Args:
        source: as for `Client.submit`.
        name: as for `Client.submit`.
        options: as for `Client.submit`; None for one that is not set.
        read: returns an object of the stack's bucket, or None: `_options.json`.
        default_model: the stack's, if it is known.
    """
    opened = open_source(source, options.get("template"))
    with opened.stream as stream, tempfile.TemporaryFile() as copy:
        key = upload_key(name, opened.name)
        given = {one: value for one, value in options.items() if value is not None}
        if not stream.seekable():
            shutil.copyfileobj(stream, copy)
        found = map(read, options_keys(key, names.INBOX))
        nearest = next((one for one in found if one is not None), None)
        metadata = metadata_of({**opened.options, **given})
        limits = StackLimits(default_model=default_model or "")
        return check_file(stream if stream.seekable() else copy, key, metadata, nearest, limits)


def check_file(
    file: BinaryIO,
    key: str,
    metadata: Mapping[str, str],
    folder_options: bytes | None = None,
    limits: StackLimits = DEFAULT_LIMITS,
) -> dict[str, Any]:
    """Check a file that can be read again; `folder_options`: the nearest `_options.json`."""
    progress, error = Progress(), ("", "")
    options = Options()
    plan = first_plan(options, limits, by_default=True)
    try:
        resolved = resolved_options(key, metadata, folder_options)
        options = with_default_model(resolved, limits)
        plan = first_plan(options, limits, by_default=resolved.model is None)
        check_path(key)
        file.seek(0)
        planned = plan_with(key, resolved, read_beginning(_blocks(file)), limits)
        plan, options = planned.plan, planned.options
        _read(file, planned, progress)
    except UploadRefused as fault:
        error = (fault.code, fault.message)
    except OSError as fault:
        path = names.upload_path(key)
        raise UsageError(f"{path} cannot be read: {fault.strerror}.") from fault
    advice = model_advice(plan.model)
    return build_report(Subject(key, plan, options, advice), progress, error)


def _read(file: BinaryIO, planned: Planned, progress: Progress) -> None:
    plan, seen, since = planned.plan, set[int](), 0
    progress.bytes = plan.start

    def counted() -> Iterator[bytes]:
        nonlocal since
        for block in _unpacked(file, plan):
            progress.bytes += len(block)
            since += len(block)
            if since > cut.MAX_BYTES_WITHOUT_BATCH:
                raise cut.gap_error(plan.packing)
            yield block

    for one in batches_of(planned, counted()):
        if isinstance(one, Checkpoint):
            since = 0 if plan.packing == "plain" else since
            continue
        check_model(plan.model)
        add_cut(plan.known_model, progress, seen, one, planned.options.output_tokens)
        progress.record, since = one.end.record, 0


def _unpacked(file: BinaryIO, plan: SplitPlan) -> Iterator[bytes]:
    """The unpacked bytes from the first record on, in the blocks in which the stack reads them."""
    skip = plan.start
    if plan.packing == "plain":
        file.seek(skip)
        yield from _blocks(file)
        return
    file.seek(0)
    for block in decompress(plan.packing, _blocks(file)):
        if skip < len(block):
            yield block[skip:]
        skip = max(skip - len(block), 0)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(cut.RANGE_BYTES):
        yield block


def add_cut(
    model: Model, progress: Progress, seen: set[int], cut: Cut, answer_tokens: int | None = None
) -> None:
    """Add a batch's records to the progress."""
    rows = cut.rows
    progress.batches += cut.sendable > 0
    progress.sent += cut.sendable
    progress.sent_bytes += len(cut.body)
    named = output_tokens(model, cut.body, cut.sendable, answer_tokens)
    progress.output_tokens += (
        estimate_tokens(model, len(cut.body), cut.sendable, named, answer_tokens).output or 0
    )
    progress.bad += len(rows.faults)
    for index in islice(rows.faults, MAX_LISTED - len(progress.bad_first)):
        row = rows[index]
        bad = BadRecord(
            cut.first_id + index, row.line, row.code, row.message[:MAX_LISTED_CHARACTERS]
        )
        progress.bad_first.append(bad)
    sizes = rows.originals or rows.lengths
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    if sizes[longest] > progress.longest.bytes:
        progress.longest = Longest(rows[longest].line, sizes[longest])
    _compare_references(progress, seen, rows.references)
    _count_long(model, progress, cut)


def _compare_references(progress: Progress, seen: set[int], references: list[msgspec.Raw]) -> None:
    for reference in references:
        text = bytes(reference)
        if text == b"null" or progress.references == MAX_REFERENCES:
            continue
        progress.references += 1
        digest = int.from_bytes(blake2b(text, digest_size=_HASH_BYTES).digest())
        progress.repeated += digest in seen
        seen.add(digest)


class _Request(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw(b"null")


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _count_long(model: Model, progress: Progress, cut: Cut) -> None:
    context = model.context
    if context is None or max(cut.rows.lengths, default=0) <= context * BYTES_PER_TOKEN:
        return
    for index, (begin, length) in enumerate(record_spans(cut.rows)):
        if length <= context * BYTES_PER_TOKEN:
            continue
        tokens = _longest_text(cut.body[begin : begin + length]) // BYTES_PER_TOKEN
        if tokens > context:
            if not progress.long:
                progress.long_first, progress.long_first_tokens = cut.rows[index].line, tokens
                progress.long_first_id = cut.first_id + index
            progress.long += 1


def _longest_text(request: bytes) -> int:
    """Bytes of the longest text of a request: of embeddings, each text has a window of its own."""
    if _MEDIA.search(request):
        return 0  # Its bytes say nothing about its tokens.
    text = _decode_request(request).text
    if begins(text, b"["):
        return max((len(bytes(one)) for one in _decode_texts(text)), default=0)
    return len(bytes(text)) if begins(text, b'"') else len(request)


# ── the report ────────────────────────────────────────────────────────────────────────────────────


class Subject(NamedTuple):
    """What is read: the upload's key, how it is cut, its options, what is odd about its model."""

    key: str
    plan: SplitPlan
    options: Options
    advice: str


def build_report(subject: Subject, progress: Progress, error: tuple[str, str]) -> dict[str, Any]:
    """The report; the error is the code and message with which the upload would fail as a whole."""
    model, tokens = subject.plan.known_model, Tokens(None, None)
    if model.id and progress.sent:
        tokens = Tokens(
            estimate_tokens(model, progress.sent_bytes, progress.sent).input, progress.output_tokens
        )
    cost = cost_of(model, tokens, estimated=True)
    return {
        "path": names.upload_path(subject.key),
        "error": dict(zip(("code", "message"), error, strict=True)) if error[0] else None,
        "format": subject.plan.format or None,
        "model": model.id or None,
        "options": msgspec.json.decode(encode_options(subject.options)),
        "records": progress.record,
        "bytes": progress.bytes,
        "batches": progress.batches,
        "calls": progress.batches * CALLS_PER_BATCH,
        "bad": progress.bad,
        "bad_first": msgspec.to_builtins(progress.bad_first),
        "warnings": _warnings(subject.advice, model, progress),
        "repeated": progress.repeated,
        "longest": msgspec.to_builtins(progress.longest) if progress.longest.bytes else None,
        "estimate": {
            "input_tokens": tokens.input,
            "output_tokens": tokens.output,
            "cost": cost.to_manifest() if cost else None,
        },
    }


def _warnings(advice: str, model: Model, progress: Progress) -> list[str]:
    """What the API would probably reject, though each record is sent."""
    found = [advice]
    if progress.long:
        where = (
            f"id {progress.long_first_id:,}"
            if progress.long_first is None
            else f"line {progress.long_first:,}"
        )
        found.append(
            f"{model.id} has a context window of {model.context:,} tokens. "
            f"{progress.long:,} records are "
            f"longer by an estimate of {BYTES_PER_TOKEN} bytes a token, the first with "
            f"{progress.long_first_tokens:,} "
            f"tokens ({where}): they will be cut short or rejected. Divide them."
        )
    return [message for message in found if message]
