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

from dropbatch.client.find import find_job, may_come
from dropbatch.client.job import Job, no_job
from dropbatch.client.progress import Progress
from dropbatch.client.stack import Stack, common_prefix, pages_of
from dropbatch.client.threads import at_once
from dropbatch.core.names import FINAL_JOB_STATES, JobState
from dropbatch.errors import ConnectionLost, Error, Interrupted, NotFound, TimedOut

Found = dict[str, Any] | Error
"""The manifest of a job that is over, or why there is none."""
Out = TypeVar("Out")
Settle = Callable[[list[tuple[Job, Found]], Callable[[list[Job]], Any]], None]
"""Sends records of finished jobs again, and waits for them by a function: `Again.settle`."""

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


def wait_for_job(stack: Stack, name: str, timeout: float | None = None) -> Job:
    """Find the job that a name means; wait a minute for one whose id is that young."""
    ends = end_of(timeout)
    while True:
        try:
            return find_job(stack, name)
        except NotFound:
            if not may_come(name):
                raise
            if ends <= end_of(0):  # Now.
                raise TimedOut(f"{name} has no job yet.") from None
        time.sleep(MIN_READ_SECONDS)


def each_over(
    jobs: Sequence[Job],
    progress: Progress | None = None,
    timeout: float | None = None,
    go_on: str = "Wait for it, or cancel it.",
    settle: Settle | None = None,
) -> Iterator[tuple[Job, Found]]:
    """Show jobs of one stack until all are over; yield each with its manifest, or why it has none.

    `go_on`: what to do if interrupted, for its message. `settle` is called when all are over.
    """
    ends = end_of(timeout)
    over = _each_over(jobs, progress, timeout, go_on)
    if settle is None:
        yield from over
        return

    def wait(retries: list[Job]) -> list[tuple[Job, Found]]:
        left = None if timeout is None else max(ends - time.monotonic(), 0.0)
        return list(_each_over(retries, progress, left, go_on))

    found = list(over)
    settle(found, wait)
    yield from found


def _each_over(
    jobs: Sequence[Job], progress: Progress | None, timeout: float | None, go_on: str
) -> Iterator[tuple[Job, Found]]:
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


@dataclass
class Unfinished:
    """A job that is not over, as it is shown: what was read of it, and when it was last there."""

    job: Job
    name: str
    seen: float
    status: dict[str, Any] | None = None
    error: Error | None = None
    exists: bool = False
    may_be_over: bool = False


