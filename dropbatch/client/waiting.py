"""Waiting: for an upload's job, and for jobs to be over."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dropbatch.core.keys import FINAL_JOB_STATES
from dropbatch.errors import ConnectionLost, Error, Interrupted, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.client.job_files import JobFiles
    from dropbatch.client.progress import Progress

MIN_READ_SECONDS, MAX_READ_SECONDS = 1.0, 10.0
"""Seconds between two reads of a job's status, at first and later."""
REDRAW_SECONDS = 1.0
REPORT_SECONDS = 3_600.0
JOB_SECONDS = 300.0
"""Seconds to wait for the job of what was just uploaded: S3's events may take a minute, and the queue may be long."""


def wait_until_created(job: JobFiles, seconds: float = JOB_SECONDS) -> None:
    """Wait until the stack has created an uploaded job.

    Raises:
        NotFound: there is no job after these seconds, or the stack has given the upload up.
        Interrupted: the user interrupted it.
    """
    deadline = time.monotonic() + seconds
    pause, expected = MIN_READ_SECONDS / 2, job.id
    notice: dict[str, Any] | None = None
    try:
        while time.monotonic() < deadline and not (notice and notice["error"]):
            with suppress(ConnectionLost):
                if job.exists():
                    break
                notice = job.notice()
            time.sleep(pause)
            pause = min(pause * 1.3, MAX_READ_SECONDS)
        else:
            if notice:
                why = notice["error"] or notice["waiting_for"]
                raise NotFound(f"{job.path} has no job: {why['code']}: {why['message']}")
            raise NotFound(
                f"{job.path} has no job after {seconds:.0f} seconds. `dropbatch doctor` looks for the cause."
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"\nInterrupted. The file is uploaded and its job {job.id} will run. Wait for it with `job.wait()`."
        ) from None
    if job.id != expected:
        sys.stderr.write(f"Another upload has the job id {expected}; this job is {job.id}.\n")


def wait_until_over(jobs: Sequence[JobFiles], progress: Progress | None = None) -> dict[str, dict[str, Any]]:
    """Show jobs until all are over.

    Returns:
        The manifest of each, by job id.

    Raises:
        Interrupted: the user interrupted it.
    """
    try:
        return _wait_until_over(jobs, progress)
    except KeyboardInterrupt:
        jobs_continue, them = ("Job {} continues", "it") if len(jobs) == 1 else ("Jobs {} continue", "them")
        raise Interrupted(
            f"\nInterrupted. {jobs_continue.format(' '.join(job.id for job in jobs))}. Wait for {them} with "
            f"`job.wait()`, stop {them} with `job.cancel()`."
        ) from None


def _wait_until_over(jobs: Sequence[JobFiles], progress: Progress | None) -> dict[str, dict[str, Any]]:
    statuses: dict[str, dict[str, Any]] = {job.id: {"state": "splitting"} for job in jobs}
    manifests: dict[str, dict[str, Any]] = {}
    pause = MIN_READ_SECONDS
    while True:
        for job in jobs:
            if job.id in manifests:
                continue
            try:
                statuses[job.id], manifest = _read(job, statuses[job.id])
            except ConnectionLost as error:
                lost = {"code": "connection_lost", "message": f"{error} It is tried again."}
                statuses[job.id] = statuses[job.id] | {"waiting_for": lost}
                continue
            if manifest:
                manifests[job.id] = manifest
        if progress:
            progress.show(statuses)
        if len(manifests) == len(jobs):
            return manifests
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, REDRAW_SECONDS))
            if progress:
                progress.redraw()
        pause = min(pause * 1.1, MAX_READ_SECONDS)


def _read(job: JobFiles, last: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A job's status, or the last one, and its manifest once it is over."""
    current = job.stack.read_json(f"{job.folder}status.json") or last
    # The last status.json is written moments after the manifest.
    if current["state"] not in FINAL_JOB_STATES | {"finalizing"} and current.get("fraction_done") != 1:
        return current, None
    manifest = job.stack.read_json(f"{job.folder}manifest.json")
    if not manifest:
        return current, None
    over = {"state": manifest["state"], "counts": manifest["counts"], "fraction_done": 1.0}
    return current | over | {"waiting_for": None, "pending": None}, manifest


def wait_for_report(job: JobFiles) -> dict[str, Any]:
    """Wait for the report of a validation and return it.

    Raises:
        Error: there is no report after an hour.
    """
    deadline = time.monotonic() + REPORT_SECONDS
    while time.monotonic() < deadline:
        with suppress(ConnectionLost):
            if report := job.stack.read_json(f"{job.folder}report.json"):
                return report
        time.sleep(MIN_READ_SECONDS)
    raise Error(f"There is no report of {job.path} yet. `dropbatch doctor` looks for the cause.")
