"""Batches: `files/batches/<batch_id>.json` says what was asked for, its job what became of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from dropbatch.client.find import find_job, job_ids
from dropbatch.client.job import Job
from dropbatch.client.stack import ObjectHead
from dropbatch.core.formats.openai import BATCH_ENDPOINTS
from dropbatch.core.models import model_id
from dropbatch.core.names import FINAL_JOB_STATES, INBOX, JobState, denied_notice
from dropbatch.core.options import MAX_DEADLINE_HOURS, MAX_TAGS, Options, metadata_of
from dropbatch.core.plan import StackLimits, first_plan, plan_upload, with_default_model
from dropbatch.core.read.form import read_beginning
from dropbatch.errors import Error, NotFound, UploadRefused, UsageError
from dropbatch.serve import objects
from dropbatch.serve.files import Files
from dropbatch.serve.objects import (
    FINAL_STATUSES,
    ApiError,
    Record,
    batch_object,
    failed_object,
    no_such,
    wrong,
)
from dropbatch.serve.store import Store

MAX_NAME, MAX_VALUE = 64, 512
"""Characters of a name and of a value in a batch's metadata."""
NOT_STARTED_SECONDS = 900
"""A batch without an upload after these never gets one: its server died while it created it."""
RESENT_SECONDS = 1_800
"""In which an SDK sends a request again: it waits 600 s for an answer, three times."""
NO_JOB_SECONDS = 86_400
"""Seconds after a batch's window in which its job must have come into being."""
_KNOWN_BATCHES = 2_000
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")
_TRIES = 5
NO_JOB = {
    "code": "no_job",
    "message": "Its server was stopped while it created this batch, or its results were deleted "
    "after the stack's ResultRetentionDays.",
}


