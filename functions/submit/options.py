"""A job's options and its plan: how its upload is read and cut, decided once and pinned.

Options are resolved when the job is created, and pinned in `options.json` beside its results. The
plan depends on them, on the pinned upload and on what is known of the model, which may change
between two runs: only the run that holds the lease pins it, in the job's item. The header of a
table and the job's record under `results/_jobs/` are written before: a pinned plan has both. So
whoever reads the upload on cuts the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import msgspec

from dropbatch.core import names
from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import Reader
from dropbatch.core.formats.tables import answer_columns
from dropbatch.core.options import (
    MAX_OPTIONS_BYTES,
    OPTIONS_AT,
    OPTIONS_FILE,
    Options,
    decode_options,
    encode_options,
    file_options,
    metadata_options,
    named_options,
    option_name,
    options_keys,
    path_options,
    resolve,
)
from dropbatch.core.plan import StackLimits, make_reader, plan_upload
from dropbatch.core.read.form import read_beginning
from shared import keys
from shared.aws.object_store import in_order
from shared.errors import ObjectNotFoundError, UnreadableItemError
from shared.job_status import JSON_TYPE
from shared.ledger import still_leased
from shared.models import ErrorDetail, Job
from shared.observability import logger
from shared.services import Services

RETRY_OF = "retry_of"
"""Metadata of a retry file: its job's id, or the percent-encoded key of its job's manifest."""


MAX_HEADS = 4
"""Folders in which `_options.json` is looked for at the same time."""


class Retried(msgspec.Struct, frozen=True):
    """The job that an upload retries: its manifest's key, and its format if that was ever known."""

    manifest: str
    format: str | None


class _JobRecord(msgspec.Struct):
    path: str
    format: str | None = None


class _Manifest(msgspec.Struct):
    error: ErrorDetail | None = None


def resolve_options(
    services: Services, upload_key: str, metadata: Mapping[str, str], retried: Retried | None
) -> Options:
    """The options of an upload: from its metadata, then its path and the nearest `_options.json`.

    Those of a retry come from its metadata, then from its job, wherever it is; its format, too.
    """
    own = {**_long_options(services, metadata), **metadata_options(metadata)}
    if retried:
        of_job = _parent_options(services, retried.manifest)
        return resolve([own, of_job, {"format": retried.format}])
    return resolve([own, path_options(upload_key), _nearest_file(services, upload_key)])


