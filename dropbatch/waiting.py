"""Waiting: for an upload's job, and for jobs to be over."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dropbatch.errors import ConnectionLost, Error, Interrupted, NotFound
from dropbatch.jobs import find_job
from dropbatch.rules import names as keys
from dropbatch.rules.names import FINAL_JOB_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.job import Job
    from dropbatch.progress import Progress
    from dropbatch.stack import Stack

MIN_READ_SECONDS, MAX_READ_SECONDS = 1.0, 10.0
"""Seconds between two reads of a job's status, at first and later."""
REDRAW_SECONDS = 1.0
REPORT_SECONDS = 3_600.0
JOB_SECONDS = 300.0
"""Seconds to wait for the job of what was just uploaded: S3's events may take a minute, and the queue may be long."""
NAMED_SECONDS = 60.0
"""Seconds to wait for a job that is only named: for that of an upload, or for one whose id is this young."""


def named(stack: Stack, name: str) -> Job:
    """The job with a name, once the stack has created it.

    Raises:
        NotFound: there is no such upload; or no job after a minute, or a minute after the time in the id.
    """
    while True:
        try:
            return created(find_job(stack, name), NAMED_SECONDS)
        except NotFound:
            times = [] if name.startswith(keys.INBOX) else keys.JOB_ID.findall(name)
            if not times or time.time() > keys.job_time(times[-1]).timestamp() + NAMED_SECONDS:
                raise
        time.sleep(MIN_READ_SECONDS)


def created(job: Job, seconds: float = JOB_SECONDS) -> Job:
    """An uploaded job, once the stack has created it: with another id if another upload had this one.

    Raises:
        NotFound: there is no job after these seconds.
        Interrupted: the user interrupted it.
    """
    if job.uploaded is None:
        return job
    deadline = time.monotonic() + seconds
    pause = MIN_READ_SECONDS / 2
    try:
        while time.monotonic() < deadline:
            with suppress(ConnectionLost):
                if found := find_created(job):
                    if found.id != job.id:
                        sys.stderr.write(f"Another upload has the job id {job.id}; this job is {found.id}.\n")
                    return found
            time.sleep(pause)
            pause = min(pause * 1.3, MAX_READ_SECONDS)
    except KeyboardInterrupt:
        raise Interrupted(
            f"\nInterrupted. The file is uploaded and its job will run. Watch it with `dropbatch wait {job.id}`."
        ) from None
    raise NotFound(
        f"{job.path} has no job after {seconds:.0f} seconds. `dropbatch doctor` looks for the cause.",
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


def _read(job: Job, last: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
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


def wait_for_report(job: Job) -> dict[str, Any]:
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
