"""Waiting: for an upload's job, and for jobs to be over; what a job then is must not be here."""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dropbatch.client.job import Job, no_job
from dropbatch.client.stack import common_prefix, pages_of
from dropbatch.client.threads import at_once
from dropbatch.core.names import FINAL_JOB_STATES, JobState
from dropbatch.errors import ConnectionLost, Error, Interrupted, NotFound, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dropbatch.client.progress import Progress
    from dropbatch.client.stack import Stack


JobT = TypeVar("JobT", bound=Job)

FEW_JOBS = 8
"""Up to so many jobs are read and shown one by one."""

MIN_READ_SECONDS, MAX_READ_SECONDS = 1.0, 10.0
"""Seconds between two reads of a job's status, at first and later."""
REDRAW_SECONDS = 1.0
GONE_SECONDS = 60.0
"""Seconds to wait for the files of a job that exists: a running job writes its status anew."""
JOB_SECONDS = 300.0
"""Seconds to wait for the job of what was just uploaded.

S3's events may take a minute, and the queue may be long.
"""


def end_of(timeout: float | None) -> float:
    """When a time limit that begins now is over, by this module's clock; infinite without one."""
    return math.inf if timeout is None else time.monotonic() + timeout


def wait_until_created(job: Job, seconds: float = JOB_SECONDS, *, ends: float = math.inf) -> None:
    """Wait until the stack has created an uploaded job.

    Args:
        job: of the upload.
        seconds: after which it is said to have none.
        ends: when to give up, as `end_of` says; that says nothing of the job.

    Raises:
        NotFound: there is no job after these seconds, or the stack has given the upload up.
        TimedOut: there is none yet.
        Interrupted: the user interrupted it.
    """
    no_job_at = time.monotonic() + seconds
    pause, expected = MIN_READ_SECONDS / 2, job.id
    notice: dict[str, Any] | None = None
    try:
        while True:
            with suppress(ConnectionLost):
                if job.exists():
                    break
                notice = job.notice()
            if (left := min(no_job_at, ends) - time.monotonic()) > 0 and not (
                notice and notice["error"]
            ):
                time.sleep(min(pause, left))
                pause = min(pause * 1.3, MAX_READ_SECONDS)
                continue
            if notice:
                raise no_job(job.path, notice)
            if ends < no_job_at:
                raise TimedOut(f"{job.path} has no job yet.")
            raise NotFound(
                f"{job.path} has no job after {seconds:.0f} seconds. `dropbatch doctor` "
                "looks for the cause."
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"\nInterrupted. The file is uploaded and its job {job.id} will run. Wait for "
            "it with `job.wait()`."
        ) from None
    if job.id != expected:
        sys.stderr.write(f"Another upload has the job id {expected}; this job is {job.id}.\n")


def each_over(
    jobs: Sequence[JobT],
    progress: Progress | None = None,
    timeout: float | None = None,
    go_on: str = "",
    ends: float | None = None,
) -> Iterator[tuple[JobT, dict[str, Any] | Error]]:
    """Show jobs until all are over; yield each with its manifest when it is.

    Args:
        jobs: if they are few, they must exist. Of many, one that does not exist five minutes after
            the last new one is yielded with that error. So is one whose files are deleted, or that
            AWS denies.
        progress: where they are shown.
        timeout: seconds after which to give up.
        ends: when that is, if they have begun before, as `end_of` says.
        go_on: what to do after an interruption, for its message; empty for the usual.

    Raises:
        TimedOut: some are not over after these seconds.
        Interrupted: the user interrupted it.
    """
    watch: Any = (
        FewJobs(jobs, GONE_SECONDS) if len(jobs) <= FEW_JOBS else ManyJobs(jobs, JOB_SECONDS)
    )
    total = None if len(jobs) <= FEW_JOBS else Total(len(jobs))
    ends = end_of(timeout) if ends is None else ends
    pause = MIN_READ_SECONDS
    try:
        while True:
            waiting = None
            try:
                for job, found in watch.look():
                    if total:
                        total.add(found)
                    yield job, found
            except ConnectionLost as error:
                waiting = connection_lost(error)
            if progress:
                progress.show(watch.statuses, total.status(waiting) if total else None)
            if not watch.left:
                return
            if time.monotonic() >= ends:
                raise TimedOut(
                    f"{_not_over(len(jobs), len(watch.left), jobs[0].id)} after "
                    f"{timeout:g} seconds."
                )
            _sleep(min(pause, max(ends - time.monotonic(), 0.0)), progress)
            pause = min(pause * 1.1, MAX_READ_SECONDS)
    except KeyboardInterrupt:
        raise Interrupted(
            f"\nInterrupted. {_continue(jobs)} {go_on or _go_on(len(jobs))}"
        ) from None


