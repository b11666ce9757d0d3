"""Waiting until jobs are over: one watcher for one job and for many.

Few are read one by one. Of many, a listing a page tells which have a manifest, not a call a job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeVar

from dropbatch.client.job import Job, no_job
from dropbatch.client.progress import Progress
from dropbatch.client.stack import common_prefix, pages_of
from dropbatch.client.threads import at_once
from dropbatch.core.names import FINAL_JOB_STATES, JobState
from dropbatch.errors import ConnectionLost, Error, Interrupted, NotFound, TimedOut

Found = dict[str, Any] | Error
"""The manifest of a job that is over, or why there is none."""
Out = TypeVar("Out")

FEW_JOBS = 8
"""Up to so many jobs are read and shown one by one."""
SHOWN_JOBS = 10
"""Of more, unfinished jobs whose progress is read."""
MIN_PAGES = 10
"""Pages of a listing that are always worth it."""
MIN_READ_SECONDS, MAX_READ_SECONDS = 1.0, 10.0
"""Seconds between two looks, at first and later."""
REDRAW_SECONDS = 1.0
GONE_SECONDS = 60.0
"""Seconds to wait for the files of a job that exists: a running job writes its status anew."""
JOB_SECONDS = 300.0
"""Seconds to wait for the job of an upload, since the last new job: the queue may be long."""
_ALMOST_OVER = FINAL_JOB_STATES | {"finalizing"}


def end_of(timeout: float | None) -> float:
    """When a time limit that begins now is over, by this module's clock; infinite without one."""
    return math.inf if timeout is None else time.monotonic() + timeout


def each_over(
    jobs: Sequence[Job],
    progress: Progress | None = None,
    timeout: float | None = None,
    go_on: str = "Wait for it, or cancel it.",
) -> Iterator[tuple[Job, Found]]:
    """Show jobs of one stack until all are over; yield each with its manifest, or why it has none.

    `go_on`: what to do after an interruption, for its message.
    """
    watch = Watch(jobs)
    total = Total(len(jobs)) if watch.is_many else None
    ends, pause = end_of(timeout), MIN_READ_SECONDS
    try:
        while watch.unfinished:
            waiting = None
            try:
                for job, found in watch.look():
                    if total:
                        total.add(found)
                    yield job, found
            except ConnectionLost as error:
                waiting = {"code": "connection_lost", "message": f"{error} It is tried again."}
            if progress:
                progress.show(watch.shown(waiting), total.status(waiting) if total else None)
            if not watch.unfinished:
                return
            if time.monotonic() >= ends:
                which = f"{len(watch.unfinished):,} of {len(jobs):,} jobs are"
                which = f"Job {jobs[0].id} is" if len(jobs) == 1 else which
                raise TimedOut(f"{which} not over after {timeout:g} seconds.")
            _sleep(min(pause, max(ends - time.monotonic(), 0.0)), progress)
            pause = min(pause * 1.1, MAX_READ_SECONDS)
    except KeyboardInterrupt:
        raise Interrupted(f"\nInterrupted. {_continue(jobs)} {go_on}".rstrip()) from None


