"""A job as its user sees it: its id, its files in the bucket, and what can be done with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from dropbatch.client import aws
from dropbatch.client.stack import Stack
from dropbatch.client.upload import Uploaded
from dropbatch.core import names
from dropbatch.errors import Error, JobFailed, NotFound, NotOver

if TYPE_CHECKING:
    from dropbatch.client.export import Delivery
    from dropbatch.client.records import Record, ResultFiles


class JobOptions(TypedDict, total=False):
    """The options of a job, for type checkers: docs/options.md says what each means."""

    model: str
    format: str
    template: object
    delimiter: str
    system: str
    endpoint: str
    task: str
    defaults: Mapping[str, Any]
    deadline_hours: float
    max_failed_fraction: float
    max_cost: float | Decimal
    output_tokens: int
    schema: Mapping[str, Any]
    tags: Mapping[str, str]


class Chosen(TypedDict, total=False):
    """What is sent again besides what failed for capacity, or without an answer in time.

    `unknown`: what may have been billed (`submit_unknown`); `incomplete` and `misfits`: see
    `Job.retry`.
    """

    unknown: bool
    incomplete: bool
    misfits: Any


def no_job(path: str, notice: Mapping[str, Any]) -> NotFound:
    """What is wrong with an upload of which S3 tells the stack nothing, as its notice says."""
    why = notice["error"] or notice["waiting_for"]
    return NotFound(f"{path} has no job: {why['code']}: {why['message']}")


@dataclass(frozen=True, repr=False)
class Job:
    """A job. Everything about it is read from the bucket.

    Attributes:
        id: its id. If another upload has it, the stack gives the job another: see `resolved`.
        folder: the prefix of its results; ends in a slash.
        uploaded: its upload, if this program uploaded it: the job may not exist yet.
    """

    stack: Stack = field(compare=False)
    id: str
    folder: str
    uploaded: Uploaded | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.path!r}>"

    @classmethod
    def at(cls, stack: Stack, path: str, job_id: str) -> Job:
        """The job of an upload at a path under `inbox/`."""
        return cls(stack, job_id, names.result(names.INBOX + path, job_id, ""))

    @classmethod
    def of_upload(cls, stack: Stack, uploaded: Uploaded) -> Job:
        """The job of an upload, whether it exists yet or not."""
        job_id = uploaded.job_id(stack.bucket)
        return cls(stack, job_id, names.result(uploaded.key, job_id, ""), uploaded)

    @classmethod
    def recorded(cls, stack: Stack, job_id: str) -> Job:
        """The job with an id.

        Raises:
            NotFound: there is none.
        """
        record = stack.read_json(names.job_record(job_id))
        if record is None:
            raise NotFound(f"There is no job {job_id} in {stack.bucket}.")
        return cls.at(stack, record["path"], job_id)

    @property
    def path(self) -> str:
        """The upload's path under `inbox/`."""
        return self.folder.removeprefix("results/").removesuffix(f"{self.id}/").rstrip("/")

    def resolved(self) -> Job:
        """The job as the stack has created it: with its own id, if another upload has this one."""
        if self.uploaded is None:
            return self
        job = self
        for choice in range(names.JOB_ID_CHOICES):
            job_id = self.uploaded.job_id(self.stack.bucket, choice)
            folder = names.result(self.uploaded.key, job_id, "")
            job = replace(self, id=job_id, folder=folder)
            if self.stack.read_json(f"{folder}status.json"):
                return replace(job, uploaded=None)
            taken = self.stack.read_json(names.job_record(job_id))
            own = self.uploaded.path, self.uploaded.version
            if taken is None or (taken["path"], taken["version"]) == own:
                break
        return job

    def status(self) -> dict[str, Any]:
        """The job's `status.json`; `{"state": "uploaded"}` until the stack has created the job.

        Raises:
            NotFound: there is no such job.
        """
        job = self.resolved()
        if job.uploaded:
            return job.notice() or {"state": "uploaded"}
        if found := self.stack.read_json(f"{job.folder}status.json"):
            return found
        raise NotFound(f"There is no job {job.id} under {job.folder}.")

    def notice(self) -> dict[str, Any] | None:
        """What shows that S3 tells the stack nothing of an upload without a job, if anything."""
        if self.uploaded is None:
            return None
        found = self.stack.read_json(names.denied_notice(self.uploaded.key))
        if not found or found["job_id"]:
            return None
        return found if found["version"] == self.uploaded.version else None

    def manifest(self) -> dict[str, Any]:
        """The finished job's manifest.

        Raises:
            NotFound: the job does not exist, or is not over.
        """
        job = self.resolved()
        found = self.stack.read_json(f"{job.folder}manifest.json")
        if found:
            return found
        if (state := job.status()["state"]) in names.FINAL_JOB_STATES:
            raise NotFound(f"Job {job.id} is over ({state}), and its manifest was deleted.")
        raise NotOver(f"Job {job.id} is not over yet. Wait for it.")

    def wait(
        self,
        *,
        timeout: float | None = None,
        check: bool = False,
        progress: bool = True,
        retry: int = 0,
        **chosen: Unpack[Chosen],
    ) -> str:
        """Wait until the job is over, also while connections are lost.

        Args:
            timeout: seconds after which to give up.
            check: raise an error unless the job is completed.
            progress: show it on a terminal (standard error) or in a notebook, if the main thread
                waits.
            retry: how often to send records again, which are billed again, that failed for reasons
                that pass; then `results(merged=True)` has their answers.
            chosen: with `retry`, also others: see `Chosen`.

        Returns:
            The final state: `completed`, `failed` or `cancelled`.

        Raises:
            TimedOut: it is not over after these seconds; it continues.
            JobFailed: `check` was given, and the job failed or was cancelled.
            NotFound: an upload has no job after five minutes.
        """
        ((_, found),) = _each_over([self], timeout, chosen, progress=progress, retry=retry)
        return _end_of(self, found, check=check)

    def download(
        self,
        folder: str | Path,
        progress: Callable[[str, int, int], None] = lambda *_: None,
        *,
        merged: bool = False,
        exports: Collection[str] = (),
        columns: bool = True,
        force: bool = False,
    ) -> Delivery:
        """Download the finished job's files into a folder, and write what is made of them.

        Args:
            folder: created if it does not exist.
            progress: called with a file's name, the bytes on this machine, and its size.
            merged: also write the output with each record's newest answer, retries included.
            exports: also write the records as `parquet`, `csv` or `vectorize`. Needs pyarrow.
            columns: in these, give a table's own columns instead of `id` and `external_reference`.
            force: replace files of another job, or of another program, in the folder.

        Raises:
            NotFound: the job is not over.
            UsageError: the folder is another job's or cannot be written, or an export is none.
            Error: a file does not match the manifest.
        """
        from dropbatch.client.export import deliver

        return deliver(
            self.resolved(),
            Path(folder),
            progress,
            merged=merged,
            exports=exports,
            columns=columns,
            force=force,
        )

    def results(
        self, *, merged: bool = False, into: Any = None, check: bool = False
    ) -> Iterator[Record]:
        """The finished job's records, in input order, streamed.

        Args:
            merged: each record's newest answer, retries included.
            into: a pydantic model, msgspec Struct or dataclass: each record's `value` is its answer
                as one, or `misfit` says why it is none.
            check: check answers against the schema in `response_format`, or in the option `schema`
                (extra `dropbatch[check]`); `misfit` says which do not fit.

        Raises:
            NotFound: the job is not over, or has no output.
            UsageError: there is no such type, or a package is missing.
        """
        with self._files(merged=merged) as files:
            if not (into or check):
                yield from files.records()
                return
            from dropbatch.client.fits import judged

            yield from judged(self.resolved(), files.records(), into)

    def to_arrow(self, *, merged: bool = False, columns: bool = True) -> Any:
        """The finished job's records as a `pyarrow.Table` (extra `dropbatch[data]`).

        Columns: `id`, `external_reference`, `success`, `embedding` or `answer`, `finish_reason`,
        `error_code`, `error_message`. A table has its own, as text, instead of the first two.

        Args:
            merged: each record's newest answer, retries included.
            columns: give a table's own columns.

        Raises:
            NotFound: the job is not over, or has no output.
            UsageError: pyarrow is not installed.
            Error: a record has several vectors.
        """
        from dropbatch.client.arrow import record_batches

        with self._files(merged=merged) as files:
            return record_batches(files, columns=columns).read_all()

    def to_pandas(self, *, merged: bool = False, columns: bool = True) -> Any:
        """The same as a pandas DataFrame."""
        return self.to_arrow(merged=merged, columns=columns).to_pandas()

    def to_polars(self, *, merged: bool = False, columns: bool = True) -> Any:
        """The same as a polars DataFrame."""
        import polars as pl

        return pl.from_arrow(self.to_arrow(merged=merged, columns=columns))

    def _files(self, *, merged: bool) -> AbstractContextManager[ResultFiles]:
        from dropbatch.client.download import blocks_of
        from dropbatch.client.merge import merged_files
        from dropbatch.client.records import files_of

        job = self.resolved()
        if merged:
            return merged_files(job)
        return nullcontext(files_of(job.manifest(), lambda entry: blocks_of(job, entry)))

    def cancel(self, *, now: bool = False) -> None:
        """Cancel the job; `now`: without the answers that Workers AI still makes, and may bill."""
        self._command("cancel now" if now else "cancel")

    def pause(self) -> None:
        """Submit nothing more until the job is resumed; accepted batches are collected."""
        self._command("pause")

    def resume(self) -> None:
        """Resume the paused job."""
        self._command("run")

    def retry(
        self, *, incomplete: bool = False, misfits: Any = False, **options: Unpack[JobOptions]
    ) -> Job:
        """Try the failed records again, as a new job; options replace the job's own.

        Args:
            incomplete: send instead the records whose answers are none: see `Record.flaw`.
            misfits: send instead those whose answers do not fit: True as for `results(check=True)`,
                or a type as for its `into`.
            options: as for `Client.submit`.

        Raises:
            NotFound: the job is not over, or none of its records can be tried again.
            UsageError: an option is unknown or has a wrong value.
        """
        from dropbatch.client.again import Wanted, retry, send_chosen

        if incomplete or misfits:
            return send_chosen(self, Wanted(incomplete=incomplete, misfits=misfits), options)[0]
        again, notes = retry(self, options)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return again

    def _command(self, word: Literal["run", "pause", "cancel", "cancel now"]) -> None:
        key = names.job_control(self.resolved().id)
        with aws.explained():
            self.stack.s3.put_object(Bucket=self.stack.bucket, Key=key, Body=word.encode())