class NewBatch(msgspec.Struct):
    """The body of a request for a batch; what it has besides is ignored."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class Found(NamedTuple):
    """A batch, its job, and what that has written."""

    record: Record
    job: Job | None = None
    status: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None


class Batches:
    """The batches of a bucket. `ApiError`: there is no such batch."""

    def __init__(self, store: Store, files: Files, model: str = "") -> None:
        self.store, self.files, self._model = store, files, model
        self._reading = Lock()
        """A beginning has up to 12 MB in memory: one at a time."""
        self._final = dict[str, Found]()
        self._jobs = lru_cache(_KNOWN_BATCHES)(self._existing_job)

    def create(self, asked: NewBatch, *, again: bool) -> dict[str, Any]:
        """Start a batch; return its object.

        `again`: the client sent the same request before, and got no answer. Each batch is billed:
        if that request created one, this one does not.
        """
        record, options = _checked(asked)
        if again and (created := self._created_by(record)):
            if self.store.head(INBOX + objects.upload_path(created)) is None:
                raise _being_created()
            return self.retrieve(created)
        head = self._input(asked.input_file_id)
        if self._model and not record.model:
            options["model"] = self._model_of(asked.input_file_id)
        # The record first: a server that dies in between leaves a batch that failed, not a job that
        # nobody knows.
        self.store.put(objects.batch_key(record.id), msgspec.json.encode(record), IfNoneMatch="*")
        source = objects.file_key(asked.input_file_id)
        target = INBOX + objects.upload_path(record.id)
        try:
            self.store.copy(source, head, target, options)
        except Error:
            if self.store.head(target) is None:
                self._change(record.id, lambda _: {"unstarted": True})
                raise
        return batch_object(record, None, None)

    def _input(self, file_id: str) -> ObjectHead:
        if objects.batch_of_result(file_id):
            message = "A batch's results are no input: upload a file with purpose batch."
            raise wrong("input_file_id", message)
        try:
            return self.files.head(file_id)
        except ApiError as error:
            error.param = "input_file_id"
            raise

    def _model_of(self, file_id: str) -> str:
        """The model that a file names as the stack finds it, or else the server's."""
        limits, options = StackLimits(default_model=self._model), Options(format="openai")
        first = first_plan(with_default_model(options, limits), limits, by_default=True)
        try:
            with self._reading:
                beginning = read_beginning(self.files.blocks(file_id))
                return plan_upload(first, options, INBOX, beginning, limits).plan.model
        except (UploadRefused, UsageError):  # The stack says what is wrong with the file.
            return self._model

    def _created_by(self, wanted: Record) -> str | None:
        """The id of the batch that the same request may have created.

        One whose upload failed does not count: it is `unstarted`, which `wanted` is not.
        """
        for batch_id in self._ids(objects.BATCHES):
            if objects.created_at(batch_id) < time.time() - RESENT_SECONDS:
                break
            record, _ = self._read(batch_id)
            as_wanted = {"id": wanted.id, "expires_at": wanted.expires_at}
            if msgspec.structs.replace(record, **as_wanted) == wanted:
                return batch_id
        return None

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """Cancel a batch that is not over; return its object."""
        found = self.find(batch_id)
        status = self.retrieve(batch_id)["status"]
        if status in FINAL_STATUSES:
            raise ApiError(409, f"Cannot cancel a batch with status '{status}'.")
        try:
            find_job(self.store.stack, INBOX + objects.upload_path(batch_id)).cancel()
        except NotFound:
            raise _being_created() from None
        now = int(time.time())
        record = self._change(batch_id, lambda one: {"cancelling_at": one.cancelling_at or now})
        return batch_object(record, found.status, found.manifest)

    def delete_result(self, batch_id: str, kind: str) -> None:
        """Hide a file of results, as a deleted one; the job keeps it."""
        self.result(batch_id, kind)
        self._change(batch_id, lambda one: {"deleted": tuple(sorted({*one.deleted, kind}))})

    def _change(self, batch_id: str, changes: Callable[[Record], dict[str, Any]]) -> Record:
        """Write a batch's record again; what another server wrote meanwhile is kept."""
        for _ in range(_TRIES):
            record, etag = self._read(batch_id)
            changed = msgspec.structs.replace(record, **changes(record))
            content = msgspec.json.encode(changed)
            if self.store.put(objects.batch_key(batch_id), content, IfMatch=etag):
                return changed
        raise ApiError(409, "The batch is being changed by others. Try again.")

    def retrieve(self, batch_id: str) -> dict[str, Any]:
        """A batch's object."""
        found = self.find(batch_id)
        shown = batch_object(found.record, found.status, found.manifest)
        if found.manifest or (found.status and found.status["state"] not in FINAL_JOB_STATES):
            return shown
        has_no_job = found.status or self._has_no_job(found.record)
        error = NO_JOB if has_no_job else self._given_up(batch_id)
        return failed_object(shown, error) if error else shown

    def _given_up(self, batch_id: str) -> dict[str, str] | None:
        """Why the stack has given up a batch's upload, of which S3 told it nothing, if it has."""
        notice = self.store.stack.read_json(denied_notice(INBOX + objects.upload_path(batch_id)))
        return notice["error"] if notice and not notice["job_id"] else None

    def _has_no_job(self, record: Record) -> bool:
        """Whether a batch without a job will never have one, or has one no more."""
        now = time.time()
        if record.unstarted or now > record.expires_at + NO_JOB_SECONDS:
            return True
        is_old = now > objects.created_at(record.id) + NOT_STARTED_SECONDS
        return is_old and self.store.head(INBOX + objects.upload_path(record.id)) is None

    def page(self, after: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """Batches after the one with the id `after`, newest first, and whether there are more."""
        if after and not objects.is_batch(after):
            raise no_such("Batch", after, "after")
        start = objects.batch_key(after) if after else objects.BATCHES
        ids = list(islice(self._ids(start), limit + 1))
        return self.store.each(self.retrieve, ids[:limit]), len(ids) > limit

    def _ids(self, after: str) -> Iterator[str]:
        for key in self.store.keys(objects.BATCHES, after):
            batch_id = key.rpartition("/")[2].removesuffix(".json")
            if objects.is_batch(batch_id):
                yield batch_id

    def find(self, batch_id: str) -> Found:
        """A batch, and what is known about its job."""
        if known := self._final.get(batch_id):
            return known
        record, _ = self._read(batch_id)
        job = self._job_of(batch_id)
        if job is None:
            return Found(record)
        status, manifest = job.stack.read_json(f"{job.folder}status.json"), None
        if status and status["state"] in FINAL_JOB_STATES | {JobState.FINALIZING}:
            manifest = job.stack.read_json(f"{job.folder}manifest.json")
        found = Found(record, job, status, manifest)
        if manifest:
            if len(self._final) >= _KNOWN_BATCHES:
                self._final.clear()
            self._final[batch_id] = found
        return found

    def result(self, batch_id: str, kind: str) -> Found:
        """A batch that has a file of results of this kind, `output` or `error`."""
        file_id = objects.result_file(batch_id, kind)
        try:
            record, _ = self._read(batch_id)
            found = self.find(batch_id)
        except ApiError as error:
            raise no_such("File", file_id) from error
        shown = batch_object(found.record, found.status, found.manifest)
        if shown[f"{kind}_file_id"] is None or kind in record.deleted:
            raise no_such("File", file_id)
        return found

    def _read(self, batch_id: str) -> tuple[Record, str]:
        found = self.store.get(objects.batch_key(batch_id)) if objects.is_batch(batch_id) else None
        if found is None:
            raise no_such("Batch", batch_id)
        return msgspec.json.decode(found[0], type=Record), found[1]

    def _job_of(self, batch_id: str) -> Job | None:
        try:
            return self._jobs(batch_id)
        except LookupError:
            return None

    def _existing_job(self, batch_id: str) -> Job:
        path = objects.upload_path(batch_id)
        # An error is not remembered.
        return Job.at(self.store.stack, path, job_ids(self.store.stack, path)[-1])


def _being_created() -> ApiError:
    return ApiError(409, "The batch is being created. Try again in some seconds.")


def _checked(asked: NewBatch) -> tuple[Record, dict[str, str]]:
    """The record of a new batch, and its upload's metadata."""
    hours, metadata = _hours(asked.completion_window), _checked_metadata(asked.metadata or {})
    endpoint = _endpoint(asked.endpoint)
    model, now = model_id(metadata.get("model", "")), time.time()
    record = Record(
        id=f"batch_{objects.new_id(now)}",
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        expires_at=int(now) + 3_600 * hours,
        model=model or None,
        metadata=asked.metadata,
    )
    tags = {name: text for name, text in metadata.items() if name != "model" or not model}
    chosen = {"endpoint": endpoint, "model": model, "tags": tags}
    options = {"format": "openai", "deadline_hours": hours}
    options |= {name: value for name, value in chosen.items() if value}
    return record, metadata_of(options)


def _endpoint(given: str) -> str:
    """The endpoint that each line must be for; Azure's have no version, and its lines decide."""
    is_azures = not given.startswith("/v1/")
    if (f"/v1/{given.strip('/')}" if is_azures else given) not in BATCH_ENDPOINTS:
        message = f"It must be one of {', '.join(BATCH_ENDPOINTS)}."
        raise wrong("endpoint", message, "invalid_endpoint")
    return "" if is_azures else given


def _hours(window: str) -> int:
    matched = _WINDOW.fullmatch(window)
    if matched is None or int(matched[1]) > MAX_DEADLINE_HOURS:
        message = f"It must be a number of hours from 1h to {MAX_DEADLINE_HOURS}h, such as 24h."
        raise wrong("completion_window", message)
    return int(matched[1])


def _checked_metadata(given: dict[str, str]) -> dict[str, str]:
    if len(given) > MAX_TAGS:
        raise wrong("metadata", f"It may have {MAX_TAGS} pairs.")
    if not all(0 < len(name) <= MAX_NAME and len(given[name]) <= MAX_VALUE for name in given):
        message = f"A name may have {MAX_NAME} characters, a value {MAX_VALUE}."
        raise wrong("metadata", message)
    return given
