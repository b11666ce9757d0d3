"""How an upload is cut, decided from its options and first bytes, and a place in it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from dropbatch.core import names
from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import BOM, Reader
from dropbatch.core.formats.detect import Head, check_named, detect_format, first_model
from dropbatch.core.formats.rows import ATTACHED
from dropbatch.core.formats.table import FORMATS, Form, reader_of, target_of
from dropbatch.core.formats.tables import answer_columns
from dropbatch.core.models import (
    Model,
    did_you_mean,
    facts_of,
    find_model,
    is_model,
    max_records_per_reply,
    planned_model,
    with_task,
)
from dropbatch.core.options import Options
from dropbatch.core.prices import first_batch, has_price, highest_named
from dropbatch.core.read.attachments import MAX_RECORDS, names_any
from dropbatch.core.read.form import Beginning, detect_form
from dropbatch.core.read.index import WRAPPER_BYTES
from dropbatch.core.read.lines import elements
from dropbatch.core.read.rows import OverlongRecord, delimiters_in, first_row, read_rows

FIRST_BATCH_RECORDS = 500
"""Records in the first batches of a job. So that a small job is quick and a first error costs
little."""
BATCHES_PER_DOUBLING = 4
"""Batches of one size before the size doubles. Never change it: jobs that are being split must be
cut the same way."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How an upload is cut; pinned in its job, so that every run cuts in the same way.

    Attributes:
        model: empty while none was given.
        form: `jsonl` (also for lines of text), `rows` (a table), `object` (the API's document) or
            `array` (one without its wrapper); empty until it is known, as are some others.
        start: offset, in the unpacked bytes, of the first record's line.
        first_requests: records in the first batches; later ones grow up to `max_requests`.
        start_line: lines before the first record: those of a table's header.
        converts: whether what is sent differs from the records as written: these are staged too.
        by_default: whether the model is the stack's default; one that the file names precedes it.
        answers: whether a table's answers have more columns than `answer`, in an object apart.
        facts: what was known of the model then, as `dropbatch.core.models.facts_of` writes it.
        first_bytes: bytes of the first bodies, which grow up to `max_bytes`; 0: no fewer.
        attaches: whether records may name objects in S3, whose contents are sent.
    """

    model: str
    max_requests: int
    max_bytes: int
    account: str
    form: str = ""
    packing: str = ""
    start: int = 0
    first_requests: int = 500
    format: str = ""
    start_line: int = 0
    converts: bool = False
    by_default: bool = False
    delimiter: str = ""
    answers: bool = False
    facts: str = ""
    first_bytes: int = 0
    attaches: bool = False

    @property
    def known_model(self) -> Model:
        """The model as it was known when the upload was planned."""
        return planned_model(self.model, self.facts)

    @property
    def is_document(self) -> bool:
        """Whether records are elements of a JSON document instead of lines."""
        return self.form in {"object", "array"}

    @property
    def is_table(self) -> bool:
        """Whether records are the rows of a table."""
        return self.form == "rows"


def max_records(plan: SplitPlan, number: int) -> int:
    """Records that a batch may have: four batches of a size, which then doubles, up to the most."""
    return min(plan.first_requests << _doublings(number), plan.max_requests)


def body_room(plan: SplitPlan, number: int) -> int:
    """Bytes for a batch's records, each with a comma; they grow likewise. One may be larger."""
    return (
        min(plan.first_bytes << _doublings(number) or plan.max_bytes, plan.max_bytes)
        - WRAPPER_BYTES
        + 1
    )


def _doublings(number: int) -> int:
    return min(number // BATCHES_PER_DOUBLING, 30)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a cut ends: offset in the unpacked bytes, lines read, records read."""

    offset: int = 0
    line: int = 0
    record: int = 0


@dataclass(frozen=True, slots=True)
class StackLimits:
    """What a stack decides about batches; by default as `template.yaml` has its parameters."""

    max_requests: int = 5_000
    max_bytes: int = 9_500_000
    transport: str = "rest"
    account: str = ""
    default_model: str = ""

    def most(self, model: str) -> int:
        """Maximum records in a batch for a model."""
        return min(self.max_requests, max_records_per_reply(find_model(model), self.transport))


class Planned(NamedTuple):
    """What is decided: options with the model that the file itself names, a table's header."""

    plan: SplitPlan
    options: Options
    header: bytes


def with_default_model(options: Options, limits: StackLimits) -> Options:
    """The options with the stack's default model, if they name none."""
    return msgspec.structs.replace(options, model=options.model or limits.default_model or None)


def first_plan(options: Options, limits: StackLimits, *, by_default: bool) -> SplitPlan:
    """The plan before anything of the upload has been read."""
    model = (options.model or limits.default_model).strip()
    most = limits.most(model)
    return SplitPlan(
        model=model,
        max_requests=most,
        max_bytes=limits.max_bytes,
        account=limits.account,
        first_requests=min(FIRST_BATCH_RECORDS, most),
        by_default=by_default,
    )


def check_path(key: str) -> None:
    """Check that a key leaves room for the names of its job's results; or `UploadRefused`."""
    if len(names.upload_path(key).encode()) > names.MAX_PATH_BYTES:
        raise UploadRefused(
            "path_too_long",
            f"The path under inbox/ has more than {names.MAX_PATH_BYTES} bytes. Upload it "
            "under a shorter key.",
        )


def plan_upload(
    first: SplitPlan,
    options: Options,
    key: str,
    beginning: Beginning,
    limits: StackLimits,
    *,
    is_retry: bool = False,
) -> Planned:
    """Decide how an upload is cut, or `UploadRefused`. A retry has its job's format."""
    plan, header = _plan(first, options, key, beginning, limits, is_retry=is_retry)
    model = with_task(find_model(plan.model), options.task or "")
    plan = replace(plan, facts=facts_of(model))
    if options.template and not FORMATS[plan.format].has_rows:
        takers = ", ".join(name for name, known in FORMATS.items() if known.has_rows)
        message = (
            f"template: The upload's format is {plan.format}; only {takers} take a "
            "template. Leave it out."
        )
        raise UploadRefused("bad_options", message)
    if _attaches(plan, options, beginning.head):
        most, first_requests = min(plan.max_requests, MAX_RECORDS), plan.first_requests
        plan = replace(plan, attaches=True, converts=True, max_requests=most)
        plan = replace(plan, first_requests=min(first_requests, most))
    if plan.converts and (header or not plan.is_table):
        make_reader(plan, options, header)  # raises if the options do not fit the columns
    if options.max_cost is not None and plan.model and not has_price(model):
        message = f"max_cost: The price of {plan.model[:100]} is not known. Leave max_cost out."
        raise UploadRefused("bad_options", message)
    if plan.model:
        plan = _limited(plan, options, beginning.head)
    if plan.model and plan.model != (options.model or "").strip():
        options = msgspec.structs.replace(options, model=plan.model)
    return Planned(plan, options, header)


def _attaches(plan: SplitPlan, options: Options, head: bytes) -> bool:
    """Whether records may name objects: one in the beginning does, or the template."""
    if ATTACHED in (options.template or ""):
        return True
    return FORMATS[plan.format].is_json and names_any(head)


def _limited(plan: SplitPlan, options: Options, head: bytes) -> SplitPlan:
    """The plan of a job with a limit, if it is not 0: small first batches."""
    model = plan.known_model
    if not options.max_cost or not has_price(model):
        return plan
    named = highest_named(head + msgspec.json.encode(options.defaults))
    records, size = first_batch(model, options.max_cost, named, options.output_tokens or 0)
    return replace(
        plan,
        first_requests=min(plan.first_requests, records or plan.first_requests),
        first_bytes=min(plan.max_bytes, size or plan.max_bytes),
    )


def make_reader(plan: SplitPlan, options: Options, header: bytes) -> Reader | None:
    """What converts an upload's records, or `UploadRefused`; None if they are sent as written."""
    if not plan.converts:
        return None
    if plan.is_table:
        header = header or b"text"  # a table without a header has no rows either
    form = Form(plan.format, header, plan.delimiter)
    target = target_of(
        plan.known_model,
        options.template or "",
        options.defaults,
        options.system or "",
        options.endpoint or "",
    )
    return reader_of(form, target)


def _plan(
    first: SplitPlan,
    options: Options,
    key: str,
    beginning: Beginning,
    limits: StackLimits,
    *,
    is_retry: bool,
) -> tuple[SplitPlan, bytes]:
    """The plan, and a table's header, which is empty for other formats."""
    head = beginning.head
    form, start = detect_form(head, complete=beginning.complete)
    records = _elements(form, head[start:]) if form != "jsonl" else None
    looked_at = Head(head, beginning.complete, form, records)
    format_ = options.format or detect_format(key, looked_at)
    if format_ == "native" and options.template and form != "object" and not options.format:
        format_ = "objects"
    known, start_line, header, delimiter = FORMATS[format_], 0, b"", ""
    if not known.is_json or (format_ != "native" and form == "object"):
        looked_at = Head(head, beginning.complete)
        form, start = "jsonl", len(BOM) if head.startswith(BOM) else 0
    if options.format and known.is_json and form != "object" and not is_retry:
        check_named(options.format, looked_at)
    if known.is_table:
        form = "rows"
        delimiter = options.delimiter or _delimiter(format_, head[start:])
        row = _first_row(head[start:], delimiter.encode())
        header = head[:start] + row.text if row.text else b""
        start, start_line = start + row.size, row.lines
    plan = replace(
        first,
        packing=beginning.packing,
        form=form,
        start=start,
        format=format_,
        start_line=start_line,
        delimiter=delimiter,
        answers=known.is_table and bool(answer_columns(options.defaults or {})),
        converts=format_ != "native" or bool(options.defaults),
    )
    model = first_model(format_, looked_at) if plan.by_default else ""
    if model:
        most = limits.most(model)
        first_requests = min(FIRST_BATCH_RECORDS, most)
        plan = replace(plan, model=model, max_requests=most, first_requests=first_requests)
    return plan, header


def _elements(form: str, text: bytes) -> list[bytes]:
    """The elements of a document; none if it is broken, which the split finds."""
    try:
        found: list[Any] = []
        for window in elements(form, [text]):
            found += window.records
        return [bytes(one) for one in found]
    except UploadRefused:
        return []


def _delimiter(format_: str, text: bytes) -> str:
    """The delimiter of a table: the one that its header has outside quotes."""
    if format_ != "csv":
        return FORMATS[format_].delimiter.decode()
    found = delimiters_in(first_row(text))
    if len(found) > 1:
        names = ", ".join(repr(one) for one in found)
        raise UploadRefused(
            "bad_options",
            f"delimiter: The first row has {names}. Set the option delimiter to "
            "the one between columns.",
        )
    return found[0] if found else FORMATS[format_].delimiter.decode()


class FirstRow(NamedTuple):
    """A table's first row that is not empty, and the bytes and lines up to its end."""

    text: bytes
    size: int
    lines: int


_FOR_EXCEL = re.compile(rb"sep=[^a-z0-9]", re.IGNORECASE)


def _first_row(head: bytes, delimiter: bytes) -> FirstRow:
    """The first row of a table; an empty one if there is none."""
    size = lines = 0
    for window in read_rows([head], delimiter):
        for row, step, taken in zip(window.records, window.steps, window.lines, strict=True):
            size, lines = size + step, lines + taken
            if isinstance(row, OverlongRecord):
                raise UploadRefused(
                    "unknown_format",
                    f"The first row has {row.length:,} bytes. It must contain the column names.",
                )
            if _FOR_EXCEL.fullmatch(row):
                message = (
                    "The first row is Excel's sep=, and not the names of the columns. "
                    "Delete this line."
                )
                raise UploadRefused("unknown_format", message)
            if row:
                return FirstRow(row, size, lines)
    return FirstRow(b"", size, lines)


def check_model(model: str) -> None:
    """Check the model of an upload that has a record; or `UploadRefused`."""
    if not model:
        raise UploadRefused(
            "no_model",
            "No model was named. Set the option model, upload under inbox/@cf/<author>/<model>/…, "
            "name the model in an _options.json, or set the stack's DefaultModel. Other "
            "vendors' names do not count.",
        )
    if not is_model(model):
        raise UploadRefused(
            "bad_model",
            f"{model[:100]!r} is not a model id."
            + (did_you_mean(model[:200]) or " Write it as @cf/<author>/<model>."),
        )
