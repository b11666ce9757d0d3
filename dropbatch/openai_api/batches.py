"""Batches: `files/batches/<batch_id>.json` says what was asked for.

Its job, under `results/`, what became of it.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dropbatch.client.find_jobs import job_ids
from dropbatch.client.job import Job
from dropbatch.core.formats.openai import BATCH_ENDPOINTS
from dropbatch.core.models import model_id
from dropbatch.core.names import FINAL_JOB_STATES, INBOX, JobState, denied_notice, job_id
from dropbatch.core.options import MAX_DEADLINE_HOURS, MAX_TAGS, Options, metadata_of
from dropbatch.core.plan import StackLimits, first_plan, plan_upload, with_default_model
from dropbatch.core.read.form import read_beginning
from dropbatch.errors import Error, UploadRefused, UsageError
from dropbatch.openai_api import names
from dropbatch.openai_api.errors import ApiError, no_such
from dropbatch.openai_api.objects import FINAL_STATUSES, Record, batch_object
from dropbatch.openai_api.store import MAX_PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropbatch.openai_api.files import Files
    from dropbatch.openai_api.store import Store

MAX_NAME, MAX_VALUE = 64, 512
"""Characters of a name and of a value in a batch's metadata."""
NOT_STARTED_SECONDS = 900
"""Seconds after which a batch without an upload never gets one.

Its server died while it created it.
"""
NO_JOB_SECONDS = 86_400
"""Seconds after a batch's window in which its job must have come into being."""
_KNOWN_BATCHES = 2_000
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")
_TRIES = 5