class Watch:
    """Jobs of one stack until all are over.

    Attributes:
        unfinished: those that are not over, by the folders of their results.
        is_many: whether they are shown as a total, and some of them by path.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.unfinished = {job.folder: job for job in jobs}
        self._stack: Any = jobs[0].stack if jobs else None
        self.is_many = len(jobs) > FEW_JOBS
        self._lists = self.is_many
        self._statuses: dict[str, dict[str, Any]] = {}
        self._etags: dict[str, str] = {}
        self._seen = dict.fromkeys(self.unfinished, time.monotonic())
        self._exist = set[str]()
        self._broken: dict[str, Error] = {}
        self._grew = time.monotonic()
        if not self.is_many:
            first = {job.folder: "uploaded" if job.uploaded else "splitting" for job in jobs}
            self._statuses = {folder: {"state": state} for folder, state in first.items()}
        self._names = {job.folder: job.path if self.is_many else job.id for job in jobs}

    def shown(self, waiting: dict[str, str] | None) -> dict[str, dict[str, Any]]:
        """The statuses of the jobs that are shown, by name; `waiting` is what few wait for."""
        more = {"waiting_for": waiting} if waiting and not self.is_many else {}
        return {
            self._names[folder]: status | (more if folder in self.unfinished else {})
            for folder, status in self._statuses.items()
        }

    def look(self) -> Iterator[tuple[Job, Found]]:
        """Look once; yield each job that is over now with its manifest, or why it has none."""
        exist, over = self._listed() if self._lists else self._read()
        if exist - self._exist:
            self._grew = time.monotonic()
        self._exist |= exist
        self._seen |= dict.fromkeys(exist, time.monotonic())
        self.unfinished |= {
            folder: replace(self.unfinished[folder], uploaded=None) for folder in exist
        }
        yield from self._ended(over)
        yield from self._missing(exist)

    def _read(self) -> tuple[set[str], set[str]]:
        """Folders with a status, and those that may have a manifest. Reads each job's status."""
        exist, over = set[str](), set[str]()
        for folder, status in self._read_files("status.json", self.unfinished):
            if status is not None:
                exist.add(folder)
            self._note(folder, status)
            # The last status.json is written moments after the manifest.
            if not isinstance(status, dict) or _may_be_over(status):
                over.add(folder)
        if self.is_many:
            self._show_only(sorted(exist, key=lambda one: self.unfinished[one].id)[:SHOWN_JOBS])
        return exist, over

    def _listed(self) -> tuple[set[str], set[str]]:
        """The same by a listing; reads the progress of some."""
        over, etags, pages = set[str](), dict[str, str](), 0
        first, last = min(self.unfinished), max(self.unfinished)
        prefix = common_prefix(first, last).rpartition("/")[0] + "/"
        for page in pages_of(self._stack, prefix, first):
            pages += 1
            for entry in page:
                place, _, name = entry["Key"].rpartition("/")
                folder = f"{place}/"
                if folder in self.unfinished and name == "manifest.json":
                    over.add(folder)
                elif folder in self.unfinished and name == "status.json":
                    etags[folder] = entry["ETag"]
            if page and page[-1]["Key"] > f"{last}\uffff":
                break
        self._lists = pages <= max(MIN_PAGES, len(self.unfinished))
        unfinished = sorted(etags.keys() - over, key=lambda one: self.unfinished[one].id)
        self._show_only(unfinished[:SHOWN_JOBS])
        changed = [one for one in unfinished[:SHOWN_JOBS] if self._etags.get(one) != etags[one]]
        for folder, status in self._read_files("status.json", changed):
            self._note(folder, status)
            self._etags[folder] = etags[folder]
        # A job in a final state has a manifest, unless it was deleted.
        final = {one for one in unfinished if self._state_of(one) in FINAL_JOB_STATES}
        return over | etags.keys(), over | final | self._broken.keys()

    def _note(self, folder: str, status: Found | None) -> None:
        if isinstance(status, dict):
            self._statuses[folder] = status
        elif status:
            self._broken[folder] = status

    def _show_only(self, folders: Iterable[str]) -> None:
        kept = set(folders)
        self._statuses = {one: status for one, status in self._statuses.items() if one in kept}

    def _state_of(self, folder: str) -> str:
        return str(self._statuses.get(folder, {}).get("state"))

    def _read_files(self, name: str, folders: Iterable[str]) -> Iterator[tuple[str, Found | None]]:
        def read(folder: str) -> Found | None:
            return _tried(lambda: self._stack.read_json(folder + name))

        return at_once(read, list(folders))

    def _ended(self, folders: set[str]) -> Iterator[tuple[Job, Found]]:
        for folder, found in self._read_files("manifest.json", folders):
            if found is not None:
                yield self._over(folder, found)
            elif error := self._broken.pop(folder, None):
                yield self._over(folder, error)
            elif self._state_of(folder) in FINAL_JOB_STATES:
                yield self._over(folder, _deleted(self.unfinished[folder]))

    def _over(self, folder: str, found: Found) -> tuple[Job, Found]:
        if self.is_many:
            self._statuses.pop(folder, None)
        elif isinstance(found, dict):
            over = {"state": found["state"], "counts": found["counts"], "fraction_done": 1.0}
            self._statuses[folder] |= over | {"waiting_for": None, "pending": None}
        return self.unfinished.pop(folder), found

    def _missing(self, exist: set[str]) -> Iterator[tuple[Job, Error]]:
        """Look for jobs without files: another upload may have the id, or they are deleted."""
        now = time.monotonic()
        absent = [
            folder
            for folder, job in self.unfinished.items()
            if folder not in exist and (not self.is_many or now > self._patience(folder, job))
        ]
        for folder, found in at_once(lambda one: self._resolved(one, now), absent):
            if isinstance(found, Error):
                self._statuses.pop(folder, None)
                yield self.unfinished.pop(folder), found
            elif found and found.folder != folder:
                self._replace(folder, found)

    def _patience(self, folder: str, job: Job) -> float:
        return self._grew + JOB_SECONDS if job.uploaded else self._seen[folder] + GONE_SECONDS

    def _resolved(self, folder: str, now: float) -> Job | Error | None:
        """The job if it exists or may come, or why it is given up."""
        job = self.unfinished[folder]
        is_late = now >= self._patience(folder, job)
        if job.uploaded is None:
            return _deleted(job) if is_late else None
        found = _tried(job.resolved)
        if isinstance(found, Error) or found.uploaded is None:
            return found
        notice = _tried(found.notice)
        if isinstance(notice, Error):
            return notice
        if notice and (notice["error"] or is_late):
            return no_job(job.path, notice)
        if notice and not self.is_many:
            self._statuses[folder] = notice
        if not is_late:
            return found
        return NotFound(
            f"{job.path} has no job after {JOB_SECONDS:.0f} seconds. `dropbatch doctor` looks for "
            "the cause."
        )

    def _replace(self, folder: str, job: Job) -> None:
        del self.unfinished[folder]
        self.unfinished[job.folder] = job
        self._names[job.folder] = self._names[folder] if self.is_many else job.id
        self._seen[job.folder] = self._grew = time.monotonic()
        if status := self._statuses.pop(folder, None):
            self._statuses[job.folder] = status


