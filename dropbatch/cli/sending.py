"""`put`: files are checked, all of them before the first is sent, and then sent.

Eight at a time.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING, Any

from dropbatch.cli.bars import StatusLine, bytes_bar
from dropbatch.cli.context import emit, note, standard_input
from dropbatch.cli.exits import Exit, exit_of, in_options, worst
from dropbatch.cli.planning import MAX_NAMES, some
from dropbatch.client.download import MANIFEST, read_manifest, writing
from dropbatch.client.job import Job
from dropbatch.client.submit import EVER, find_existing, prepare
from dropbatch.client.threads import at_once
from dropbatch.client.upload import PART_BYTES, abort_under_way
from dropbatch.errors import Error, Interrupted, NotFound, NotPermitted, UploadRefused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from dropbatch.cli.planning import Planned
    from dropbatch.client.stack import Stack
    from dropbatch.client.submit import Submission
    from dropbatch.client.upload import Uploaded

FILES_AT_ONCE = 8
BEGUN = ".dropbatch-put"
"""The file in a folder of results that says when the first `put` with it began."""
CLOCK_MINUTES = 15
"""AWS refuses calls from machines whose clocks differ by more."""


@dataclass
class Sending:
    """The files of one `put`.

    Attributes:
        stack: where they go.
        planned: the files.
        options: of all of them.
        skip_bad: leave out files that the stack would refuse.
        existing_since: leave out what the bucket holds since then; None: send everything.
        resumes: what sends the rest after an interruption, for a message.
    """

    stack: Stack
    planned: Sequence[Planned]
    options: Mapping[str, Any]
    skip_bad: bool = False
    existing_since: datetime | None = None
    resumes: str = "The same command with --skip-existing sends what is missing."
    refused: list[str] = field(default_factory=list)

    def check(self, *, records: bool = True) -> list[Submission]:
        """Prepare and check every file; nothing is sent.

        Args:
            records: also check how the files begin.

        Raises:
            Error: the only file would be refused.
            SystemExit: one of several would.
        """
        read = _remembered(self.stack)
        found: dict[int, Submission] = {}
        errors: dict[int, Error] = {}

        def look(numbered: tuple[int, Planned]) -> Submission | Error:
            try:
                return self._prepared(numbered[1], read, records=records)
            except (UploadRefused, UsageError, NotFound) as error:
                return error

        try:
            with StatusLine() as line:
                for (number, _), one in at_once(look, enumerate(self.planned), FILES_AT_ONCE):
                    if isinstance(one, Error):
                        errors[number] = one
                    else:
                        found[number] = one
                    line.show(
                        f"checked {len(found) + len(errors):,} of {len(self.planned):,} files"
                    )
        except KeyboardInterrupt:
            raise Interrupted("\nInterrupted. Nothing was sent.") from None
        self._judge([errors[number] for number in sorted(errors)])
        return [found[number] for number in sorted(found)]

    def _prepared(
        self, one: Planned, read: Callable[[str], bytes | None], *, records: bool
    ) -> Submission:
        source = standard_input().buffer if one.source == "-" else one.source
        submission = prepare(self.stack, source, one.name, self.options)
        try:
            if records:
                submission.check(read)
        finally:
            submission.release()
        return submission

    def _judge(self, errors: Sequence[Error]) -> None:
        self.refused = [in_options(str(one)) for one in errors]
        if not errors or self.skip_bad:
            return
        if len(self.planned) == 1:
            raise errors[0]
        for one in self.refused[:MAX_NAMES]:
            note(one)
        note(
            f"{len(errors):,} of {len(self.planned):,} files would be refused, so nothing "
            "was sent. --skip-bad leaves "
            "them out."
        )
        raise SystemExit(worst(*map(exit_of, errors)))

    def send(self, submissions: Sequence[Submission]) -> list[Job]:
        """Send the files; print each one's job; return the jobs in the files' order.

        Raises:
            Error: one failed; the others that were under way have ended, and no more was sent.
            Interrupted: the user interrupted it.
        """
        there = (
            {}
            if self.existing_since is None
            else find_existing(self.stack, submissions, self.existing_since)
        )
        jobs: dict[str, Job] = {}
        failed: list[Error] = []
        until_failed = takewhile(lambda _: not failed, submissions)
        with _bar(submissions, there) as (advance, line):
            calls = at_once(_sender(self.stack, there, advance), until_failed, FILES_AT_ONCE)
            try:
                for one, made in calls:
                    if isinstance(made, Error):
                        failed.append(made)
                        continue
                    jobs[one.key] = made
                    with line.hidden():
                        self._show(one, made, existing=one.existed or one.key in there)
            except KeyboardInterrupt:
                abort_under_way()
                raise Interrupted(
                    f"\nInterrupted. {self._progress_of(submissions, jobs)}"
                ) from None
        if failed:
            if len(submissions) > 1:
                note(self._progress_of(submissions, jobs))
            raise failed[0]
        return [jobs[one.key] for one in submissions]

    def _show(self, one: Submission, job: Job, *, existing: bool) -> None:
        if job.uploaded and not job.uploaded.size:
            name = one.source if isinstance(one.source, str) else "Standard input"
            note(f"{name} is empty: its job has no records.")
        shown = {
            "path": job.path,
            "version": job.uploaded and job.uploaded.version,
            "job_id": job.id,
        }
        again = "  is there already" if existing else ""
        emit(
            shown | ({"existing": True} if existing else {}),
            f"{one.source if one.in_place else f's3://{self.stack.bucket}/inbox/{job.path}'} "
            f" job {job.id}{again}",
        )

    def _progress_of(self, submissions: Sequence[Submission], jobs: Mapping[str, Job]) -> str:
        """Which files were uploaded, for a message."""
        names: dict[bool, list[str]] = {True: [], False: []}
        for one in submissions:
            names[one.key in jobs].append(one.source if isinstance(one.source, str) else "-")
        return (
            f"Uploaded: {some(names[True])}. Not uploaded, or not confirmed: "
            f"{some(names[False])}. {self.resumes}"
        )

    def report_refused(self) -> Exit:
        """Name the files that were left out because the stack would refuse them."""
        for one in self.refused:
            note(f"left out: {one}")
        return Exit.JOB_FAILED if self.refused else Exit.DONE


def _sender(
    stack: Stack, there: Mapping[str, Uploaded], advance: Callable[[int], None]
) -> Callable[[Submission], Job | Error]:
    """What sends one file, on one of several threads."""
    large = Lock()

    def send(one: Submission) -> Job | Error:
        if one.key in there:
            return Job.of_upload(stack, there[one.key])
        is_small = one.size is not None and one.size < PART_BYTES
        try:
            # The parts of a large one are sent at the same time, so that two would take twice the
            # memory.
            with nullcontext() if is_small else large:
                return one.send(advance)
        except Error as error:
            return error
        finally:
            one.close()

    return send


def _remembered(stack: Stack) -> Callable[[str], bytes | None]:
    """Reads each `_options.json` once for all files of a folder."""
    known: dict[str, bytes | NotPermitted | None] = {}

    def read(key: str) -> bytes | None:
        if key not in known:
            try:
                known[key] = stack.read(key)
            except NotPermitted as error:
                known[key] = error
        found = known[key]
        if isinstance(found, NotPermitted):
            raise found
        return found

    return read


@contextmanager
def _bar(
    submissions: Sequence[Submission], there: Mapping[str, Uploaded]
) -> Iterator[tuple[Callable[[int], None], StatusLine]]:
    """Show what is sent: of one file a bar, of many one line."""
    if len(submissions) == 1 and not there:
        (only,) = submissions
        with bytes_bar(str(only.key.rpartition("/")[2]), only.size or 0) as advance:
            yield advance, StatusLine(shown=False)
        return
    left = [one for one in submissions if one.key not in there]
    size, sent, lock = sum(one.size or 0 for one in left), 0, Lock()
    with StatusLine() as line:

        def advance_all(count: int) -> None:
            nonlocal sent
            with lock:
                sent += count
                line.show(
                    f"sending {len(left):,} files: {sent / 1e6:,.1f} of "
                    f"{max(size, sent) / 1e6:,.1f} MB"
                )

        yield advance_all, line


def begun(folder: Path) -> datetime | None:
    """When the `put` began whose results the folder is for; None if it is new."""
    try:
        at = json.loads((folder / BEGUN).read_bytes())["began"]
        return datetime.fromisoformat(at) - timedelta(minutes=CLOCK_MINUTES)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{folder / BEGUN} was changed. Delete it, or choose another folder."
        ) from None


def begin(folder: Path, places: Mapping[tuple[str, str], Path]) -> None:
    """Note in a folder of results that a `put` begins; nothing of it is sent yet.

    Args:
        folder: created if it does not exist.
        places: where each job's files will lie, by the bucket and the key of its upload.

    Raises:
        UsageError: one has a job's files already, and not those of an earlier `put` of the same
            upload; or the folder cannot be written.
    """
    has_begun = (folder / BEGUN).exists()
    for of, place in places.items():
        source = (read_manifest(place / MANIFEST) or {}).get("source", {})
        is_ours = has_begun and (source.get("bucket"), source.get("key")) == of
        if (place / MANIFEST).exists() and not is_ours:
            raise UsageError(
                f"{place} has the files of another job. Choose another folder with --get."
            )
    if has_begun:
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / BEGUN).write_text(
            json.dumps({"began": f"{datetime.now(UTC).isoformat()}"}) + "\n"
        )


def since(folder: Path | None, *, skip_existing: bool) -> datetime | None:
    """From when on an upload of the same content need not be sent again; None.

    Everything is sent.
    """
    if skip_existing:
        return EVER
    return begun(folder) if folder else None
