"""Records of a finished job are sent again: its retry file, or those that are chosen.

The promise: a retry of chosen records has just these, byte for byte, and `merge` knows the place of
each, because a list of their ids is stored before it, under `inbox/_retries/`, where nothing is an
upload.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from dropbatch.client.check import blocks_of_stream, unpacked
from dropbatch.client.job import Job
from dropbatch.client.records import DEFAULT_FORMAT, Record, lines_of
from dropbatch.client.stack import blocks, object_file, pages_of
from dropbatch.client.upload import copy, upload, uploaded_as
from dropbatch.core import names
from dropbatch.core.errors import NO_CAPACITY_WORDS, PASSING_CODES
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.models import model_advice, unknown_model
from dropbatch.core.options import Options, decode_options, metadata_of
from dropbatch.core.plan import Checkpoint, Planned, StackLimits, first_plan, plan_upload
from dropbatch.core.read.form import read_beginning
from dropbatch.core.read.lines import windows
from dropbatch.core.read.records import judge_of
from dropbatch.errors import NotFound, NothingToRetry, UnknownModel

IDS = "retry-ids"
"""Metadata of a retry of chosen records: the key of the list of their ids."""
MIN_SHOWN = Decimal("0.0001")
"""Dollars of a retry that are shown."""


def retry_ids(job: Job) -> list[str]:
    """Ids of the finished jobs that tried a job's failed records again."""
    pages = pages_of(job.stack, f"{job.folder}retries/")
    found = [entry["Key"] for page in pages for entry in page]
    ids = [key.rpartition("/")[2].removesuffix(".json") for key in found]
    return [one for one in ids if names.JOB_ID.fullmatch(one)]


def retry(job: Job, options: Mapping[str, object]) -> tuple[Job, list[str]]:
    """Copy a job's retry file into `inbox/`; the new job, and what is odd."""
    given = metadata_of(options)
    if words := unknown_model(given.get("model", ""), given.get("task")):
        raise UnknownModel(words)
    job = job.resolved()
    manifest = job.manifest()
    files = [entry["name"] for entry in manifest["files"] if entry["kind"] == "retry"]
    if not files:
        failed = manifest["counts"]["failed"]
        why = "none of its failed records can be tried again" if failed else "no record failed"
        raise NothingToRetry(f"Job {job.id} has no retry file: {why}.")
    stack, source = job.stack, job.folder + files[0]
    key = names.INBOX + retry_path(job.path, PurePosixPath(files[0]).suffix)
    advice = model_advice(given.get("model") or manifest["model"] or "")
    notes = [one for one in (_another(job, key), advice) if one]
    found = stack.ask("head_object", source)
    if found is None:
        raise NotFound(f"The retry file of job {job.id} was deleted.")
    metadata = {"retry-of": job.id} | found["Metadata"] | given
    place = {"Bucket": stack.bucket, "Key": source}
    uploaded = copy(stack, place, found["ContentLength"], key, metadata)
    return Job.of_upload(stack, uploaded), notes


def _another(job: Job, key: str) -> str:
    others = retry_ids(job)
    with suppress(NotFound):
        newest = uploaded_as(job.stack, key, {})
        if newest.metadata.get("retry-of") == job.id:
            others.append(newest.job_id(job.stack.bucket))
    if not others:
        return ""
    return (
        f"Job {job.id} is retried already, by job {others[-1]}. All its failed records are sent "
        f"and billed again. A retry of job {others[-1]} sends what that one leaves over."
    )


def retry_path(path: str, suffix: str) -> str:
    """The path of a retry: `.retry` and the retry file's suffix replace the upload's suffixes."""
    folder, slash, name = path.rpartition("/")
    stem = name.removesuffix(".gz").removesuffix(".zst")
    stem = (stem.rpartition(".")[0] or stem).removesuffix(".retry")
    room = names.MAX_PATH_BYTES - len(f"{folder}{slash}.retry{suffix}".encode())
    return f"{folder}{slash}{stem.encode()[:room].decode(errors='ignore')}.retry{suffix}"


class Wanted(NamedTuple):
    """Which records are sent again.

    Attributes:
        failed: those that failed for reasons that pass: capacity, no answer, no time.
        unknown: of these, also those that may have been billed: `submit_unknown`.
        incomplete: answers that are none.
        misfits: answers that do not fit their schema, if it is True, or this type.
    """

    failed: bool = False
    unknown: bool = False
    incomplete: bool = False
    misfits: Any = False

    def has(self, record: Record) -> bool:
        """Whether a record is one of them."""
        if record.error:
            passes = {
                "inference_failed": _lacked_capacity(record.error.message),
                "submit_unknown": self.unknown,
                "missing_response": True,
                "expired": True,
            }
            return self.failed and passes.get(record.error.code, False)
        return bool(record.misfit or (self.incomplete and record.flaw))


def _lacked_capacity(text: str) -> bool:
    number = text.partition(":")[0]
    return text == NO_CAPACITY_WORDS or (number.isdigit() and int(number) in PASSING_CODES)


def send_chosen(job: Job, wanted: Wanted, options: Mapping[str, object]) -> tuple[Job, int]:
    """Send the records that are wanted again, as a retry of their job; also how many they are.

    Newest answers count.

    Raises:
        NothingToRetry: there are none.
        NotFound: the upload was deleted.
    """
    job, into = job.resolved(), None if wanted.misfits is True else wanted.misfits
    merged, check = bool(retry_ids(job)), bool(wanted.misfits)
    records = job.results(merged=merged, into=into, check=check)
    return _send(job, (one.id for one in records if wanted.has(one)), metadata_of(options))


