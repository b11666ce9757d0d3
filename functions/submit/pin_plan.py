"""The plan of a job: how its upload is read and cut, determined once and pinned in its item.

The plan depends on the pinned upload, the pinned options, and what is known of the model, which may
change between two
runs: only the run that holds the lease pins its plan. The header of a table and the job's record
under `results/_jobs/` are written once, before the plan is pinned, so a pinned plan has both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from dropbatch.core import names
from dropbatch.core.formats.tables import answer_columns
from dropbatch.core.plan import StackLimits, make_reader, plan_upload
from dropbatch.core.read.form import read_beginning
from functions.submit.job_options import keep_options, pinned_options
from functions.submit.stream import read_stored
from shared import keys
from shared.job_status import JSON_TYPE
from shared.ledger import still_leased

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropbatch.core.formats.base import Reader
    from shared.models import Job
    from shared.services import Services


def limits_of(services: Services) -> StackLimits:
    """What the stack decides about batches."""
    settings = services.settings
    return StackLimits(
        max_requests=settings.max_requests_per_batch,
        max_bytes=settings.max_batch_bytes,
        transport=settings.transport,
        account=settings.cloudflare_account_id,
        default_model=settings.default_model,
    )


def pin_plan(services: Services, job: Job, check: Callable[[], None]) -> Job:
    """The job with its plan pinned.

    Args:
        services: the process's clients and settings.
        job: leased.
        check: called while an archive is unpacked; what it raises stops the unpacking.

    Raises:
        UploadRefused: the upload cannot be read, or its options do not fit it.
        LeaseLostError: another run has replaced this one, and may know other facts of the model.
        StorageError: an AWS service failed.
    """
    if job.plan.form:
        return job
    options = pinned_options(services, job)
    beginning = read_beginning(read_stored(services.store, job.upload), check)
    planned = plan_upload(
        job.plan,
        options,
        job.upload.key,
        beginning,
        limits_of(services),
        is_retry=bool(job.retry_of),
    )
    if planned.plan.is_table:
        services.store.put_if_absent(keys.header(job.job_id), planned.header)
    if planned.plan.answers:
        columns = msgspec.json.encode(answer_columns(options.defaults or {}))
        services.store.put_if_absent(keys.answer_columns(job.job_id), columns)
    if planned.options != options:
        # with the file's own model, whichever run reads it
        keep_options(services, job, planned.options)
    with_plan = replace(job, plan=planned.plan)
    put_job_record(services, with_plan)
    return still_leased(services.ledger.pin_plan(with_plan), job.job_id)


def put_job_record(services: Services, job: Job) -> None:
    """Write once what a job's id leads to: the job's path, and what is known about it so far."""
    record = {
        "path": names.upload_path(job.upload.key),
        "model": job.plan.model or None,
        "format": job.plan.format or None,
        "version": job.upload.version,
    }
    services.store.put_if_absent(
        names.job_record(job.job_id), msgspec.json.encode(record), kind=JSON_TYPE
    )


def reader_for(services: Services, job: Job) -> Reader | None:
    """The reader that converts the records of a job with a pinned plan.

    None if they are sent as written.

    Raises:
        StorageError: S3 failed.
    """
    if not job.plan.converts:
        return None
    header = services.store.get(keys.header(job.job_id)) if job.plan.is_table else b""
    return make_reader(job.plan, pinned_options(services, job), header)
