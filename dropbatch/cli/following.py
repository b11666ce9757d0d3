"""Jobs are followed until they are over: progress, each one's end, its files.

One table for many.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from dropbatch.cli.context import emit, is_json, note
from dropbatch.cli.exits import Exit, exit_of, in_options, worst
from dropbatch.cli.fetching import failure_of, get_files, note_export, show_merged
from dropbatch.cli.rows import Cell, job_lines, terminal_width
from dropbatch.client.download import MANIFEST, read_manifest, remove_unchanged
from dropbatch.client.export import Delivery, deliver
from dropbatch.client.job import Job
from dropbatch.client.progress import Progress
from dropbatch.client.threads import at_once
from dropbatch.client.wait import FEW_JOBS, Total, each_over, end_of, wait_until_created
from dropbatch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

DOWNLOADS_AT_ONCE = 8


class Row(NamedTuple):
    """How a job ended, as the table shows it."""

    job_id: str
    path: str
    state: str
    total: int
    failed: int
    cost: str
    says: str

    @property
    def cells(self) -> tuple[Cell, ...]:
        """What the table shows before the path."""
        failed = f"{self.failed:,} failed" if self.failed else ""
        return (
            Cell(self.job_id, 25, rank=1, right=False),
            Cell(self.state, 9, right=False),
            Cell(f"{self.total:,}", 9, rank=2),
            Cell(failed, 14),
            Cell(self.cost, 12, rank=3),
        )


def path_in(folder: Path, path: str) -> Path:
    """The folder of a job's results: its path, below a folder that it cannot leave."""
    parts = [one.replace("\\", "%5C").replace("\0", "%00") for one in path.split("/")]
    return folder.joinpath(
        *("%" + one.replace(".", "%2E") if one in {"", ".", ".."} else one for one in parts)
    )