class Again(NamedTuple):
    """How often records are sent again by whoever waits, which, and who is told what it costs."""

    times: int
    wanted: Wanted
    say: Callable[[str], None] = lambda _: None

    def settle(self, over: Iterable[tuple[Job, Any]], wait: Callable[[list[Job]], Any]) -> None:
        """Send what is wanted of finished jobs again, and wait for it.

        A retry that an interrupted call has sent is waited for, and not sent twice.
        """
        manifests = {job: found for job, found in over if isinstance(found, dict)}
        for _ in range(self.times):
            made = {
                job: one
                for job, found in manifests.items()
                if (one := _unfinished(job) or _sent(job, found, self))
            }
            manifests = {job: manifests[job] for job in made}
            if made:
                wait([*made.values()])


def _sent(job: Job, manifest: dict[str, Any], again: Again) -> Job | None:
    wanted = again.wanted
    has_some = manifest["counts"]["failed"] or (wanted.incomplete and manifest["incomplete"])
    if not (has_some or wanted.misfits):
        return None
    try:
        retry, records = send_chosen(job, wanted, {})
    except NotFound:  # Nothing to retry, or no output.
        return None
    total, cost, about = manifest["counts"]["total"], manifest["cost"], ""
    if cost:
        dollars = Decimal(cost["amount"]) * records / total
        about = f", about ${dollars:.4f}" if dollars >= MIN_SHOWN else f", under ${MIN_SHOWN}"
    sent = f"sent and billed again: {records:,} of {total:,} records{about}"
    again.say(f"{job.id}  {sent}, job {retry.id}")
    return retry


def _unfinished(job: Job) -> Job | None:
    """The newest retry of a job, if it is not over."""
    try:
        newest = uploaded_as(job.stack, _retry_key(job, job.manifest()), {})
    except NotFound:
        return None
    if newest.metadata.get("retry-of") != job.id:
        return None
    again = Job.of_upload(job.stack, newest).resolved()
    return None if again.status()["state"] in names.FINAL_JOB_STATES else again


def _retry_key(job: Job, manifest: Mapping[str, Any]) -> str:
    form = FORMATS[manifest["format"] or DEFAULT_FORMAT]
    return names.INBOX + retry_path(job.path, form.extension or ".jsonl")


def _send(job: Job, ids: Iterable[int], given: Mapping[str, str]) -> tuple[Job, int]:
    manifest, wanted, digest, count = job.manifest(), iter(ids), hashlib.sha256(), 0
    with tempfile.TemporaryFile() as records, tempfile.TemporaryFile() as listed:
        next_id = next(wanted, None)
        if next_id is None:
            raise NothingToRetry(f"Job {job.id} has no such records.")
        planned, found = records_of_upload(job, manifest)
        records.write(planned.header + b"\n" if planned.header else b"")
        for id_, record in enumerate(found):
            if id_ == next_id:
                count += 1
                records.write(record + b"\n")
                listed.write(b"%d\n" % id_)
                digest.update(b"%d\n" % id_)
                next_id = next(wanted, None)
                if next_id is None:
                    break
        key = f"{names.INBOX}_retries/{job.id}/{digest.hexdigest()[:16]}"
        for file in (records, listed):
            file.seek(0)
        upload(job.stack, listed, key, {})
        metadata = {"retry-of": job.id, "model": manifest["model"], IDS: key, **given}
        uploaded = upload(job.stack, records, _retry_key(job, manifest), metadata)
        return Job.of_upload(job.stack, uploaded), count


def records_of_upload(job: Job, manifest: Mapping[str, Any]) -> tuple[Planned, Iterator[bytes]]:
    """A job's upload: how it is read, and its records as they were written, in order of their ids.

    A record that could not be sent is there as what was read of it.
    """
    place, head = _upload_of(job, manifest)
    if head is None:
        raise NotFound(f"The upload of job {job.id} was deleted: its records cannot be read.")
    file = object_file(job.stack.s3, place, head["ContentLength"])
    options, limits, key = options_of(job), StackLimits(), names.INBOX + job.path
    first = first_plan(options, limits, by_default=False)
    beginning = read_beginning(blocks_of_stream(file))
    planned = plan_upload(first, options, key, beginning, limits, is_retry=True)
    return planned, _records(file, planned)


def chosen_ids(job: Job, manifest: Mapping[str, Any]) -> Callable[[], Iterator[int]] | None:
    """Which of its parent's records a retry has, read anew at each call; None if not told."""
    _, head = _upload_of(job, manifest)
    key = str(head["Metadata"].get(IDS, "")) if head else ""
    listed = job.stack.ask("head_object", key) if key else None
    if listed is None:
        return None
    place = {"Bucket": job.stack.bucket, "Key": key}
    return lambda: map(int, lines_of(blocks(job.stack.s3, place, listed["ContentLength"])))


def _upload_of(
    job: Job, manifest: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Where a job's upload lies, and what S3 knows of it; None if it was deleted."""
    source = manifest["source"]
    version = {"VersionId": source["version"]} if source["version"] != "null" else {}
    head = job.stack.ask("head_object", source["key"], Bucket=source["bucket"], **version)
    return {"Bucket": source["bucket"], "Key": source["key"], **version}, head


def options_of(job: Job) -> Options:
    """A job's options, as it resolved them."""
    found = job.stack.read(f"{job.folder}options.json")
    return decode_options(found) if found else Options()


def _records(file: BinaryIO, planned: Planned) -> Iterator[bytes]:
    plan = planned.plan
    judge = judge_of(plan)
    for window in windows(plan, Checkpoint(plan.start, plan.start_line), unpacked(file, plan)):
        for raw in window.records:
            judged = judge(raw, None if plan.is_document else 1)
            if judged is not None:
                yield judged if isinstance(judged, bytes) else b""