class Watch:
    """Jobs of one stack until all are over.

    Attributes:
        unfinished: those that are not over, by the folders of their results.
        is_many: whether they are shown as a total, and some of them by path.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.is_many = self._lists = len(jobs) > FEW_JOBS
        self._now = self._grew = time.monotonic()
        self.unfinished = {
            job.folder: Unfinished(job, job.path if self.is_many else job.id, self._now)
            for job in jobs
        }
        self._stack: Any = jobs[0].stack if jobs else None
        self._shown: dict[str, dict[str, Any]] = {}
        if not self.is_many:
            first = {job.id: "uploaded" if job.uploaded else "splitting" for job in jobs}
            self._shown = {name: {"state": state} for name, state in first.items()}

    def shown(self, waiting: dict[str, str] | None) -> dict[str, dict[str, Any]]:
        """The statuses of the jobs that are shown, by name; `waiting` is what few wait for."""
        if self.is_many or not waiting:
            return self._shown
        late = {one.name: {"waiting_for": waiting} for one in self.unfinished.values()}
        return {name: status | late.get(name, {}) for name, status in self._shown.items()}

    def look(self) -> Iterator[tuple[Job, Found]]:
        """Look once; yield each job that is over now with its manifest, or why it has none."""
        self._now = time.monotonic()
        for one in self.unfinished.values():
            one.exists = one.may_be_over = False
        if self._lists:
            self._list()
        self._read(self._running() if self._lists else list(self.unfinished))
        named = self._running() if self.is_many else self.unfinished
        found = {self.unfinished[one].name: self.unfinished[one].status for one in named}
        self._shown = {} if self.is_many else self._shown
        self._shown |= {name: status for name, status in found.items() if status}
        yield from self._ended()
        yield from self._missing()

    def _running(self) -> list[str]:
        """The folders of the first jobs that exist and are not known to be over."""
        running = [one for one in self.unfinished.values() if one.exists and not one.may_be_over]
        ordered = sorted(running, key=lambda one: one.job.id)
        return [one.job.folder for one in ordered[:SHOWN_JOBS]]

    def _read(self, folders: Iterable[str]) -> None:
        for folder, status in self._read_files("status.json", folders):
            one = self.unfinished[folder]
            one.error = status if isinstance(status, Error) else None
            # The last status.json is written moments after the manifest.
            one.may_be_over = not isinstance(status, dict) or _may_be_over(status)
            if isinstance(status, dict):
                one.status = status
                self._found(one)

    def _list(self) -> None:
        """Note which jobs have a status, and which a manifest, by a listing."""
        pages, first, last = 0, min(self.unfinished), max(self.unfinished)
        prefix = common_prefix(first, last).rpartition("/")[0] + "/"
        for page in pages_of(self._stack, prefix, first):
            pages += 1
            for entry in page:
                place, _, name = entry["Key"].rpartition("/")
                one = self.unfinished.get(f"{place}/")
                if one and name in {"status.json", "manifest.json"}:
                    one.may_be_over |= name == "manifest.json"
                    self._found(one)
            if page and page[-1]["Key"] > f"{last}\uffff":
                break
        self._lists = pages <= max(MIN_PAGES, len(self.unfinished))

    def _found(self, one: Unfinished) -> None:
        if one.job.uploaded:  # Jobs are created one after another: others may still come.
            self._grew = self._now
        one.exists, one.seen, one.job = True, self._now, replace(one.job, uploaded=None)

    def _read_files(self, name: str, folders: Iterable[str]) -> Iterator[tuple[str, Found | None]]:
        def read(folder: str) -> Found | None:
            return _tried(lambda: self._stack.read_json(folder + name))

        return at_once(read, list(folders))

    def _ended(self) -> Iterator[tuple[Job, Found]]:
        folders = [folder for folder, one in self.unfinished.items() if one.may_be_over]
        for folder, manifest in self._read_files("manifest.json", folders):
            one = self.unfinished[folder]
            found = manifest or one.error
            if found is None and (one.status or {}).get("state") in FINAL_JOB_STATES:
                found = _deleted(one.job)
            if found is None:
                continue
            if isinstance(found, dict) and not self.is_many:
                told = {name: found.get(name) for name in ("state", "counts", "incomplete")}
                over = {"fraction_done": 1.0, "waiting_for": None, "pending": None}
                self._shown[one.name] |= told | over
            yield self.unfinished.pop(folder).job, found

    def _missing(self) -> Iterator[tuple[Job, Error]]:
        """Look for jobs without files: another upload may have the id, or they are deleted."""
        absent = [
            folder
            for folder, one in self.unfinished.items()
            if not one.exists and (not self.is_many or self._is_late(one))
        ]
        for folder, found in at_once(lambda one: self._resolved(self.unfinished[one]), absent):
            one = self.unfinished[folder]
            if isinstance(found, Error):
                del self.unfinished[folder]
                self._shown.pop(one.name, None)
                yield one.job, found
            elif found and found.folder != folder:
                del self.unfinished[folder]
                name = one.name if self.is_many else found.id
                self._grew = self._now
                self.unfinished[found.folder] = Unfinished(found, name, self._now)
                self._shown[name] = self._shown.pop(one.name, {"state": "uploaded"})

    def _is_late(self, one: Unfinished) -> bool:
        since = self._grew + JOB_SECONDS if one.job.uploaded else one.seen + GONE_SECONDS
        return self._now >= since

    def _resolved(self, one: Unfinished) -> Job | Error | None:
        """The job if it exists or may come, or why it is given up."""
        is_late = self._is_late(one)
        if one.job.uploaded is None:
            return _deleted(one.job) if is_late else None
        found = _tried(one.job.resolved)
        if isinstance(found, Error) or found.uploaded is None:
            return found
        notice = _tried(found.notice)
        if isinstance(notice, Error):
            return notice
        if notice and (notice["error"] or is_late):
            return no_job(one.job.path, notice)
        if notice and not self.is_many:
            self._shown[one.name] = notice
        if not is_late:
            return found
        return NotFound(
            f"{one.job.path} has no job after {JOB_SECONDS:.0f} seconds. `dropbatch doctor` looks "
            "for the cause."
        )


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
