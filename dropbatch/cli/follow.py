"""Jobs are followed until they are over: progress, each one's end, its files, one table of many."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from dropbatch.cli.context import (
    Exit,
    bar_of,
    emit,
    exit_of,
    flag,
    is_json,
    note,
    row_of,
    said,
    worst,
)
from dropbatch.cli.files import path_in
from dropbatch.client.again import Again, Wanted
from dropbatch.client.download import MANIFEST, read_manifest, remove_unchanged, writing
from dropbatch.client.export import Delivery, deliver
from dropbatch.client.job import Job
from dropbatch.client.progress import Progress, counted
from dropbatch.client.report import failures_of
from dropbatch.client.threads import at_once
from dropbatch.client.wait import Total, each_over
from dropbatch.core.formats.table import FORMATS
from dropbatch.errors import Error, Interrupted, NotFound, NotOver, Taken, UsageError

Ended = tuple[Job, dict[str, Any] | Error]

DOWNLOADS_AT_ONCE = 8
FAILURES_BYTES = 1_000_000
"""How much of a job's failures is read to say why most failed."""
MAX_NAMED = 20
"""At most so many answers that do not fit are named."""
_OPTIONS = (
    click.option(
        "--retry",
        "times",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Up to N times, send records again that failed for lack of capacity, of an answer or "
        "of time, and merge the answers. They are billed again.",
    ),
    flag("--incomplete", help="With --retry: also those whose answers are none."),
    flag("--misfits", help="With --retry: also those whose answers do not fit their schema."),
    flag("--unknown", help="With --retry: also those that may be billed already."),
)


