"""`put` and `validate`: all files are checked before the first is sent, eight at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import Any

import click

from dropbatch.cli.context import (
    Context,
    Exit,
    as_json,
    bar_of,
    emit,
    exit_of,
    flag,
    get_option,
    gone,
    note,
    options,
    parse_options,
    pass_context,
    said,
    standard_input,
    strict,
    worst,
)
from dropbatch.cli.files import MAX_NAMES, Planned, begin, path_in, plan, resumes_since, some
from dropbatch.cli.follow import Following, again_options
from dropbatch.client.again import Again
from dropbatch.client.job import Job
from dropbatch.client.progress import counted
from dropbatch.client.sources import read_template
from dropbatch.client.stack import Stack
from dropbatch.client.submit import Submission, find_existing, prepare
from dropbatch.client.threads import at_once
from dropbatch.client.upload import PART_BYTES, Uploaded, upload
from dropbatch.client.validate import validate as check
from dropbatch.core import names
from dropbatch.core.options import GONE
from dropbatch.errors import Error, Interrupted, NotFound, UploadRefused, UsageError

FILES_AT_ONCE = 8
MIN_BAR_BYTES = 8 << 20
"""Smaller uploads have no bar."""


_UPLOAD_OPTIONS = {
    "delimiter": "For tables: , ; | or tab. Detected if not given.",
    "format": "Such as csv. Detected if not given.",
    "template": "The prompt of each row or object, with {column} for each value.",
    "model": "The model id, for instance @cf/baai/bge-small-en-v1.5.",
}


def upload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide how an upload is read."""
    words = "Path under inbox/; for several files a folder, ending in a slash."
    command = click.option("--name", help=words)(options(command))
    command = click.option(
        "--template-file",
        multiple=True,
        metavar="FILE",
        help="The template in a file, for a long prompt.",
        callback=lambda _context, _option, paths: [read_template(Path(one)) for one in paths],
    )(command)
    for name, help_ in _UPLOAD_OPTIONS.items():
        command = click.option(f"--{name}", multiple=True, help=help_)(command)
    return command


files_argument = click.argument("sources", nargs=-1, required=True, metavar="FILE...")


@click.command()
@files_argument
@upload_options
@flag("--wait", help="Wait until the jobs are over.")
@get_option
@again_options
@flag("--no-check", help="Send it even if the stack would refuse it, or each of its first records.")
@flag("--skip-bad", help="Leave out files that the stack would refuse, and exit with 1.")
@flag("--skip-existing", help="Leave out what the bucket holds already: path, options, content.")
@gone("--task-token", GONE["task_token"], envvar="DROPBATCH_TASK_TOKEN")
@strict
@as_json
@pass_context
def put(
    context: Context,
    /,
    sources: Sequence[str],
    *,
    name: str | None,
    no_check: bool,
    skip_bad: bool,
    skip_existing: bool,
    wait: bool,
    again: Again | None,
    folder: Path | None,
    strict: bool,
    **given: Any,
) -> None:
    """Upload files. Each becomes a job.

    FILE may be a folder, a pipe, - for standard input, s3://bucket/key or s3://bucket/prefix/. Of a
    folder, names that begin with . or _ are left out.
    """
    options = parse_options(**given)
    planned, many, attached = plan(sources, name, lambda: context.stack)
    since = resumes_since(folder, skip_existing=skip_existing)
    sending = Sending(context.stack, planned, options, skip_bad, since)
    following = Following(strict=strict, folder=folder, many=many, replaces=True, again=again)
    if folder:
        sending.resumes = following.go_on = "The same command goes on."
    submissions = sending.check(records=not no_check)
    if folder:
        places = {
            one.place: path_in(folder, names.upload_path(one.key)) if many else folder
            for one in submissions
        }
        begin(folder, places)
    send_attached(context.stack, attached)
    jobs = sending.send(submissions)
    code = following.follow(jobs) if jobs and (wait or folder or again) else Exit.DONE
    for one in sending.refused:
        note(f"left out: {one}")
    raise SystemExit(worst(code, Exit.JOB_FAILED if sending.refused else Exit.DONE))