def _tried(read: Callable[[], Out]) -> Out | Error:
    """What a read returns, or its error; a lost connection counts for all jobs."""
    try:
        return read()
    except ConnectionLost:
        raise
    except Error as error:
        return error


def _may_be_over(status: dict[str, Any]) -> bool:
    return status["state"] in _ALMOST_OVER or status.get("fraction_done") == 1


def _deleted(job: Job) -> NotFound:
    return NotFound(
        f"The results of job {job.id} were deleted: nothing tells how it ended, or whether it is "
        "over."
    )


@dataclass
class Total:
    """What became of many jobs."""

    jobs: int
    over: int = 0
    failed: int = 0
    records: int = 0
    failed_records: int = 0
    cost: Decimal = Decimal(0)
    is_estimated: bool = False
    unpriced: int = 0

    def add(self, found: Found) -> None:
        """Add a job that is over, or does not exist."""
        self.over += 1
        if isinstance(found, Error):
            self.failed += 1
            return
        self.failed += found["state"] != JobState.COMPLETED
        self.records += found["counts"]["total"] or 0
        self.failed_records += found["counts"]["failed"] or 0
        if cost := found.get("cost"):
            self.cost += Decimal(cost["amount"])
            self.is_estimated |= cost["estimated"]
        else:
            self.unpriced += 1

    def status(self, waiting: dict[str, str] | None) -> dict[str, Any]:
        """The same as a job's status."""
        failed = f", {self.failed:,} failed" if self.failed else ""
        answered = self.records - self.failed_records
        return {
            "state": f"{self.over:,} over{failed}",
            "fraction_done": self.over / self.jobs,
            "counts": {"succeeded": answered, "failed": self.failed_records},
            "waiting_for": waiting,
        }


def _continue(jobs: Sequence[Job]) -> str:
    if len(jobs) > FEW_JOBS:
        return f"The {len(jobs):,} jobs continue."
    ids = " ".join(job.id for job in jobs)
    return f"Job {ids} continues." if len(jobs) == 1 else f"Jobs {ids} continue."


def _sleep(seconds: float, progress: Progress | None) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, REDRAW_SECONDS))
        if progress:
            progress.redraw()