@dataclass
class Total:
    """What became of many jobs."""

    jobs: int
    over: int = 0
    failed: int = 0
    records: int = 0
    failed_records: int = 0

    def add(self, found: dict[str, Any] | Error) -> None:
        """Add a job that is over, or does not exist."""
        self.over += 1
        if isinstance(found, Error):
            self.failed += 1
            return
        self.failed += found["state"] != JobState.COMPLETED
        self.records += found["counts"]["total"] or 0
        self.failed_records += found["counts"]["failed"] or 0

    def status(self, waiting: dict[str, str] | None) -> dict[str, Any]:
        """The same, as `dropbatch.client.progress` shows a job's status."""
        return {
            "state": f"{self.over:,} over" + (f", {self.failed:,} failed" if self.failed else ""),
            "fraction_done": self.over / self.jobs,
            "counts": {
                "succeeded": self.records - self.failed_records,
                "failed": self.failed_records,
            },
            "waiting_for": waiting,
        }


def _not_over(jobs: int, left: int, only: str) -> str:
    return f"Job {only} is not over" if jobs == 1 else f"{left:,} of {jobs:,} jobs are not over"


def _continue(jobs: Sequence[Job]) -> str:
    if len(jobs) > FEW_JOBS:
        return f"The {len(jobs):,} jobs continue."
    names = " ".join(job.id for job in jobs)
    return f"Job {names} continues." if len(jobs) == 1 else f"Jobs {names} continue."


def _go_on(jobs: int) -> str:
    them = "it" if jobs == 1 else "them"
    return f"Wait for {them} with `job.wait()`, stop {them} with `job.cancel()`."


def _sleep(seconds: float, progress: Progress | None) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, REDRAW_SECONDS))
        if progress:
            progress.redraw()


READS_AT_ONCE = 16
SHOWN_JOBS = 10
"""Unfinished jobs whose progress is read."""
MIN_PAGES = 10
"""Pages of a listing that are always worth it."""


class FewJobs:
    """Jobs that exist, read one after another until all are over.

    Attributes:
        left: those that are not over.
        statuses: of all, by job id.
    """

    def __init__(self, jobs: Sequence[Job], seconds: float) -> None:
        """Begin.

        Args:
            jobs: that exist.
            seconds: after which a job whose files are missing is given up.
        """
        self.left = list(jobs)
        self._seconds = seconds
        self._gone_since: dict[str, float] = {}
        self.statuses: dict[str, dict[str, Any]] = {job.id: {"state": "splitting"} for job in jobs}

    def look(self) -> Iterator[tuple[Job, dict[str, Any] | Error]]:
        """Look once; yield each job that is over now with its manifest.

        Or with the error that its files are gone.
        """
        for job in list(self.left):
            try:
                self.statuses[job.id], manifest, is_gone = _read(job, self.statuses[job.id])
            except ConnectionLost as error:
                self.statuses[job.id] = self.statuses[job.id] | {
                    "waiting_for": connection_lost(error)
                }
                continue
            except Error as error:
                self.left.remove(job)
                yield job, error
                continue
            if manifest:
                self.left.remove(job)
                yield job, manifest
            elif not is_gone:
                self._gone_since.pop(job.id, None)
            elif (
                time.monotonic() - self._gone_since.setdefault(job.id, time.monotonic())
                >= self._seconds
            ):
                self.left.remove(job)
                yield job, _deleted(job)


def _deleted(job: Job) -> NotFound:
    return NotFound(
        f"The results of job {job.id} were deleted: nothing tells how it ended, or "
        "whether it is over."
    )


def connection_lost(error: ConnectionLost) -> dict[str, str]:
    """What a job waits for while this machine cannot reach AWS."""
    return {"code": "connection_lost", "message": f"{error} It is tried again."}


def _read(job: Job, last: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None, bool]:
    """A job's status, or the last one; its manifest once it is over.

    And whether one that must be there is missing.
    """
    found = job.stack.read_json(f"{job.folder}status.json")
    current = found or last
    # The last status.json is written moments after the manifest.
    if (
        found
        and found["state"] not in FINAL_JOB_STATES | {"finalizing"}
        and found.get("fraction_done") != 1
    ):
        return current, None, False
    manifest = job.stack.read_json(f"{job.folder}manifest.json")
    if not manifest:
        return current, None, not found or found["state"] in FINAL_JOB_STATES
    over = {"state": manifest["state"], "counts": manifest["counts"], "fraction_done": 1.0}
    return current | over | {"waiting_for": None, "pending": None}, manifest, False