@click.command()
@files_argument
@upload_options
@flag("--offline", help="Ask no stack; the default if no stack is found.")
@as_json
@pass_context
def validate(
    context: Context,
    /,
    sources: Sequence[str],
    *,
    name: str | None,
    offline: bool,
    **given: Any,
) -> None:
    """Check files to their ends on this machine, and estimate their cost. Nothing is sent."""
    options, validator = parse_options(**given), _validator(context, offline=offline)
    planned, many, _ = plan(sources, name, lambda: context.stack)
    code = Exit.DONE
    for one in planned:
        source = standard_input().buffer if one.source == "-" else one.source
        report = validator(source, name=one.name, **options)
        emit(report, *([f"file      {one.source}"] if many else []), *validation_lines(report))
        if report.get("error") or report.get("bad"):
            code = Exit.JOB_FAILED
    raise SystemExit(code)


def _validator(context: Context, *, offline: bool) -> Callable[..., dict[str, Any]]:
    """What checks a file: with what the stack says of its options, if it can be asked."""
    if not offline:
        try:
            return context.client.validate
        except Error as error:
            if context.local or context.stack_name:
                raise
            note(f"Checked without a stack, because none was found. {said(error)}")
    return lambda source, name, **options: check(source, name, options)


def validation_lines(report: dict[str, Any]) -> Iterator[str]:
    """A validation's report as text."""
    if error := report.get("error"):
        yield f"{error['code']}: {error['message']}"
        return
    yield f"format    {report['format']}"
    yield f"model     {report['model'] or 'none'}"
    yield f"records   {report['records']:,} in {counted(report['bytes'], 'byte')}"
    yield f"batches   {report['batches']:,}, about {counted(report['calls'], 'call')}"
    yield f"estimate  {_estimate(report['estimate'])}"
    if longest := report["longest"]:
        where = f", line {longest['line']:,}" if longest["line"] else ""
        yield f"longest   {counted(longest['bytes'], 'byte')}{where}"
    if report["not_sent"]:
        yield f"not sent  {', '.join(report['not_sent'])}"
    if report["first"]:
        yield f"first     {report['first']}"
    for warning in report["warnings"]:
        yield f"warning   {warning}"
    if report["repeated"]:
        yield f"repeated  {counted(report['repeated'], 'reference')}"
    yield f"bad       {report['bad']:,}"
    for bad in report["bad_first"]:
        where = f"line {bad['line']:,}" if bad["line"] else f"record {bad['id']:,}"
        yield f"  {where}: {bad['code']}: {bad['message']}"


def _estimate(estimate: dict[str, Any]) -> str:
    parts = [
        f"{estimate[name]:,} {name.replace('_', ' ')}"
        for name in ("input_tokens", "output_tokens")
        if estimate[name] is not None
    ]
    if not parts:
        return "none: there is nothing to send"
    if cost := estimate["cost"]:
        return ", ".join([*parts, f"${cost['amount']} at the prices of {cost['priced_at']}"])
    return ", ".join([*parts, "the model's price is unknown"])