def wait(
    jobs: Iterable[Job],
    *,
    timeout: float | None = None,
    check: bool = False,
    progress: bool = True,
    retry: int = 0,
    **chosen: Unpack[Chosen],
) -> Iterator[Job]:
    """Wait until jobs of one stack are over; yield each when it is, with `retry` when all are.

    Such as those of `Client.submit`, or `client.jobs(prefix="reviews/")`. The other arguments, and
    what is raised, are those of `Job.wait`.
    """
    for job, found in _each_over(list(jobs), timeout, chosen, progress=progress, retry=retry):
        _end_of(job, found, check=check)
        yield job


def _each_over(
    jobs: Sequence[Job], timeout: float | None, chosen: Chosen, *, progress: bool, retry: int
) -> Iterator[tuple[Job, dict[str, Any] | Error]]:
    from dropbatch.client.again import Again, Wanted
    from dropbatch.client.progress import shown_to_user
    from dropbatch.client.wait import each_over

    settle = Again(retry, Wanted(failed=True, **chosen)).settle if retry else None
    return each_over(jobs, shown_to_user() if progress else None, timeout, settle=settle)


def _end_of(job: Job, found: dict[str, Any] | Error, *, check: bool) -> str:
    if isinstance(found, Error):
        raise found
    state: str = found["state"]
    if check and state != names.JobState.COMPLETED:
        error = found["error"]
        why = f": {error['code']}: {error['message']}" if error else "."
        how = "failed" if state == names.JobState.FAILED else "was cancelled"
        raise JobFailed(f"Job {found['job_id']} {how}{why}", job, error)
    return state
