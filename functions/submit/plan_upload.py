"""How an upload is read and cut, detected once and pinned in its job: packing, format, model, a table's header.

The plan depends on the pinned upload and the pinned options, so two runs make the same plan. The header of a table and
the job's record under `results/_jobs/` are written once, before the plan is pinned, so a pinned plan has both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from dropbatch import names as keys
from dropbatch.cost import has_price
from dropbatch.errors import UploadRefused
from dropbatch.formats.csv_rows import LongRow, delimiters_in, first_row, read_rows
from dropbatch.formats.detect import check_named, detect_format, first_model
from dropbatch.formats.registry import ARRAYS, DELIMITERS, Form, reader_of, target_of
from dropbatch.formats.tables import answer_columns
from dropbatch.model_catalog import is_model, max_records_per_reply
from dropbatch.records.batch_limits import FIRST_BATCH_RECORDS
from dropbatch.records.beginning import read_beginning
from dropbatch.records.detect_form import BOM, detect_form
from dropbatch.records.framing import elements
from dropbatch.records.plan import Checkpoint, SplitPlan
from functions.submit.job_options import keep_options, pinned_options
from functions.submit.stream import read_stored
from shared.job_status import JSON_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropbatch.formats.base import Reader
    from dropbatch.options import Options
    from dropbatch.records.beginning import Beginning
    from shared.bootstrap import Services
    from shared.models import Job


def plan_upload(services: Services, job: Job, check: Callable[[], None]) -> Job:
    """The job with its plan pinned.

    Args:
        services: the process's clients and settings.
        job: leased.
        check: called while an archive is unpacked; what it raises stops the unpacking.

    Raises:
        UploadRefused: the upload cannot be read, or its options do not fit it.
        StorageError: an AWS service failed.
    """
    if job.plan.form:
        return job
    options = pinned_options(services, job)
    beginning = read_beginning(read_stored(services.store, job.upload), check)
    plan, header = _plan(services, job, options, beginning)
    form = Form(plan.format, header, plan.delimiter)
    if plan.converts and (header or plan.format not in DELIMITERS):
        _reader(form, plan, options)  # raises if the options do not fit the columns
    if job.max_cost is not None and plan.model and not has_price(plan.model):
        message = f"max_cost: The price of {plan.model[:100]} is not known. Leave max_cost out."
        raise UploadRefused("bad_options", message)
    if plan.format in DELIMITERS:
        services.store.put_if_absent(keys.header(job.job_id), header)
    if plan.answers:
        columns = msgspec.json.encode(answer_columns(options.defaults or {}))
        services.store.put_if_absent(keys.answer_columns(job.job_id), columns)
    planned = replace(job, plan=plan)
    if plan.model and plan.model != (options.model or "").strip():
        keep_options(
            services, job, msgspec.structs.replace(options, model=plan.model)
        )  # the file's own, whichever run reads it
    put_job_record(services, planned)
    return services.ledger.pin_plan(planned) or planned


def put_job_record(services: Services, job: Job) -> None:
    """Write once what a job's id leads to: the job's path, and what is known about it so far."""
    if keys.is_validation(job.upload.key):
        return
    record = {
        "path": keys.upload_path(job.upload.key),
        "model": job.plan.model or None,
        "format": job.plan.format or None,
        "version": job.upload.version,
    }
    services.store.put_if_absent(keys.job_record(job.job_id), msgspec.json.encode(record), kind=JSON_TYPE)


def reader_for(services: Services, job: Job) -> Reader | None:
    """The reader that converts the records of a job with a pinned plan; None if they are sent as written.

    Raises:
        StorageError: S3 failed.
    """
    if not job.plan.converts:
        return None
    header = services.store.get(keys.header(job.job_id)) if job.plan.format in DELIMITERS else b""
    return _reader(Form(job.plan.format, header, job.plan.delimiter), job.plan, pinned_options(services, job))


def _reader(form: Form, plan: SplitPlan, options: Options) -> Reader:
    if form.format in DELIMITERS and not form.header:
        form = replace(form, header=b"text")  # a table without a header has no rows either
    target = target_of(
        plan.model, options.template or "", options.defaults, options.system or "", options.endpoint or ""
    )
    return reader_of(form, target)


def _plan(services: Services, job: Job, options: Options, beginning: Beginning) -> tuple[SplitPlan, bytes]:
    """The plan, and a table's header, which is empty for other formats."""
    head, complete = beginning.head, beginning.complete
    form, start = detect_form(head, complete=complete)
    array = list(_elements(head[start:])) if form == "array" else None
    format_ = options.format or detect_format(job.upload.key, head, complete=complete, form=form, elements=array)
    start_line, header, delimiter = 0, b"", ""
    if format_ not in ARRAYS or (format_ != "native" and form == "object"):
        array = None
        form, start = "jsonl", len(BOM) if head.startswith(BOM) else 0
    if options.format in ARRAYS and form != "object":
        check_named(options.format, head, complete=complete, elements=array)
    if format_ in DELIMITERS:
        form = "rows"
        delimiter = options.delimiter or _delimiter(format_, head[start:])
        header, size, start_line = _first_row(head[start:], delimiter.encode())
        header = head[:start] + header if header else b""
        start += size
    plan = replace(
        job.plan,
        packing=beginning.packing,
        form=form,
        start=start,
        format=format_,
        start_line=start_line,
        delimiter=delimiter,
        answers=format_ in DELIMITERS and bool(answer_columns(options.defaults or {})),
        converts=format_ != "native" or bool(options.defaults),
    )
    settings = services.settings
    model = first_model(format_, head, complete=complete, elements=array) if plan.by_default else ""
    if model:
        most = min(settings.max_requests_per_batch, max_records_per_reply(model, settings.transport))
        plan = replace(plan, model=model, max_requests=most, first_requests=min(FIRST_BATCH_RECORDS, most))
    return plan, header