@dataclass
class Sending:
    """The files of one `put`.

    Attributes:
        existing_since: leave out what the bucket holds since then; None: send everything.
        resumes: what sends the rest after an interruption, for a message.
        refused: why files are left out.
    """

    stack: Stack
    planned: Sequence[Planned]
    options: Mapping[str, Any]
    skip_bad: bool = False
    existing_since: datetime | None = None
    resumes: str = "The same command with --skip-existing sends what is missing."
    refused: list[str] = field(default_factory=list)
    odd: dict[str, None] = field(default_factory=dict)

    def check(self, *, records: bool = True) -> list[Submission]:
        """Prepare and check every file, and how it begins if `records`; nothing is sent."""
        read = cache(self.stack.read)  # One `_options.json` is for all files of a folder.
        found: dict[int, Submission | Error] = {}

        def look(numbered: tuple[int, Planned]) -> Submission | Error:
            try:
                return self._prepared(numbered[1], read, records=records)
            except (UploadRefused, UsageError, NotFound) as error:
                return error

        try:
            for (number, _), one in at_once(look, enumerate(self.planned), FILES_AT_ONCE):
                found[number] = one
        except KeyboardInterrupt:
            raise Interrupted("\nInterrupted. Nothing was sent.") from None
        in_order = [found[number] for number in sorted(found)]
        for odd in self.odd:
            note(odd)
        self._judge([one for one in in_order if isinstance(one, Error)])
        fine = [one for one in in_order if not isinstance(one, Error)]
        if sys.stderr.isatty() and fine and fine[0].checked.request:
            note(f"first request: {fine[0].checked.first}")
        return fine

    def _prepared(
        self, one: Planned, read: Callable[[str], bytes | None], *, records: bool
    ) -> Submission:
        source = standard_input().buffer if one.source == "-" else one.source
        submission = prepare(self.stack, source, one.name, self.options)
        try:
            notes = submission.check(read) if records else submission.notes
            self.odd |= dict.fromkeys(notes)
            if submission.checked.unused:
                self.odd[f"not sent: {', '.join(submission.checked.unused)}"] = None
        finally:
            submission.release()
        return submission

    def _judge(self, errors: Sequence[Error]) -> None:
        self.refused = [str(one) for one in errors]
        if not errors or self.skip_bad:
            return
        if len(self.planned) == 1:
            raise errors[0]
        for one in self.refused[:MAX_NAMES]:
            note(one)
        note(
            f"{len(errors):,} of {len(self.planned):,} files would be refused, so nothing was "
            "sent. --skip-bad leaves them out, --no-check sends them all the same."
        )
        raise SystemExit(worst(*map(exit_of, errors)))

    def send(self, submissions: Sequence[Submission]) -> list[Job]:
        """Send the files, print each one's job, return all; after one fails, no more is sent."""
        since = self.existing_since
        there = {} if since is None else find_existing(self.stack, submissions, since)
        jobs: dict[str, Job] = {}
        failed: list[Error] = []
        until_failed = takewhile(lambda _: not failed, submissions)
        with _advancing(submissions) as advance:
            calls = at_once(_sender(self.stack, there, advance), until_failed, FILES_AT_ONCE)
            try:
                for one, made in calls:
                    if isinstance(made, Error):
                        failed.append(made)
                        continue
                    jobs[one.key] = made
                    self._show(one, made, existing=one.existed or one.key in there)
            except KeyboardInterrupt:
                message = f"\nInterrupted. {self._progress_of(submissions, jobs)}"
                raise Interrupted(message) from None
        if failed:
            if len(submissions) > 1:
                note(self._progress_of(submissions, jobs))
            raise failed[0]
        return [jobs[one.key] for one in submissions]

    def _show(self, one: Submission, job: Job, *, existing: bool) -> None:
        if job.uploaded and not job.uploaded.size:
            name = one.source if isinstance(one.source, str) else "Standard input"
            note(f"{name} is empty: its job has no records.")
        version = job.uploaded and job.uploaded.version
        shown = {"path": job.path, "version": version, "job_id": job.id}
        place = one.source if one.in_place else f"s3://{self.stack.bucket}/inbox/{job.path}"
        if existing:
            emit(shown | {"existing": True}, f"{place}  job {job.id}  is there already")
        else:
            emit(shown, f"{place}  job {job.id}")

    def _progress_of(self, submissions: Sequence[Submission], jobs: Mapping[str, Job]) -> str:
        names: dict[bool, list[str]] = {True: [], False: []}
        for one in submissions:
            names[one.key in jobs].append(one.source if isinstance(one.source, str) else "-")
        return (
            f"Uploaded: {some(names[True])}. Not uploaded, or not confirmed: "
            f"{some(names[False])}. {self.resumes}"
        )


def send_attached(stack: Stack, attached: Sequence[Planned]) -> None:
    """Upload the pictures and sounds of a folder, before the records that name them."""

    def send(one: Planned) -> None:
        path = names.upload_path(one.name or "").lstrip("/")
        with Path(one.source).open("rb") as stream:
            upload(stack, stream, names.INBOX + path, {})

    if sent := list(at_once(send, attached, FILES_AT_ONCE)):
        note(f"{len(sent):,} pictures and sounds are uploaded.")


def _sender(
    stack: Stack, there: Mapping[str, Uploaded], advance: Callable[[int], None]
) -> Callable[[Submission], Job | Error]:
    large = Lock()

    def send(one: Submission) -> Job | Error:
        if one.key in there:
            return Job.of_upload(stack, there[one.key])
        is_small = one.size is not None and one.size < PART_BYTES
        try:
            # The parts of a large one are sent at the same time: two would take twice the memory.
            with nullcontext() if is_small else large:
                return one.send(advance)
        except Error as error:
            return error
        finally:
            one.close()

    return send


@contextmanager
def _advancing(submissions: Sequence[Submission]) -> Iterator[Callable[[int], None]]:
    """Show a bar of one large file; of many, their lines show how far they are."""
    size = submissions[0].size or 0 if len(submissions) == 1 else 0
    name, lock = submissions[0].key.rpartition("/")[2] if submissions else "", Lock()
    with bar_of(name, size, hidden=size < MIN_BAR_BYTES) as bar:

        def advance(count: int) -> None:
            with lock:  # Parts are sent by several threads.
                bar.update(count)

        yield advance