def _long_options(services: Services, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The options for which the metadata has no room; the library has written them before it."""
    if not (name := metadata.get(OPTIONS_AT)):
        return {}
    key = names.long_options(name)
    try:
        return file_options(services.store.get(key, 0, MAX_OPTIONS_BYTES))
    except ObjectNotFoundError:
        words = f"{key} was deleted, and has the upload's options. Upload both again."
        raise UploadRefused("bad_options", words) from None


def find_retried(services: Services, metadata: Mapping[str, str]) -> Retried | None:
    """The job that an upload retries; None if its metadata names none."""
    given = next((value for name, value in metadata.items() if option_name(name) == RETRY_OF), "")
    job_id = names.named_job(unquote(given.strip()))
    found = _upload_of(services, job_id) if job_id else None
    if job_id is None or found is None:
        return None
    upload_key, format_ = found
    return Retried(names.result(upload_key, job_id, "manifest.json"), format_ or None)


def _upload_of(services: Services, job_id: str) -> tuple[str, str | None] | None:
    """A job's upload's key and format: from its item or, once that has expired, from its record."""
    try:
        if job := services.ledger.job(job_id):
            return job.upload.key, job.plan.format
    except UnreadableItemError:
        logger.exception("job not readable", job_id=job_id)
    try:
        record = msgspec.json.decode(services.store.get(names.job_record(job_id)), type=_JobRecord)
    except ObjectNotFoundError:
        return None
    return f"{names.INBOX}{record.path}", record.format


def _nearest_file(services: Services, upload_key: str) -> dict[str, Any]:
    wanted = [key for key in options_keys(upload_key) if len(key.encode()) <= names.MAX_KEY_BYTES]
    heads = in_order(services.store.head, wanted, MAX_HEADS)
    for key, stored in zip(wanted, heads, strict=True):
        if stored is None:
            continue
        if not 0 < stored.size <= MAX_OPTIONS_BYTES:
            raise UploadRefused(
                "bad_options",
                f"{OPTIONS_FILE}: It must be a JSON object of at most {MAX_OPTIONS_BYTES:,} bytes.",
            )
        return file_options(services.store.get(key, 0, MAX_OPTIONS_BYTES))
    return {}


def _parent_options(services: Services, manifest: str) -> dict[str, Any]:
    """The options of the job that is retried; none if it failed because of them."""
    try:
        return named_options(
            _read_options(services, f"{manifest.removesuffix('manifest.json')}options.json")
        )
    except UploadRefused:
        error = _error_of(services, manifest)
        if error and error.code == "bad_options":
            return {}
        raise


def _error_of(services: Services, manifest: str) -> ErrorDetail | None:
    """Why a job failed: from its item or, once that has expired, from its manifest."""
    with suppress(UnreadableItemError):
        if job := services.ledger.job(names.named_job(manifest) or ""):
            return job.error
    try:
        return msgspec.json.decode(services.store.get(manifest), type=_Manifest).error
    except ObjectNotFoundError:
        return None


def pin_options(services: Services, upload_key: str, job_id: str, options: Options) -> Options:
    """Write `options.json` once; return what it holds, which another run may have written."""
    key = names.result(upload_key, job_id, "options.json")
    if services.store.put_if_absent(key, encode_options(options), kind=JSON_TYPE):
        return options
    return decode_options(services.store.get(key))


def pinned_options(services: Services, job: Job) -> Options:
    """A job's options, from its `options.json`; raises `UploadRefused` (`options_gone`)."""
    return _read_options(services, names.result(job.upload.key, job.job_id, "options.json"))


def _read_options(services: Services, key: str) -> Options:
    """Options, without which the job would send other requests than its user wants."""
    try:
        return decode_options(services.store.get(key))
    except ObjectNotFoundError as error:
        message = (
            f"{key} was deleted, so the records that are not sent yet have no options. "
            "Upload them again."
        )
        raise UploadRefused("options_gone", message) from error


# ── the plan ──────────────────────────────────────────────────────────────────────────────────────


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


def pin_plan(
    services: Services,
    job: Job,
    options: Options,
    stored: Iterator[bytes],
    check: Callable[[], None],
) -> tuple[Job, Options]:
    """The job with its plan pinned, whose upload can be read and fits its options; and these.

    `check` is called while an archive is unpacked, and may raise.
    """
    beginning = read_beginning(stored, check)
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
        key = names.result(job.upload.key, job.job_id, "options.json")
        services.store.put(key, encode_options(planned.options), kind=JSON_TYPE)
    with_plan = replace(job, plan=planned.plan)
    put_job_record(services, with_plan)
    job = still_leased(services.ledger.pin_plan(with_plan), job.job_id)
    return job, planned.options


def put_job_record(services: Services, job: Job) -> None:
    """Write once what a job's id leads to: the job's path, and what is known about it so far."""
    record = {
        "path": names.upload_path(job.upload.key),
        "model": job.plan.model or None,
        "format": job.plan.format or None,
        "version": job.upload.version,
    }
    body = msgspec.json.encode(record)
    services.store.put_if_absent(names.job_record(job.job_id), body, kind=JSON_TYPE)


def reader_for(services: Services, job: Job, options: Options | None) -> Reader | None:
    """What converts the records of a job with a pinned plan; None if they are sent as written.

    The options are read if they are not known.
    """
    if not job.plan.converts:
        return None
    header = services.store.get(keys.header(job.job_id)) if job.plan.is_table else b""
    return make_reader(job.plan, options or pinned_options(services, job), header)
