"""Validation: reads an upload under `validate/` like one under `inbox/`, and reports on it.

Nothing is sent.

An upload of any size is read, in turns. At the end of each turn, its progress is written once to
its own object, and the job item records the turn. If a run dies before the item is written, the
next run uses the object as it is.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec

from dropbatch.core import names
from dropbatch.core.errors import UploadRefused
from dropbatch.core.models import model_advice
from dropbatch.core.names import JobState
from dropbatch.core.options import Options
from dropbatch.core.plan import Checkpoint
from dropbatch.core.validation import Progress, Subject, add_cut, build_report
from functions.submit.job_options import pinned_options
from functions.submit.validation_page import validation_page
from shared import keys
from shared.claims import MAX_CLAIMS
from shared.html_page import HTML_TYPE
from shared.job_status import JSON_TYPE, iso_time
from shared.models import ErrorDetail, Job, Staging
from shared.observability import logger

if TYPE_CHECKING:
    from functions.submit.turn import Turn
    from shared.bootstrap import Services


def validate(turn: Turn) -> None:
    """Read an upload for one turn, from where the last one ended.

    At the upload's end, write the report.

    Raises:
        StorageError: an AWS service failed.
    """
    services, job = turn.services, turn.job
    error = job.error
    if error is None and job.claims > MAX_CLAIMS:
        error = ErrorDetail("internal", "Dropbatch could not read the whole upload.")
    progress = Progress()
    if error is None:
        try:
            turn.plan()
            job = turn.job
            progress, seen = _progress(services, job)
            _read(turn, progress, seen)
        except UploadRefused as fault:
            error = ErrorDetail(fault.code, fault.message)
        else:
            if not turn.finished:
                _put_progress(services, job, progress, seen)
                services.ledger.release_job(
                    job, services.now(), validated_turns=job.validated_turns + 1
                )
                return
    try:
        options = pinned_options(services, job)
    except UploadRefused as fault:  # A job whose options are wrong has none, and an error already.
        error, options = error or ErrorDetail(fault.code, fault.message), Options()
    created_at = iso_time(job.created_at)
    advice = model_advice(job.plan.model, services.catalog.current(services.now()))
    subject = Subject(
        job.upload.key, job.plan, options, created_at, job.job_id, job.upload.version, advice=advice
    )
    report = build_report(subject, progress, *((error.code, error.message) if error else ()))
    page = validation_page(msgspec.json.decode(report))
    services.store.put_if_absent(
        names.result(job.upload.key, job.job_id, "report.html"), page, kind=HTML_TYPE
    )
    services.store.put_if_absent(
        names.result(job.upload.key, job.job_id, "report.json"), report, kind=JSON_TYPE
    )
    state = JobState.FAILED if error else JobState.COMPLETED
    now = services.now()
    staging = Staging(now + services.settings.staging_retention_days * 86_400)
    if services.ledger.end_validation(job, state, progress.record, now, staging):
        logger.info("upload validated", job_id=job.job_id, records=progress.record, state=state)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def _read(turn: Turn, progress: Progress, seen: set[int]) -> None:
    """Add what one turn reads to the progress and the references seen."""
    turn.begin(progress.place)
    measured = turn.services.times.answer_tokens(turn.job.plan.model, turn.services.now())
    answer_tokens = turn.job.output_tokens or (sum(measured) // len(measured) if measured else None)
    try:
        for one in turn.read(progress.place, progress.cuts):
            if not isinstance(one, Checkpoint):
                add_cut(turn.job.plan.known_model, progress, seen, one, answer_tokens)
            progress.offset, progress.line, progress.record = (
                turn.place.offset,
                turn.place.line,
                turn.place.record,
            )
    finally:
        progress.bytes += turn.bytes_unpacked
    if not turn.finished:
        # the offset counts a line feed even if the last has none
        progress.bytes = min(progress.bytes, progress.offset)


# ── progress between turns ────────────────────────────────────────────────────────────────────────


def _put_progress(services: Services, job: Job, progress: Progress, seen: set[int]) -> None:
    body = msgspec.json.encode(progress) + b"\n" + array("Q", seen).tobytes()
    services.store.put_if_absent(keys.validation(job.job_id, job.validated_turns + 1), body)


def _progress(services: Services, job: Job) -> tuple[Progress, set[int]]:
    """What the earlier turns have read, and the references they saw."""
    if not job.validated_turns:
        return Progress(
            offset=job.plan.start, line=job.plan.start_line, bytes=job.plan.start
        ), set()
    body = services.store.get(keys.validation(job.job_id, job.validated_turns))
    progress, _, digests = body.partition(b"\n")
    seen = array("Q")
    seen.frombytes(digests)
    return msgspec.json.decode(progress, type=Progress), set(seen)
