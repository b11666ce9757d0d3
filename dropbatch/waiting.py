"""Waiting: for an upload's job, and for jobs to be over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dropbatch.errors import Interrupted, NotFound
from dropbatch.jobs import job_of_upload
from dropbatch.names import FINAL_JOB_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.cli.progress import Progress
    from dropbatch.job import Job
    from dropbatch.stack import Stack
    from dropbatch.uploads import Uploaded

MIN_READ_SECONDS, MAX_READ_SECONDS = 1.0, 10.0
"""Seconds between two reads of a job's status, at first and later."""
REDRAW_SECONDS = 1.0
JOB_SECONDS = 300.0
"""Seconds to wait for an upload's job: S3's events may take a minute, and the queue may be long."""


def wait_for_job(stack: Stack, uploaded: Uploaded) -> Job:
    """Wait for the job of an upload and return it.

    Raises:
        Error: there is no job after five minutes, or the user interrupted it.
    """
    deadline = time.monotonic() + JOB_SECONDS
    pause = MIN_READ_SECONDS / 2
    try:
        while time.monotonic() < deadline:
            if job := job_of_upload(stack, uploaded.path, uploaded.version, uploaded.etag):
                return job
            time.sleep(pause)
            pause = min(pause * 1.3, MAX_READ_SECONDS)
    except KeyboardInterrupt:
        raise Interrupted(
            "\nInterrupted. The file is uploaded and its job will run. Watch it with "
            f"`dropbatch wait {uploaded.path}`.",
        ) from None
    raise NotFound(
        f"{uploaded.path} has no job after {JOB_SECONDS / 60:.0f} minutes. `dropbatch doctor` looks for the cause.",
    )


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
