"""Waiting: for an upload's job, and for jobs to be over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dropbatch import names as keys
from dropbatch.errors import Error, Interrupted, NotFound
from dropbatch.names import FINAL_JOB_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.cli.progress import Progress
    from dropbatch.job import Job

MIN_READ_SECONDS, MAX_READ_SECONDS = 1.0, 10.0
"""Seconds between two reads of a job's status, at first and later."""
REDRAW_SECONDS = 1.0
REPORT_SECONDS = 3_600.0
JOB_SECONDS = 300.0
"""Seconds to wait for an upload's job: S3's events may take a minute, and the queue may be long."""


def created(job: Job) -> Job:
    """An uploaded job, once the stack has created it: with another id if another upload had this one.

    Raises:
        NotFound: there is no job after five minutes.
        Interrupted: the user interrupted it.
    """
    if job.uploaded is None:
        return job
    deadline = time.monotonic() + JOB_SECONDS
    pause = MIN_READ_SECONDS / 2
    try:
        while time.monotonic() < deadline:
            if found := find_created(job):
                return found
            time.sleep(pause)
            pause = min(pause * 1.3, MAX_READ_SECONDS)
    except KeyboardInterrupt:
        raise Interrupted(
            f"\nInterrupted. The file is uploaded and its job will run. Watch it with `dropbatch wait {job.id}`."
        ) from None
    raise NotFound(
        f"{job.path} has no job after {JOB_SECONDS / 60:.0f} minutes. `dropbatch doctor` looks for the cause.",
    )


def find_created(job: Job) -> Job | None:
    """The job that the stack has created for an upload; None if there is none yet."""
    for choice in range(keys.JOB_ID_CHOICES):
        candidate = job.uploaded.job(job.stack, choice) if job.uploaded else job
        if job.stack.read_json(f"{candidate.folder}status.json"):
            return candidate
        taken = job.stack.read_json(keys.job_record(candidate.id))
        if taken is None or taken["path"] == job.path:
            return None
    return None


def wait_until_over(jobs: Sequence[Job], progress: Progress | None = None) -> dict[str, dict[str, Any]]:
    """Show jobs until all are over.

    Returns:
        The manifest of each, by job id.
    """
    statuses: dict[str, dict[str, Any]] = {job.id: {"state": "splitting"} for job in jobs}
    manifests: dict[str, dict[str, Any]] = {}
    pause = MIN_READ_SECONDS
    while True:
        for job in jobs:
            if job.id in manifests:
                continue
            current = job.stack.read_json(f"{job.folder}status.json") or statuses[job.id]
            statuses[job.id] = current
            # The last status.json is written moments after the manifest.
            if current["state"] in FINAL_JOB_STATES | {"finalizing"} or current.get("fraction_done") == 1:
                manifest = job.stack.read_json(f"{job.folder}manifest.json")
                if manifest:
                    manifests[job.id] = manifest
                    statuses[job.id] = current | {
                        "state": manifest["state"],
                        "counts": manifest["counts"],
                        "fraction_done": 1.0,
                        "waiting_for": None,
                        "pending": None,
                    }
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


def wait_for_report(job: Job) -> dict[str, Any]:
    """Wait for the report of a validation and return it.

    Raises:
        Error: there is no report after an hour.
    """
    deadline = time.monotonic() + REPORT_SECONDS
    while time.monotonic() < deadline:
        if report := job.stack.read_json(f"{job.folder}report.json"):
            return report
        time.sleep(MIN_READ_SECONDS)
    raise Error(f"There is no report of {job.path} yet. `dropbatch doctor` looks for the cause.")