class ManyJobs:
    """Jobs of one stack, whether they exist yet or not, until all are over.

    Attributes:
        left: those that are not over, by their folders.
        statuses: of those whose progress is shown, by path.
    """

    def __init__(self, jobs: Sequence[Job], seconds: float) -> None:
        """Begin.

        Args:
            jobs: of one stack.
            seconds: after which without any new job those that do not exist are looked for one by
                one, and given up.
        """
        self.left = {job.folder: job for job in jobs}
        self.statuses: dict[str, dict[str, Any]] = {}
        self._seconds, self._grew = seconds, time.monotonic()
        self._exist: set[str] = set()
        self._final: set[str] = set()
        self._read: dict[str, str] = {}
        self._lists = True

    def look(self) -> Iterator[tuple[Job, dict[str, Any] | Error]]:
        """Look once; yield each job that is over now with its manifest.

        Or with the error that it does not exist.

        Raises:
            ConnectionLost: nothing is lost; look again later.
        """
        if not self.left:
            return
        stack = next(iter(self.left.values())).stack
        over = self._listed(stack) if self._lists else list(self.left)
        yield from self._ended(self._final.union(over))
        if time.monotonic() - self._grew > self._seconds:
            yield from self._missing()

    def _listed(self, stack: Stack) -> list[str]:
        """Folders with a manifest; notes which jobs exist, and reads the progress of some."""
        first, last = min(self.left), max(self.left)
        prefix = common_prefix(first, last).rpartition("/")[0] + "/"
        over, changed, pages = list[str](), dict[str, str](), 0
        for page in pages_of(stack, prefix, first):
            pages += 1
            for entry in page:
                folder, _, name = entry["Key"].rpartition("/")
                folder += "/"
                if folder not in self.left:
                    continue
                if name == "manifest.json":
                    over.append(folder)
                elif name == "status.json":
                    changed[folder] = entry["ETag"]
            if page and page[-1]["Key"] > f"{last}\uffff":
                break
        self._lists = pages <= max(MIN_PAGES, len(self.left))
        if changed.keys() - self._exist:
            self._grew = time.monotonic()
        is_over = set(over)
        self._exist = is_over.union(changed)
        self._look_at({folder: etag for folder, etag in changed.items() if folder not in is_over})
        return over

    def _look_at(self, changed: dict[str, str]) -> None:
        """Read the status of the first jobs that are not over, of each whose status has changed."""
        shown = sorted(changed, key=lambda folder: self.left[folder].id)[:SHOWN_JOBS]
        self.statuses = {
            path: self.statuses[path]
            for one in shown
            if (path := self.left[one].path) in self.statuses
        }
        new = [folder for folder in shown if self._read.get(folder) != changed[folder]]

        def read(folder: str) -> dict[str, Any] | None:
            try:
                return _json(self.left[folder], folder, "status.json")
            except ConnectionLost:
                raise
            except Error:  # It is only shown; the manifest tells how the job ended.
                return None

        for folder, status in at_once(read, new, READS_AT_ONCE):
            if status:
                self._read[folder] = changed[folder]
                self.statuses[self.left[folder].path] = status
                self._note_final(folder, status)

    def _note_final(self, folder: str, status: dict[str, Any]) -> None:
        """Note a job whose manifest is there, unless it was deleted.

        The last status.json is written after it.
        """
        if status["state"] in FINAL_JOB_STATES:
            self._final.add(folder)

    def _ended(self, folders: Iterable[str]) -> Iterator[tuple[Job, dict[str, Any] | Error]]:
        jobs = {folder: self.left[folder] for folder in folders}

        def read(folder: str) -> dict[str, Any] | Error | None:
            try:
                return _json(jobs[folder], folder, "manifest.json")
            except ConnectionLost:
                raise
            except Error as error:
                return error

        for folder, manifest in at_once(read, jobs, READS_AT_ONCE):
            if manifest:
                self._read.pop(folder, None)
            elif folder not in self._final:
                continue
            self._final.discard(folder)
            self.statuses.pop(jobs[folder].path, None)
            yield self.left.pop(folder), manifest or _deleted(jobs[folder])

    def _missing(self) -> Iterator[tuple[Job, Error]]:
        """Look for jobs one by one: another upload may have a job's id, so that it got its own.

        Or it was deleted.
        """
        absent = {folder: job for folder, job in self.left.items() if folder not in self._exist}

        def status_of(folder: str) -> dict[str, Any] | Error | None:
            job = absent[folder]
            try:
                if job.exists():
                    return _json(job, job.folder, "status.json")
                return no_job(job.path, notice) if (notice := job.notice()) else None
            except ConnectionLost:
                raise
            except Error as error:
                return error

        for folder, status in at_once(status_of, absent, READS_AT_ONCE):
            job = self.left.pop(folder)
            if isinstance(status, Error):
                yield job, status
            elif status:
                self.left[job.folder] = job
                self._exist.add(job.folder)
                self._note_final(job.folder, status)
            elif job.uploaded:
                why = (
                    f"{job.path} has no job after {self._seconds:.0f} seconds. `dropbatch "
                    "doctor` looks for the cause."
                )
                yield job, NotFound(why)
            else:
                yield job, _deleted(job)
        if not self._lists:  # No listing tells which were deleted since.
            self._exist.clear()
            self._grew = time.monotonic()


def _json(job: Job, folder: str, name: str) -> dict[str, Any] | None:
    return job.stack.read_json(folder + name)