class NewBatch(msgspec.Struct):
    """The body of a request for a batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: dict[str, Any] | None = None


class Found(NamedTuple):
    """A batch and what its job has written.

    Attributes:
        record: what was asked for.
        job: None until it exists.
        status: the job's `status.json`, if it exists.
        manifest: of a job that is over.
    """

    record: Record
    job: Job | None = None
    status: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None


class Batches:
    """The batches of a bucket."""

    def __init__(self, store: Store, files: Files, model: str = "") -> None:
        """Keep nothing but what does not change.

        Args:
            store: the bucket.
            files: its files.
            model: of batches that name none of Workers AI's; empty for the stack's.
        """
        self.store, self.files, self._model = store, files, model
        self._reading = Lock()
        """A beginning has up to 12 MB in memory: one at a time."""
        self._final = dict[str, Found]()
        self._jobs = lru_cache(_KNOWN_BATCHES)(self._existing_job)

    # ── create, cancel ────────────────────────────────────────────────────────────────────────────

    def create(self, asked: NewBatch, *, resent_within: float) -> dict[str, Any]:
        """Start a batch; return its object.

        Args:
            asked: what for.
            resent_within: seconds before now in which the client sent the same request, and got no
                answer; 0 if it did not. Each batch is billed, so if that request may have created
                one, this one does not.

        Raises:
            ApiError: it cannot be started, or another request is starting it.
        """
        record, options = _checked(asked)
        if resent_within and (created := self._created_by(record, resent_within)):
            if self.store.head(INBOX + names.upload_path(created)) is None:
                raise _being_created()
            return self.retrieve(created)
        if names.batch_of_result(asked.input_file_id):
            raise ApiError(
                400,
                "A batch's results are no input: upload a file with purpose batch.",
                "input_file_id",
            )
        try:
            head = self.files.head(asked.input_file_id)
        except ApiError as error:
            error.param = "input_file_id"
            raise
        if self._model and not record.model:
            options["model"] = self._model_of(asked.input_file_id)
        # The record first: a server that dies in between leaves a batch that failed, not a job that
        # nobody knows.
        self.store.put(names.batch_key(record.id), msgspec.json.encode(record), {}, IfNoneMatch="*")
        source, target = names.file_key(asked.input_file_id), INBOX + names.upload_path(record.id)
        try:
            self.store.copy(source, head, target, options)
        except Error:
            if self.store.head(target) is None:
                self._change(record.id, Record.never_started)
                raise
        return batch_object(record, None, None)

    def _model_of(self, file_id: str) -> str:
        """The model that a file names, as the stack finds it.

        The server's if it names none of Workers AI's.
        """
        limits, options = StackLimits(default_model=self._model), Options(format="openai")
        first = first_plan(with_default_model(options, limits), limits, by_default=True)
        try:
            with self._reading:
                beginning = read_beginning(self.files.blocks(file_id))
                return plan_upload(first, options, INBOX, beginning, limits).plan.model
        except (UploadRefused, UsageError):  # The stack says what is wrong with the file.
            return self._model

    def _created_by(self, wanted: Record, seconds: float) -> str | None:
        """The id of the batch that the same request may have created in these last seconds.

        None if there is none.

        One that failed before anything of it was sent does not count: the client may not know it,
        and another costs nothing. An equal one does that another request created: the client has
        that one's answers, and no second bill.
        """
        for batch_id in self._ids(names.BATCHES, MAX_PAGE):
            if names.created_at(batch_id) < time.time() - seconds:
                break
            record, _ = self._read(batch_id)
            same = (
                msgspec.structs.replace(record, id=wanted.id, expires_at=wanted.expires_at)
                == wanted
            )
            if same and not self._failed_unsent(batch_id):
                return batch_id
        return None

    def _failed_unsent(self, batch_id: str) -> bool:
        """Whether a batch has failed before its file was divided into anything that is sent."""
        if self.retrieve(batch_id)["status"] != "failed":
            return False
        found = self.find(batch_id)
        if found.manifest is None:
            return found.job is None
        listed_apart = any(file["kind"] == "batches" for file in found.manifest["files"])
        return not (found.manifest["batches"] or listed_apart)

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """Cancel a batch; return its object.

        Raises:
            ApiError: there is no such batch, or it is over.
        """
        found = self.find(batch_id)
        status = self.retrieve(batch_id)["status"]
        if status in FINAL_STATUSES:
            raise ApiError(409, f"Cannot cancel a batch with status '{status}'.")
        self._job_to_be(batch_id).cancel()
        record = self._change(
            batch_id, lambda one: one if one.cancelling_at else one.cancelled_now(time.time())
        )
        return batch_object(record, found.status, found.manifest)

    def _job_to_be(self, batch_id: str) -> Job:
        """A batch's job, whose id follows from its upload before it exists."""
        if job := self._job_of(batch_id):
            return job
        key = INBOX + names.upload_path(batch_id)
        head = self.store.head(key)
        if head is None:
            raise _being_created()
        id_ = job_id(self.store.bucket, key, head.version, head.etag, head.modified)
        return Job.at(self.store.stack, names.upload_path(batch_id), id_)

    def delete_result(self, batch_id: str, kind: str) -> None:
        """Hide a file of results, as a deleted one; the job keeps it.

        Raises:
            ApiError: there is no such file.
        """
        self.result(batch_id, kind)
        self._change(batch_id, lambda record: record.without(kind))

    def _change(self, batch_id: str, change: Callable[[Record], Record]) -> Record:
        """Write a batch's record again; what another server wrote meanwhile is kept."""
        for _ in range(_TRIES):
            record, etag = self._read(batch_id)
            changed = change(record)
            if self.store.put(
                names.batch_key(batch_id), msgspec.json.encode(changed), {}, IfMatch=etag
            ):
                return changed
        raise ApiError(409, "The batch is being changed by others. Try again.")

    # ── look ──────────────────────────────────────────────────────────────────────────────────────

    def retrieve(self, batch_id: str) -> dict[str, Any]:
        """A batch's object.

        Raises:
            ApiError: there is no such batch.
        """
        found = self.find(batch_id)
        shown = batch_object(found.record, found.status, found.manifest)
        if found.manifest or (found.status and found.status["state"] not in FINAL_JOB_STATES):
            return shown
        error = (
            NO_JOB if found.status or self._has_no_job(found.record) else self._given_up(batch_id)
        )
        return shown | _failed(batch_id, error) if error else shown

    def _given_up(self, batch_id: str) -> dict[str, str] | None:
        """Why the stack has given up a batch's upload, of which S3 told it nothing.

        None if it has not.
        """
        notice = self.store.stack.read_json(denied_notice(INBOX + names.upload_path(batch_id)))
        return notice["error"] if notice and not notice["job_id"] else None

    def _has_no_job(self, record: Record) -> bool:
        """Whether a batch without a job will never have one, or has one no more."""
        now = time.time()
        if record.unstarted or now > record.expires_at + NO_JOB_SECONDS:
            return True
        is_old = now > names.created_at(record.id) + NOT_STARTED_SECONDS
        return is_old and self.store.head(INBOX + names.upload_path(record.id)) is None

    def list(self, after: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """Batches, newest first, and whether there are more.

        Args:
            after: id of the last one of the page before; empty for the first page.
            limit: most entries.

        Raises:
            ApiError: `after` is no batch's id.
        """
        if after and not names.is_batch(after):
            raise no_such("Batch", after, "after")
        start = names.batch_key(after) if after else names.BATCHES
        ids = list(islice(self._ids(start, limit + 1), limit + 1))
        return self.store.each(self.retrieve, ids[:limit]), len(ids) > limit

    def _ids(self, after: str, page: int) -> Iterator[str]:
        """Ids of batches, newest first."""
        for key in self.store.keys(names.BATCHES, after, page):
            batch_id = key.rpartition("/")[2].removesuffix(".json")
            if names.is_batch(batch_id):
                yield batch_id

    def find(self, batch_id: str) -> Found:
        """A batch, and what is known about its job.

        Raises:
            ApiError: there is no such batch.
        """
        if known := self._final.get(batch_id):
            return known
        record, _ = self._read(batch_id)
        job = self._job_of(batch_id)
        if job is None:
            return Found(record)
        status = job.stack.read_json(f"{job.folder}status.json")
        manifest = None
        if status and status["state"] in FINAL_JOB_STATES | {JobState.FINALIZING}:
            manifest = job.stack.read_json(f"{job.folder}manifest.json")
        found = Found(record, job, status, manifest)
        if manifest:
            self._remember(found)
        return found

    def result(self, batch_id: str, kind: str) -> Found:
        """A batch that has a file of results of this kind, `output` or `error`.

        Raises:
            ApiError: it has none, or none yet.
        """
        file_id = names.result_file(batch_id, kind)
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
        found = self.store.get(names.batch_key(batch_id)) if names.is_batch(batch_id) else None
        if found is None:
            raise no_such("Batch", batch_id)
        return msgspec.json.decode(found[0], type=Record), found[1]

    def _job_of(self, batch_id: str) -> Job | None:
        try:
            return self._jobs(batch_id)
        except LookupError:
            return None

    def _existing_job(self, batch_id: str) -> Job:
        path = names.upload_path(batch_id)
        # An error is not remembered.
        return Job.at(self.store.stack, path, job_ids(self.store.stack, path)[-1])

    def _remember(self, found: Found) -> None:
        """Keep what cannot change any more."""
        if len(self._final) >= _KNOWN_BATCHES:
            self._final.clear()
        self._final[found.record.id] = found


def _being_created() -> ApiError:
    return ApiError(409, "The batch is being created. Try again in some seconds.")


NO_JOB = {
    "code": "no_job",
    "message": "Its server was stopped while it created this batch, or its results were "
    "deleted after the stack's "
    "ResultRetentionDays.",
}


def _failed(batch_id: str, error: dict[str, str]) -> dict[str, Any]:
    """What the object of a batch without a job says."""
    told = {"code": error["code"], "message": error["message"], "param": None, "line": None}
    errors = {"object": "list", "data": [told]}
    return {"status": "failed", "errors": errors, "failed_at": names.created_at(batch_id)}


def _checked(asked: NewBatch) -> tuple[Record, dict[str, str]]:
    """The record of a new batch, and its upload's metadata.

    Raises:
        ApiError: something is asked for that there is not.
    """
    endpoint = f"/v1/{asked.endpoint.strip('/').removeprefix('v1/')}"  # Azure's have no version.
    if endpoint not in BATCH_ENDPOINTS:
        raise ApiError(
            400, f"It must be one of {', '.join(BATCH_ENDPOINTS)}.", "endpoint", "invalid_endpoint"
        )
    matched = _WINDOW.fullmatch(asked.completion_window)
    if matched is None or int(matched[1]) > MAX_DEADLINE_HOURS:
        message = f"It must be a number of hours from 1h to {MAX_DEADLINE_HOURS}h, such as 24h."
        raise ApiError(400, message, "completion_window", "invalid_value")
    if asked.output_expires_after is not None:
        message = (
            "It is not supported: results are kept for as long as the stack's "
            "ResultRetentionDays says."
        )
        raise ApiError(400, message, "output_expires_after", "unsupported_parameter")
    metadata = asked.metadata or {}
    if len(metadata) > MAX_TAGS:
        raise ApiError(400, f"It may have {MAX_TAGS} pairs.", "metadata")
    if any(
        not 0 < len(name) <= MAX_NAME or len(text) > MAX_VALUE for name, text in metadata.items()
    ):
        message = f"A name may have {MAX_NAME} characters, a value {MAX_VALUE}."
        raise ApiError(400, message, "metadata")
    now = time.time()
    record = Record(
        id=f"batch_{names.new_id(now)}",
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        expires_at=int(now) + 3_600 * int(matched[1]),
        model=model_id(metadata.get("model", "")) or None,
        metadata=asked.metadata,
    )
    options: dict[str, object] = {
        "format": "openai",
        "endpoint": endpoint,
        "deadline_hours": int(matched[1]),
    }
    if record.model:
        options["model"] = record.model
    if tags := {
        name: text for name, text in metadata.items() if name != "model" or not record.model
    }:
        options["tags"] = tags
    try:
        return record, metadata_of(options)
    except UsageError as error:
        raise ApiError(
            400,
            "It is too large: all names and values together may have about 1,900 bytes.",
            "metadata",
        ) from error
