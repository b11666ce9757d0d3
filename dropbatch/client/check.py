"""Checks the beginning of a file by the rules of the stack, before it is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import msgspec

from dropbatch.core import names
from dropbatch.core.formats.base import begins
from dropbatch.core.models import Model, model_advice, unknown_model
from dropbatch.core.options import Options, file_options, metadata_options, path_options, resolve
from dropbatch.core.plan import (
    Checkpoint,
    Planned,
    SplitPlan,
    StackLimits,
    check_model,
    check_path,
    first_plan,
    make_reader,
    plan_upload,
    with_default_model,
)
from dropbatch.core.prices import BYTES_PER_TOKEN
from dropbatch.core.read import cut
from dropbatch.core.read.attachments import shown
from dropbatch.core.read.cut import Cut
from dropbatch.core.read.form import Beginning, read_beginning
from dropbatch.core.read.index import record_spans
from dropbatch.core.read.lines import windows
from dropbatch.core.read.unpack import decompress
from dropbatch.errors import NoRecordFits, UnknownModel, UploadRefused, UsageError

_USAGE = frozenset({"bad_options", "bad_model", "no_model", "path_too_long"})
"""Codes of faults that are not the file's."""
MAX_SHOWN, SHOWN_END = 240, 80
"""Characters of a request that are shown, and how many of these are from its end."""
LOOKED_AT_RECORDS = 1_000
"""First records of which at least one must be fit to be sent."""


@dataclass
class Checked:
    """What is found of an upload before it is sent.

    Attributes:
        notes: what is odd.
        request: the first that is sent.
        unused: columns of which nothing is sent.
    """

    notes: list[str] = field(default_factory=list)
    request: bytes = b""
    unused: Sequence[str] = ()

    @property
    def first(self) -> str:
        """The first request, shortened."""
        text = self.request.decode(errors="replace")
        if len(text) <= MAX_SHOWN:
            return text
        return f"{text[: MAX_SHOWN - SHOWN_END]} … {text[-SHOWN_END:]}"


def check_beginning(
    stored: Iterable[bytes],
    path: str,
    metadata: Mapping[str, str],
    *,
    folder_options: bytes | None = None,
    default_model: str | None = None,
) -> Checked:
    """Check an upload's options, and its first 12 MB, before it is sent.

    `path` is under `inbox/`, `folder_options` the content of the nearest `_options.json`. If
    `default_model` is not known (None), the upload may name no model.
    """
    key = names.INBOX + path
    limits = StackLimits(default_model=default_model or "")
    found = Checked()
    try:
        check_path(key)
        options = resolved_options(key, metadata, folder_options)
        try:
            beginning = read_beginning(iter(stored))
        except UsageError:
            return found
        planned = plan_with(key, options, beginning, limits)
        with suppress(_BeginningOverError):
            _check_records(planned, beginning, found, needs_model=default_model is not None)
    except UploadRefused as fault:
        if fault.code in _USAGE:
            raise UsageError(fault.message) from None
        raise
    return found


def resolved_options(
    key: str, metadata: Mapping[str, str], folder_options: bytes | None
) -> Options:
    """The options that metadata, path and `_options.json` give, without the stack's model."""
    nearest = {} if folder_options is None else file_options(folder_options)
    return resolve([metadata_options(metadata), path_options(key), nearest])


def plan_with(key: str, resolved: Options, beginning: Beginning, limits: StackLimits) -> Planned:
    """How an upload with these options is cut."""
    options = with_default_model(resolved, limits)
    first = first_plan(options, limits, by_default=resolved.model is None)
    return plan_upload(first, options, key, beginning, limits)


def batches_of(planned: Planned, blocks: Iterable[bytes], checked: Checked) -> Iterator[Cut]:
    """The batches of an upload that is read from its first record on; notes what is sent."""
    plan = planned.plan
    place = Checkpoint(plan.start, plan.start_line)
    reader = make_reader(plan, planned.options, planned.header)
    for one in cut.read_batches(plan, place, 0, blocks, reader):
        if one.sendable and not checked.request:
            begin, length = next(span for span in record_spans(one.rows) if span[1])
            checked.request = shown(one.body[begin : begin + length])
        checked.unused = checked.unused or getattr(reader, "unused", ())
        yield one


