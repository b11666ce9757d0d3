"""Validation: reads an upload under `validate/` like one under `inbox/`, and reports on it; nothing is sent.

An upload of any size is read, in turns. At the end of each turn, its progress is written once to its own object, and
the job item records the turn. If a run dies before the item is written, the next run uses the object as it is.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch import names as keys
from dropbatch.cost import Tokens, cost_of, estimate_tokens
from dropbatch.errors import UploadRefused
from dropbatch.names import JobState
from dropbatch.options import encode_options
from dropbatch.records.plan import Checkpoint
from functions.submit.create_batches import output_tokens
from functions.submit.job_options import pinned_options
from functions.submit.validation_page import validation_page
from shared.claims import MAX_CLAIMS
from shared.html_page import HTML_TYPE
from shared.job_status import JSON_TYPE, iso_time
from shared.models import ErrorDetail, Job, Staging
from shared.observability import logger

if TYPE_CHECKING:
    from dropbatch.records.cut import Cut
    from functions.submit.turn import Turn
    from shared.bootstrap import Services

MAX_LISTED = 100
"""Bad records that a report lists."""
MAX_LISTED_CHARACTERS = 300
"""Characters that the report keeps of each of their messages."""
MAX_REFERENCES = 1_000_000
"""References that are compared with each other."""
CALLS_PER_BATCH = 3
"""API calls that a batch usually takes: a submit and two polls."""
_HASH_BYTES = 8


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
    """What has been read of an upload.

    Attributes:
        offset: where to continue in the unpacked bytes; `line` and `record` likewise.
        cuts: all batches; `batches` are those with a record that can be sent.
        sent_bytes: bytes of all requests.
        output_tokens: the most that the requests may use.
        repeated: records with the same reference as an earlier one.
    """

    offset: int = 0
    line: int = 0
    record: int = 0
    bytes: int = 0
    cuts: int = 0
    batches: int = 0
    sent: int = 0
    sent_bytes: int = 0
    output_tokens: int = 0
    bad: int = 0
    bad_first: list[BadRecord] = []
    repeated: int = 0
    references: int = 0
    longest: Longest = msgspec.field(default_factory=Longest)

    @property
    def place(self) -> Checkpoint:
        """Where to continue."""
        return Checkpoint(self.offset, self.line, self.record)


def validate(turn: Turn) -> None:
    """Read an upload for one turn, from where the last one ended; at the upload's end, write the report.

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
                services.ledger.release_job(job, services.now(), validated_turns=job.validated_turns + 1)
                return
    report = build_report(services, job, progress, error)
    page = validation_page(msgspec.json.decode(report))
    services.store.put_if_absent(keys.result(job.upload.key, job.job_id, "report.html"), page, kind=HTML_TYPE)
    services.store.put_if_absent(keys.result(job.upload.key, job.job_id, "report.json"), report, kind=JSON_TYPE)
    state = JobState.FAILED if error else JobState.COMPLETED
    now = services.now()
    staging = Staging(now + services.settings.staging_retention_days * 86_400)
    if services.ledger.end_validation(job, state, progress.record, now, staging):
        logger.info("upload validated", job_id=job.job_id, records=progress.record, state=state)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(turn: Turn, progress: Progress, seen: set[int]) -> None:
    """Add what one turn reads to the progress and the references seen."""
    turn.begin(progress.place)
    try:
        for one in turn.read(progress.place, progress.cuts):
            if not isinstance(one, Checkpoint):
                add_cut(turn.job, progress, seen, one)
            progress.offset, progress.line, progress.record = turn.place.offset, turn.place.line, turn.place.record
    finally:
        progress.bytes += turn.bytes_unpacked
    if not turn.finished:
        progress.bytes = min(progress.bytes, progress.offset)  # the offset counts a line feed even if the last has none


def add_cut(job: Job, progress: Progress, seen: set[int], cut: Cut) -> None:
    """Add a batch's records to the progress."""
    rows = cut.rows
    progress.cuts += 1
    progress.batches += cut.sendable > 0
    progress.sent += cut.sendable
    progress.sent_bytes += len(cut.body)
    progress.output_tokens += (
        output_tokens(job.plan.model, cut.body, cut.sendable)
        or estimate_tokens(job.plan.model, len(cut.body), cut.sendable).output
        or 0
    )
    progress.bad += len(rows.faults)
    for index in islice(rows.faults, MAX_LISTED - len(progress.bad_first)):
        row = rows[index]
        bad = BadRecord(cut.first_id + index, row.line, row.code, row.message[:MAX_LISTED_CHARACTERS])
        progress.bad_first.append(bad)
    sizes = rows.originals or rows.lengths
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    if sizes[longest] > progress.longest.bytes:
        progress.longest = Longest(rows[longest].line, sizes[longest])
    _compare_references(progress, seen, rows.references)


def _compare_references(progress: Progress, seen: set[int], references: list[msgspec.Raw]) -> None:
    for reference in references:
        text = bytes(reference)
        if text == b"null" or progress.references == MAX_REFERENCES:
            continue
        progress.references += 1
        digest = int.from_bytes(blake2b(text, digest_size=_HASH_BYTES).digest())
        progress.repeated += digest in seen
        seen.add(digest)


# ── progress between turns ───────────────────────────────────────────────────────────────────────────────────────────


def _put_progress(services: Services, job: Job, progress: Progress, seen: set[int]) -> None:
    body = msgspec.json.encode(progress) + b"\n" + array("Q", seen).tobytes()
    services.store.put_if_absent(keys.validation(job.job_id, job.validated_turns + 1), body)


def _progress(services: Services, job: Job) -> tuple[Progress, set[int]]:
    """What the earlier turns have read, and the references they saw."""
    if not job.validated_turns:
        return Progress(offset=job.plan.start, line=job.plan.start_line, bytes=job.plan.start), set()
    body = services.store.get(keys.validation(job.job_id, job.validated_turns))
    progress, _, digests = body.partition(b"\n")
    seen = array("Q")
    seen.frombytes(digests)
    return msgspec.json.decode(progress, type=Progress), set(seen)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def build_report(services: Services, job: Job, progress: Progress, error: ErrorDetail | None) -> bytes:
    """`report.json`."""
    options = msgspec.Raw(encode_options(pinned_options(services, job)))
    model, tokens = job.plan.model, Tokens(None, None)
    if model and progress.sent:
        tokens = Tokens(estimate_tokens(model, progress.sent_bytes, progress.sent).input, progress.output_tokens)
    cost = cost_of(model, tokens, estimated=True)
    report: dict[str, Any] = {
        "job_id": job.job_id,
        "path": keys.upload_path(job.upload.key),
        "version": job.upload.version,
        "error": {"code": error.code, "message": error.message} if error else None,
        "format": job.plan.format or None,
        "model": model or None,
        "options": options,
        "records": progress.record,
        "bytes": progress.bytes,
        "batches": progress.batches,
        "calls": progress.batches * CALLS_PER_BATCH,
        "bad": progress.bad,
        "bad_first": progress.bad_first,
        "repeated": progress.repeated,
        "longest": progress.longest if progress.longest.bytes else None,
        "estimate": {
            "input_tokens": tokens.input,
            "output_tokens": tokens.output,
            "cost": cost.to_manifest() if cost else None,
        },
        "created_at": iso_time(job.created_at),
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
