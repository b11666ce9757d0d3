"""Watching jobs: which are over, and how far the others are.

Few jobs are read one after another. Of many, a listing a page tells which are over, not a call a job: a job's results
lie in a folder, whose `status.json` is there once the job exists, and its `manifest.json` once it is over; both are
seen in listings of the folders' common prefix. Where that has more of other jobs than of these, the jobs are read one
by one, some at a time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dropbatch.client.transfer.objects import common_prefix, pages_of
from dropbatch.client.transfer.threads import at_once
from dropbatch.core.keys import FINAL_JOB_STATES
from dropbatch.errors import ConnectionLost, NotFound

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

    def __init__(self, jobs: Sequence[JobFiles]) -> None:
        """Begin."""
        self.left = list(jobs)
        self.statuses: dict[str, dict[str, Any]] = {job.id: {"state": "splitting"} for job in jobs}

    def look(self) -> Iterator[tuple[JobFiles, dict[str, Any]]]:
        """Look once; yield each job that is over now with its manifest."""
        for job in list(self.left):
            try:
                self.statuses[job.id], manifest = _read(job, self.statuses[job.id])
            except ConnectionLost as error:
                self.statuses[job.id] = self.statuses[job.id] | {"waiting_for": connection_lost(error)}
                continue
            if manifest:
                self.left.remove(job)
                yield job, manifest


def connection_lost(error: ConnectionLost) -> dict[str, str]:
    """What a job waits for while this machine cannot reach AWS."""
    return {"code": "connection_lost", "message": f"{error} It is tried again."}


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
            seconds: after which without any new job those that do not exist are looked for one by one, and given up.
        """
        self.left = {job.folder: job for job in jobs}
        self.statuses: dict[str, dict[str, Any]] = {}
        self._seconds, self._grew = seconds, time.monotonic()
        self._exist: set[str] = set()
        self._read: dict[str, str] = {}
        self._lists = True

    def look(self) -> Iterator[tuple[JobFiles, dict[str, Any] | NotFound]]:
        """Look once; yield each job that is over now with its manifest, or with the error that it does not exist.

        Raises:
            ConnectionLost: nothing is lost; look again later.
        """
        if not self.left:
            return
        stack = next(iter(self.left.values())).stack
        over = self._listed(stack) if self._lists else list(self.left)
        yield from self._ended(over)
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
            self._exist |= changed.keys()
            self._grew = time.monotonic()
        is_over = set(over)
        self._look_at({folder: etag for folder, etag in changed.items() if folder not in is_over})
        return over

    def _look_at(self, changed: dict[str, str]) -> None:
        """Read the status of the first jobs that are not over, of each whose status has changed."""
        shown = sorted(changed, key=lambda folder: self.left[folder].id)[:SHOWN_JOBS]
        self.statuses = {path: self.statuses[path] for one in shown if (path := self.left[one].path) in self.statuses}
        new = [folder for folder in shown if self._read.get(folder) != changed[folder]]
        for folder, status in at_once(lambda one: _json(self.left[one], one, "status.json"), new, READS_AT_ONCE):
            if status:
                self._read[folder] = changed[folder]
                self.statuses[self.left[folder].path] = status

    def _ended(self, folders: Iterable[str]) -> Iterator[tuple[JobFiles, dict[str, Any]]]:
        jobs = {folder: self.left[folder] for folder in folders}
        reads = at_once(lambda one: _json(jobs[one], one, "manifest.json"), jobs, READS_AT_ONCE)
        for folder, manifest in reads:
            if manifest:
                self._exist.add(folder)
                self._read.pop(folder, None)
                self.statuses.pop(jobs[folder].path, None)
                yield self.left.pop(folder), manifest

    def _missing(self) -> Iterator[tuple[JobFiles, NotFound]]:
        """Look for the jobs of uploads one by one: another upload may have a job's id, so that it got its own."""
        absent = {folder: job for folder, job in self.left.items() if folder not in self._exist}
        for folder, exists in at_once(lambda one: absent[one].exists(), absent, READS_AT_ONCE):
            job = self.left.pop(folder)
            if exists and (job.folder != folder or job.stack.ask("head_object", f"{folder}status.json")):
                self.left[job.folder] = job
                self._exist.add(job.folder)
            else:
                why = (
                    f"{job.path} has no job after {self._seconds:.0f} seconds. `dropbatch doctor` looks for the cause."
                )
                yield job, NotFound(why)


def _json(job: JobFiles, folder: str, name: str) -> dict[str, Any] | None:
    return job.stack.read_json(folder + name)