def unpacked(file: BinaryIO, plan: SplitPlan) -> Iterator[bytes]:
    """The unpacked bytes from the first record on, in the blocks in which the stack reads them."""
    skip = plan.start
    if plan.packing == "plain":
        file.seek(skip)
        yield from blocks_of_stream(file)
        return
    file.seek(0)
    for block in decompress(plan.packing, blocks_of_stream(file)):
        if skip < len(block):
            yield block[skip:]
        skip = max(skip - len(block), 0)


def blocks_of_stream(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of an open file."""
    while block := file.read(cut.RANGE_BYTES):
        yield block


class _BeginningOverError(Exception):
    """The beginning was read to its end, but the file goes on; never leaves this module."""


def _check_records(
    planned: Planned, beginning: Beginning, found: Checked, *, needs_model: bool
) -> None:
    """Check the model, if there is a record, and how the records are divided."""
    plan = replace(planned.plan, first_requests=1, max_requests=1)
    if plan.model or needs_model:
        _check_model_and_records(planned._replace(plan=plan), beginning, found)
    if plan.form != "jsonl":
        start = Checkpoint(plan.start, plan.start_line)
        for _ in windows(plan, start, _to_end(beginning, plan.start)):
            pass


def _check_model_and_records(planned: Planned, beginning: Beginning, found: Checked) -> None:
    notes, long = found.notes, Long(planned.plan.known_model)
    model, seen, bad, is_all, first = planned.plan.model, 0, 0, True, None
    try:
        for one in batches_of(planned, _to_end(beginning, planned.plan.start), found):
            if not seen:
                check_model(model)
                if words := unknown_model(model, planned.options.task):
                    raise UnknownModel(words)
                notes += filter(None, [model_advice(model)])
            long.add(one)
            seen += len(one.rows)
            bad += len(one.rows.faults)
            if first is None and one.rows.faults:
                first = one.rows[min(one.rows.faults)]
            if seen >= LOOKED_AT_RECORDS:
                break
    except _BeginningOverError:
        is_all = False
    notes += filter(None, [long.note()])
    if first is None:
        return
    named = first.message.startswith("Line ")
    where = "" if named else f"Line {first.line:,}: " if first.line else "The first: "
    which = f"the first {seen:,}" if seen >= LOOKED_AT_RECORDS or not is_all else f"the {seen:,}"
    if bad == seen and is_all:
        message = f"None of {which} records can be sent to {model}. {where}{first.message}"
        raise NoRecordFits(first.code, message, first.line)
    cannot = f"{bad:,} of {which} records cannot be sent and will fail alone."
    notes.append(f"{cannot} {where}{first.message}")


def _to_end(beginning: Beginning, start: int) -> Iterator[bytes]:
    yield beginning.head[start:]
    if not beginning.complete:
        raise _BeginningOverError


_MEDIA = re.compile(rb'"(?:image_url|input_image|input_audio|video_url|file|audio|image)"\s*:')


class _Request(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw(b"null")


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass
class Long:
    """Counts the requests whose text probably does not fit the model's context window."""

    model: Model
    count: int = 0
    first: str = ""

    def add(self, cut: Cut) -> None:
        """Look at the requests of a batch."""
        most = self.model.context
        if most is None or max(cut.rows.lengths, default=0) <= most * BYTES_PER_TOKEN:
            return
        for index, (begin, length) in enumerate(record_spans(cut.rows)):
            tokens = 0
            if length > most * BYTES_PER_TOKEN:
                tokens = _longest_text(cut.body[begin : begin + length]) // BYTES_PER_TOKEN
            if tokens > most and not self.count:
                line = cut.rows[index].line
                where = f"id {cut.first_id + index:,}" if line is None else f"line {line:,}"
                self.first = f"the first with {tokens:,} tokens ({where})"
            self.count += tokens > most

    def note(self) -> str:
        """What to tell the user; empty if there is none."""
        if not self.count:
            return ""
        return (
            f"{self.model.id} has a context window of {self.model.context:,} tokens. "
            f"{self.count:,} records are longer by an estimate of {BYTES_PER_TOKEN} bytes a token, "
            f"{self.first}: they will be cut short or rejected. Divide them."
        )


def _longest_text(request: bytes) -> int:
    """Bytes of the longest text of a request: of embeddings, each text has a window of its own."""
    if _MEDIA.search(request):
        return 0  # Its bytes say nothing about its tokens.
    text = _decode_request(request).text
    if begins(text, b"["):
        return max((len(bytes(one)) for one in _decode_texts(text)), default=0)
    return len(bytes(text)) if begins(text, b'"') else len(request)
