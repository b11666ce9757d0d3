"""Watching jobs: which are over, and how far the others are.

Few jobs are read one after another. Of many, a listing a page tells which are over, not a call a
job: a job's results lie in a folder, whose `status.json` is there once the job exists, and its
`manifest.json` once it is over; both are seen in listings of the folders' common prefix. Where that
has more of other jobs than of these, the jobs are read one by one, some at a time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dropbatch.client.job_files import no_job
from dropbatch.client.transfer.objects import common_prefix, pages_of
from dropbatch.client.transfer.threads import at_once
from dropbatch.core.names import FINAL_JOB_STATES
from dropbatch.errors import ConnectionLost, Error, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dropbatch.client.job_files import JobFiles
    from dropbatch.client.stack import Stack

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

    def __init__(self, jobs: Sequence[JobFiles], seconds: float) -> None:
        """Begin.

        Args:
            jobs: that exist.
            seconds: after which a job whose files are missing is given up.
        """
        self.left = list(jobs)
        self._seconds = seconds
        self._gone_since: dict[str, float] = {}
        self.statuses: dict[str, dict[str, Any]] = {job.id: {"state": "splitting"} for job in jobs}

    def look(self) -> Iterator[tuple[JobFiles, dict[str, Any] | Error]]:
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


def _deleted(job: JobFiles) -> NotFound:
    return NotFound(
        f"The results of job {job.id} were deleted: nothing tells how it ended, or "
        "whether it is over."
    )


def connection_lost(error: ConnectionLost) -> dict[str, str]:
    """What a job waits for while this machine cannot reach AWS."""
    return {"code": "connection_lost", "message": f"{error} It is tried again."}


def _read(
    job: JobFiles, last: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None, bool]:
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

    def __init__(self, jobs: Sequence[JobFiles], seconds: float) -> None:
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

    def look(self) -> Iterator[tuple[JobFiles, dict[str, Any] | Error]]:
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

    def _ended(self, folders: Iterable[str]) -> Iterator[tuple[JobFiles, dict[str, Any] | Error]]:
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

    def _missing(self) -> Iterator[tuple[JobFiles, Error]]:
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


def _json(job: JobFiles, folder: str, name: str) -> dict[str, Any] | None:
    return job.stack.read_json(folder + name)