@dataclass
class Following:
    """What to do with jobs, besides waiting for them.

    Attributes:
        strict: whether failed records are a failure.
        folder: where to download the results; None: nowhere.
        many: whether each job has its own folder in it, and the end is one table.
        timeout: seconds after which to give up.
        go_on: what to do after an interruption, for a message; empty for the usual.
        replaces: whether files of an older job of the same path are replaced.
        download: arguments of `Job.download`.
        whole: whether a retry whose answers cannot be merged is a failure.
    """

    strict: bool = False
    folder: Path | None = None
    many: bool = False
    timeout: float | None = None
    go_on: str = ""
    replaces: bool = False
    download: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    twice: set[str] = field(default_factory=set, init=False)
    """Paths of several of the jobs: each has a folder of its id below its path's."""

    def follow(self, jobs: Sequence[Job]) -> Exit:
        """Wait until jobs are over, download what is wanted, print how each ended.

        Return the worst exit code.

        Raises:
            Error: the only job does not exist, or its files cannot be downloaded.
            TimedOut: some are not over in time.
            Interrupted: the user interrupted it.
        """
        self._note_twice(jobs)
        lost: dict[Job, Error] = {}
        ends = end_of(self.timeout)
        for job in jobs if len(jobs) <= FEW_JOBS else ():
            try:
                wait_until_created(job, ends=ends)
            except Error as error:
                lost[job] = error
        made = [job for job in jobs if job not in lost]
        ended = chain(
            lost.items(),
            each_over(made, Progress(), self.timeout, self.go_on, ends) if made else (),
        )
        if not self.many and len(jobs) == 1:
            (only,) = ended
            return self._one(*only)
        return self._many(jobs, at_once(lambda one: self._download(*one), ended, DOWNLOADS_AT_ONCE))

    def collect(self, jobs: Sequence[Job]) -> Exit:
        """Download the files of many finished jobs, print a line for each.

        Return the worst exit code.
        """
        self._note_twice(jobs)

        def read(job: Job) -> tuple[Job, dict[str, Any] | Error]:
            try:
                return job, job.manifest()
            except Error as error:
                return job, error

        def get(job: Job) -> tuple[tuple[Job, dict[str, Any] | Error], Delivery | Error | None]:
            ended = read(job)
            return ended, self._download(*ended)

        return self._many(jobs, (found for _, found in at_once(get, jobs, DOWNLOADS_AT_ONCE)))

    def _many(
        self,
        jobs: Sequence[Job],
        ended: Iterable[tuple[tuple[Job, dict[str, Any] | Error], Delivery | Error | None]],
    ) -> Exit:
        """Show how many jobs ended.

        With `--json` each one's manifest at once, else a table at the end.
        """
        total, rows, code = Total(len(jobs)), dict[Job, Row](), Exit.DONE
        cost = _Cost()
        for (job, found), done in ended:
            problem = done if isinstance(done, Error) else None
            total.add(found)
            code = worst(code, self._exit(found, problem))
            if isinstance(found, dict):
                cost.add(found)
            if isinstance(done, Delivery):
                code = worst(code, self._show(job, done))
            if not is_json():
                rows[job] = _row(job, found, problem)
                continue
            if isinstance(found, dict):
                emit(found)
            if problem:
                note(f"{job.id}  {in_options(str(problem))}")
        self._table([rows[job] for job in jobs if job in rows], total, cost)
        return code

    def _note_twice(self, jobs: Sequence[Job]) -> None:
        self.twice = {
            path for path, count in Counter(job.path for job in jobs).items() if count > 1
        }

    def _one(self, job: Job, manifest: dict[str, Any] | Error) -> Exit:
        """Say how the only job ended, and download its files."""
        if isinstance(manifest, Error):
            raise manifest
        emit(manifest)
        if manifest["error"]:
            note(failure_of(job, manifest))
        elif manifest["counts"]["failed"]:
            can_retry = any(entry["kind"] == "retry" for entry in manifest["files"])
            again = f", `dropbatch retry {job.id}` tries them again" if can_retry else ""
            note(f"`dropbatch report {job.id}` shows why records failed{again}.")
        if self.folder:
            self._make_room(self.folder, manifest)
            get_files(job, self.folder, **self.download)
        return self._exit(manifest, None)

    def _download(self, job: Job, found: dict[str, Any] | Error) -> Delivery | Error | None:
        """Download one of many jobs' files, if that is wanted.

        Return what was written, or what failed.
        """
        if self.folder is None or isinstance(found, Error):
            return found if isinstance(found, Error) else None
        folder = path_in(self.folder, job.path)
        if job.path in self.twice:
            folder /= job.id
        try:
            self._make_room(folder, found)
            return deliver(job, folder, lambda *_: None, **self.download, manifest=found)
        except Error as error:
            return error

    def _show(self, job: Job, done: Delivery) -> Exit:
        """Show what was left out of one of many jobs' files, and return its exit code."""
        if done.merged:
            show_merged(done.merged, f"{job.id}  ")
        for one in done.exports:
            note_export(one, f"{job.id}  ")
        return Exit.SOME_FAILED if self.whole and done.merged and done.merged.skipped else Exit.DONE

    def _make_room(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Remove what an older job of the same path left there.

        What somebody else wrote or changed stays.
        """
        older = read_manifest(folder / MANIFEST) if self.replaces else None
        if older is None or older["job_id"] == manifest["job_id"]:
            return
        if older.get("source", {}).get("key") == manifest["source"]["key"]:
            remove_unchanged(folder, older)

    def _exit(self, found: dict[str, Any] | Error, problem: Error | None) -> Exit:
        if isinstance(found, Error):
            return exit_of(found)
        if problem:
            return exit_of(problem)
        if found["state"] != "completed":
            return Exit.JOB_FAILED
        return Exit.SOME_FAILED if self.strict and found["counts"]["failed"] else Exit.DONE

    def _table(self, rows: Sequence[Row], total: Total, cost: _Cost) -> None:
        if not rows:
            return
        width = terminal_width()
        shown = [row.cells for row in rows]
        if width is not None:  # In a pipe, the columns do not depend on the other jobs.
            widest = [max(len(cell.text) for cell in column) for column in zip(*shown, strict=True)]
            shown = [
                tuple(
                    cell._replace(width=most)
                    for cell, most in zip(cells, widest, strict=True)
                    if most
                )
                for cells in shown
            ]
        for row, cells in zip(rows, shown, strict=True):
            emit(row._asdict(), *job_lines(cells, row.path, row.says, width))
        parts = [f"{total.jobs:,} jobs: {total.jobs - total.failed:,} completed"]
        parts += [f"{total.failed:,} not"] if total.failed else []
        parts += [f"{total.records:,} records", f"{total.failed_records:,} failed", str(cost)]
        where = f" The results are in {self.folder}." if self.folder else ""
        note(f"{', '.join(filter(None, parts))}.{where}")
        if total.failed_records:
            note(
                "`dropbatch report JOB` shows why records failed, `dropbatch retry JOB...` "
                "tries them again."
            )


def _row(job: Job, found: dict[str, Any] | Error, problem: Error | None) -> Row:
    says = in_options(str(problem)) if problem else ""
    if isinstance(found, Error):
        return Row(job.id, job.path, "no job", 0, 0, "", says)
    if error := found["error"]:
        says = f"{error['code']}: {in_options(error['message'])}"
    counts = found["counts"]
    return Row(
        job.id,
        job.path,
        found["state"],
        counts["total"] or 0,
        counts["failed"] or 0,
        _cost(found),
        says,
    )


def _cost(manifest: dict[str, Any]) -> str:
    cost = manifest.get("cost")
    return f"{'~' if cost.get('estimated') else ''}${cost['amount']}" if cost else ""


@dataclass
class _Cost:
    """What several jobs cost together."""

    amount: Decimal = Decimal(0)
    is_estimated: bool = False
    unknown: int = 0

    def add(self, manifest: dict[str, Any]) -> None:
        """Add a job that is over; what it cost may not be known."""
        if (cost := manifest["cost"]) is None:
            self.unknown += 1
            return
        self.amount += Decimal(cost["amount"])
        self.is_estimated |= bool(cost.get("estimated"))

    def __str__(self) -> str:
        known = f"{'~' if self.is_estimated else ''}${self.amount:f}" if self.amount else ""
        return ", ".join(
            filter(None, (known, f"cost of {self.unknown:,} not known" if self.unknown else ""))
        )