def _elements(text: bytes) -> Iterator[bytes]:
    """The whole elements at the beginning of an array, as far as they can be read."""
    plan = SplitPlan("", 0, 0, "", form="array")
    try:
        for window in elements(plan, Checkpoint(), [text]):
            yield from (record for record in window.records if isinstance(record, bytes))
    except UploadRefused:
        return  # The head ends within an element; what is broken, the split finds.


def _delimiter(format_: str, text: bytes) -> str:
    """The delimiter of a table: the one that its header has outside quotes.

    Raises:
        UploadRefused: `bad_options`: it has several.
    """
    if format_ != "csv":
        return DELIMITERS[format_].decode()
    found = delimiters_in(first_row(text))
    if len(found) > 1:
        names = ", ".join(repr(one) for one in found)
        raise UploadRefused(
            "bad_options", f"delimiter: The first row has {names}. Set x-amz-meta-delimiter to the one between columns."
        )
    return found[0] if found else DELIMITERS[format_].decode()


def _first_row(head: bytes, delimiter: bytes) -> tuple[bytes, int, int]:
    """A table's first row that is not empty, and the bytes and lines up to its end.

    Raises:
        UploadRefused: `unknown_format` or `broken_document`: it has no end, or is too long.
    """
    size = lines = 0
    for window in read_rows([head], delimiter):
        for row, step, taken in zip(window.rows, window.steps, window.lines, strict=True):
            size, lines = size + step, lines + taken
            if isinstance(row, LongRow):
                raise UploadRefused(
                    "unknown_format", f"The first row has {row.length:,} bytes. It must contain the column names."
                )
            if row:
                return row, size, lines
    return b"", size, lines


def check_model(model: str) -> None:
    """Check the model; called only if there is a record, because an empty upload needs no model.

    Raises:
        UploadRefused: `no_model` or `bad_model`.
    """
    if not model:
        raise UploadRefused(
            "no_model",
            "No model was named. Set the object metadata x-amz-meta-model, upload under inbox/@cf/<author>/<model>/…, "
            "name the model in an _options.json, or set the stack's DefaultModel. Other vendors' names do not count.",
        )
    if not is_model(model):
        raise UploadRefused(
            "bad_model",
            f"{model[:100]!r} is not a model id. Write it as @cf/<author>/<model>, for instance @cf/baai/bge-m3.",
        )
