"""Waiting: for an upload's job, and for jobs to be over; what a job then is must not be here."""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dropbatch.client.job_files import JobFiles, no_job
from dropbatch.client.watch.watching import FewJobs, ManyJobs, connection_lost
from dropbatch.core.names import JobState
from dropbatch.errors import ConnectionLost, Error, Interrupted, NotFound, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dropbatch.client.progress import Progress

JobT = TypeVar("JobT", bound=JobFiles)

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


def wait_until_created(
    job: JobFiles, seconds: float = JOB_SECONDS, *, ends: float = math.inf
) -> None:
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


def _continue(jobs: Sequence[JobFiles]) -> str:
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