@dataclass
class Following:
    """What to do with jobs, besides waiting for them.

    Attributes:
        folder: where to download the results; None: nowhere.
        many: whether each job has its own folder in it, and the end is one table.
        go_on: what to do after an interruption, for a message; empty for the usual.
        replaces: whether files of an older job of the same path are replaced.
        file: where to write the output alone, or `-` for standard output; instead of `folder`.
        download: arguments of `Job.download`.
        whole: whether a retry whose answers cannot be merged is a failure.
        again: what is sent again before the end.
        check: whether answers are checked against their schema.
    """

    strict: bool = False
    folder: Path | None = None
    many: bool = False
    timeout: float | None = None
    go_on: str = ""
    replaces: bool = False
    file: Path | None = None
    download: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    again: Again | None = None
    check: bool = False

    def __post_init__(self) -> None:
        if self.again:
            self.download = {**self.download, "merged": True}

    def follow(self, jobs: Sequence[Job]) -> Exit:
        """Wait for jobs, download what is wanted, print how each ended; the worst exit code."""
        go_on = self.go_on or _go_on(jobs)
        settle = self.again.settle if self.again else None
        ended = each_over(jobs, Progress(), self.timeout, go_on, settle)
        if not self.many and len(jobs) == 1:
            (only,) = ended
            return self._one(*only)
        return self._many(jobs, ended)

    def collect(self, jobs: Sequence[Job]) -> Exit:
        """Download the files of finished jobs, print a line for each of many; the worst code."""
        if not self.many:
            return self._files(jobs[0], jobs[0].manifest())

        def read(job: Job) -> dict[str, Any] | Error:
            try:
                return job.manifest()
            except Error as error:
                return error

        return self._many(jobs, at_once(read, jobs, DOWNLOADS_AT_ONCE))

    # ── one job ───────────────────────────────────────────────────────────────────────────────────

    def _one(self, job: Job, manifest: dict[str, Any] | Error) -> Exit:
        if isinstance(manifest, Error):
            raise manifest
        emit(manifest)
        if not manifest["error"] and manifest["counts"]["failed"]:
            with suppress(Error):  # A hint; `dropbatch report` says why it cannot be read.
                note(_why(job, manifest))
            _note_failed(job.id, can_retry=_can_retry(manifest))
        if told := incomplete_in(manifest):
            again = f"dropbatch retry {job.id} --incomplete -o defaults='{{\"max_tokens\":…}}'"
            note(f"{told}: `{again}` sends these again.")
        for one in _unsent(manifest):
            note(one)
        return self._files(job, manifest)

    def _files(self, job: Job, manifest: dict[str, Any]) -> Exit:
        code = self._exit(job, manifest)
        if manifest["state"] != "completed":
            error = manifest["error"]
            why = f": {error['code']}: {error['message']}" if error else ""
            note(f"{job.id}  {manifest['state']}{why}")
        done = None
        if self.folder:
            self._make_room(self.folder, manifest)
            done = _get_files(job, self.folder, **self.download, manifest=manifest)
        elif self.file:
            done = _get_file(job, self.file, **self.download, manifest=manifest)
        return worst(code, self._lacks(done), self._misfits(job))

    def _misfits(self, job: Job) -> Exit:
        if not self.check:
            return Exit.DONE
        has_some = note_misfits(job, merged=bool(self.download.get("merged")))
        return Exit.SOME_FAILED if has_some and self.whole else Exit.DONE

    def _make_room(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Remove what an older job of the same path left there, but for what others changed."""
        older = read_manifest(folder / MANIFEST) if self.replaces else None
        if older is None or older["job_id"] == manifest["job_id"]:
            return
        if older.get("source", {}).get("key") == manifest["source"]["key"]:
            remove_unchanged(folder, older)

    def _exit(self, job: Job, found: dict[str, Any] | Error) -> Exit:
        if isinstance(found, Error):
            return exit_of(found)
        if found["state"] != "completed":
            return Exit.JOB_FAILED
        lacks = found["counts"]["failed"] or not found["read_to_end"]
        if lacks and self.strict and self.again and found["read_to_end"]:
            lacks = any(not one.success for one in job.results(merged=True))
        return Exit.SOME_FAILED if self.strict and lacks else Exit.DONE

    # ── many jobs ─────────────────────────────────────────────────────────────────────────────────

    def _many(self, jobs: Sequence[Job], ended: Iterable[Ended]) -> Exit:
        counts = Counter(job.path for job in jobs)
        twice = {path for path, count in counts.items() if count > 1}
        total, code, can_retry = Total(len(jobs)), Exit.DONE, False
        rows: dict[Job, str] = {}

        def get(one: Ended) -> Delivery | Error | None:
            return self._download(*one, apart=one[0].path in twice)

        for (job, found), done in at_once(get, ended, DOWNLOADS_AT_ONCE):
            total.add(found)
            code = worst(code, self._exit(job, found), self._told(job, done))
            rows[job] = _row(job, found, done)
            can_retry |= _can_retry(found)
            if not is_json():
                continue
            if isinstance(found, dict):
                emit(found)
            if isinstance(done, Error):
                note(f"{job.id}  {said(done)}")
        if not is_json():
            emit(None, *(rows[job] for job in jobs if job in rows))
            self._note_total(total)
            if total.failed_records:
                _note_failed("JOB...", can_retry=can_retry)
        return code

    def _download(
        self, job: Job, found: dict[str, Any] | Error, *, apart: bool
    ) -> Delivery | Error | None:
        if self.folder is None or isinstance(found, Error):
            return found if isinstance(found, Error) else None
        folder = path_in(self.folder, job.path)
        if apart:  # Several jobs have this path.
            folder /= job.id
        try:
            self._make_room(folder, found)
            return deliver(job, folder, lambda *_: None, **self.download, manifest=found)
        except Error as error:
            return error

    def _told(self, job: Job, done: Delivery | Error | None) -> Exit:
        if done is None or isinstance(done, Error):
            return exit_of(done) if done else Exit.DONE
        _show_merged(done)
        _note_made(done, f"{job.id}  ")
        return worst(self._lacks(done), self._misfits(job))

    def _lacks(self, done: Delivery | None) -> Exit:
        skipped = done.merged.skipped if done and done.merged else []
        return Exit.SOME_FAILED if self.whole and skipped else Exit.DONE

    def _note_total(self, total: Total) -> None:
        if not total.over:
            return
        parts = [f"{counted(total.jobs, 'job')}: {total.jobs - total.failed:,} completed"]
        parts += [f"{total.failed:,} not"] if total.failed else []
        parts += [counted(total.records, "record"), f"{total.failed_records:,} failed"]
        parts += [f"{'~' if total.is_estimated else ''}${total.cost:f}"] if total.cost else []
        parts += [f"cost of {total.unpriced:,} not known"] if total.unpriced else []
        where = f" The results are in {self.folder}." if self.folder else ""
        note(f"{', '.join(parts)}.{where}")


def _can_retry(found: dict[str, Any] | Error) -> bool:
    return isinstance(found, dict) and any(one["kind"] == "retry" for one in found["files"])


def _unsent(manifest: dict[str, Any]) -> Iterator[str]:
    """What was never sent of a job, because a limit ended it early or the records are bad."""
    if left := sum(one["requests"] for one in manifest["batches"] if not one["attempts"]):
        yield f"{counted(left, 'record')} not sent."
    if not manifest["read_to_end"]:
        yield "The job ended before its upload was read to its end: the rest was not sent."


def _why(job: Job, manifest: dict[str, Any]) -> str:
    """The commonest cause among the first failures."""
    groups = failures_of(job, manifest, FAILURES_BYTES).groups
    counts = Counter[str]()
    for (code, _), group in groups.items():
        counts[code] += group.records
    ((code, _),) = counts.most_common(1)
    message = next(said for of, said in groups if of == code)
    failed = f"{counted(manifest['counts']['failed'], 'record')} failed"
    return f"{failed}{', mostly' if len(counts) > 1 else ':'} {code}: {message}"


def _note_failed(which: str, *, can_retry: bool) -> None:
    again = f", `dropbatch retry {which}` tries them again" if can_retry else ""
    note(f"`dropbatch report {which.rstrip('.')}` shows why records failed{again}.")


def incomplete_in(found: Mapping[str, Any]) -> str:
    """How many of a job's answers are none; empty if there is none."""
    count = found.get("incomplete")
    return f"{found['counts']['succeeded']:,} answered, {count:,} of them cut off" if count else ""


def _go_on(jobs: Sequence[Job]) -> str:
    which, them = (jobs[0].id, "it") if len(jobs) == 1 else ("JOB...", "them")
    return f"`dropbatch wait {which}` waits for {them}, `dropbatch cancel {which}` stops {them}."


def _row(job: Job, found: dict[str, Any] | Error, done: object) -> str:
    says = said(done) if isinstance(done, Error) else ""
    state, counts, cost = "not over" if isinstance(found, NotOver) else "no job", {}, ""
    if isinstance(found, dict):
        state, counts, cost = found["state"], found["counts"], _cost(found)
        if error := found["error"]:
            says = f"{error['code']}: {error['message']}"
    failed = f"{counts['failed']:,} failed" if counts.get("failed") else ""
    numbers = f"{counts.get('total') or 0:>9,}", f"{failed:>14}", f"{cost:>12}"
    return row_of(job.id, f"{state:<9}", *numbers, job.path, says)


def _cost(manifest: dict[str, Any]) -> str:
    cost = manifest.get("cost")
    return f"{'~' if cost.get('estimated') else ''}${cost['amount']}" if cost else ""


def _get_files(job: Job, folder: Path, **wanted: Any) -> Delivery:
    """Download a job's files; print what was written."""
    try:
        done = _deliver(job, folder, **wanted)
    except KeyboardInterrupt:
        raise Interrupted("\nInterrupted. The same command resumes the download.") from None
    for file in done.files:
        emit({"path": str(file.path), "bytes": file.size, "fetched": file.fetched}, file.path)
    _show_merged(done)
    for one in done.exports:
        emit({**vars(one), "path": str(one.path)}, one.path)
    _note_made(done)
    return done


def _get_file(job: Job, target: Path, *, manifest: dict[str, Any], **wanted: Any) -> Delivery:
    """Write one file: what is made of the output, or the output; `-` is standard output."""
    if target.exists() and not wanted["force"]:
        raise Taken(f"{target} exists.")
    outputs = [Path(one["name"]) for one in manifest["files"] if one["kind"] == "output"]
    is_stream = str(target) == "-"
    with writing(target), TemporaryDirectory(dir=None if is_stream else target.parent) as folder:
        done = _deliver(job, Path(folder), **wanted, manifest=manifest)
        made = [one.path for one in done.exports] + ([done.merged.path] if done.merged else [])
        for path in [*made, *(folder / one for one in outputs)][:1]:
            if is_stream:
                with path.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
            else:
                path.replace(target)
                emit({"path": str(target)}, target)
    if not outputs:
        raise NotFound(f"Job {job.id} has no output.")
    _note_made(done)
    return done


def _deliver(job: Job, folder: Path, **wanted: Any) -> Delivery:
    """Do what `Job.download` does, with a bar for each file."""
    with ExitStack() as bars:
        named, shown, bar = "", 0, bar_of("", 0, hidden=True)

        def show(name: str, held: int, size: int) -> None:
            nonlocal named, shown, bar
            if name != named:
                bars.close()
                named, shown, bar = name, 0, bars.enter_context(bar_of(name, size))
            bar.update(held - shown)
            shown = held

        return deliver(job.resolved(), folder, show, **wanted)


def _note_made(done: Delivery, of: str = "") -> None:
    """Say what files that were made of a job's lack; `of` names the job where there are several."""
    for skipped in done.merged.skipped if done.merged else []:
        note(f"{of}Retry {skipped.job_id} is skipped: {skipped.message}")
    for one in done.exports:
        if one.left_out:
            note(f"{of}{counted(one.left_out, 'failed record')} left out of {one.path.name}.")
        if one.renamed:
            note(
                f"{of}{one.path.name}: {one.renamed:,} of {one.records:,} ids are made of the "
                "job's id and the record's, whose reference is missing, longer than 64 bytes, or "
                "another's."
            )


def _show_merged(done: Delivery) -> None:
    if not (merged := done.merged):
        return
    shown = {
        "path": str(merged.path),
        "errors": merged.errors and str(merged.errors),
        "replaced": merged.replaced,
        "retries": merged.retries,
        "skipped": [one._asdict() for one in merged.skipped],
    }
    line = f"{merged.path}  answers replaced: {merged.replaced:,}, retries: {merged.retries:,}"
    emit(shown, *filter(None, (line, merged.errors)))


# ── what is sent again by who waits, and answers that do not fit ──────────────────────────────────


def again_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is sent again; the command gets them as `again`."""

    @wraps(command)
    def gathered(*given: Any, times: int, **more: Any) -> Any:
        chosen = {name: more.pop(name) for name in ("unknown", "incomplete", "misfits")}
        if any(chosen.values()) and not times:
            raise UsageError("--incomplete, --misfits and --unknown need --retry N.")
        again = Again(times, Wanted(failed=True, **chosen), note) if times else None
        return command(*given, again=again, **more)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def note_misfits(job: Job, *, merged: bool) -> bool:
    """Name the answers of a job that do not fit their schema; whether there are any."""
    count, what = 0, "row" if FORMATS[job.manifest()["format"]].is_table else "line"
    for record in job.results(merged=merged, check=True):
        if record.misfit:
            count += 1
            if count <= MAX_NAMED:
                place = f"{what} {record.id + 1:,} of the output"
                note(f"{job.id}  {place}: {record.misfit.message}")
    if count:
        again = f"`dropbatch retry {job.id} --misfits` sends these again"
        fits = "does not fit its" if count == 1 else "do not fit their"
        note(f"{job.id}  {counted(count, 'answer')} {fits} schema: {again}.")
    return bool(count)
