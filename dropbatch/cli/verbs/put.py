"""Upload: `put` and `validate`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import Context, as_json, emit, options, parse_options, pass_context, strict
from dropbatch.cli.exits import Exit
from dropbatch.errors import Error, Interrupted, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dropbatch.client.job import Job

MAX_NAMES = 20
"""At most this many files are named in a message."""


def _formats(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    from dropbatch.core.formats.registry import FORMATS

    return [name for name in FORMATS if name.startswith(begun)]


def upload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide how an upload is read."""
    for option in (
        options,
        click.option("--name", help="Path under inbox/; for several files a folder, ending in a slash."),
        click.option("--template", help="For CSV, TSV and text: the prompt, with {column} for each value."),
        click.option("--delimiter", metavar="CHARACTER", help="For tables: , ; | or tab. Detected if not given."),
        click.option(
            "--format", "format_", metavar="NAME", shell_complete=_formats, help="Such as csv. Detected if not given."
        ),
        click.option("--model", help="The model id, for instance @cf/baai/bge-small-en-v1.5."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(allow_dash=True), metavar="FILE...")
@upload_options
@click.option(
    "--no-check", is_flag=True, help="Send it even if the stack would refuse it, or each of its first records."
)
@click.option("--wait", is_flag=True, help="Wait until the jobs are over.")
@click.option(
    "--get",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Wait, then download the results.",
)
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
    wait: bool,
    folder: Path | None,
    strict: bool,
    **given: Any,  # noqa: ANN401 - click's own
) -> None:
    """Upload files. Each becomes a job.

    FILE may be a folder, a pipe, or - for standard input. Of a folder, names that begin with . or _ are left out.
    """
    from dropbatch.cli.verbs.look import wait_and_report
    from dropbatch.cli.verbs.results import get_files
    from dropbatch.client.waiting import wait_until_created

    options = _options(**given)
    uploads = list(_uploads(sources, name))
    jobs: list[Job] = []
    try:
        for source, target in uploads:
            jobs.append(_upload(context, source, target, options, check=not no_check))
    except KeyboardInterrupt:
        raise Interrupted(f"\nInterrupted. {_progress_of(uploads, jobs)}") from None
    except Error as error:
        if len(uploads) > 1:
            error.args = (f"{error} {_progress_of(uploads, jobs)}",)
        raise
    if wait or folder:
        for job in jobs:
            wait_until_created(job)
        code = wait_and_report(jobs, strict=strict)
        if folder:
            for job in jobs:
                get_files(job, folder / job.id if len(jobs) > 1 else folder)
        raise SystemExit(code)


def _uploads(sources: Sequence[str], name: str | None) -> Iterator[tuple[str, str | None]]:
    """The files that the arguments mean, each with its name under `inbox/`; None for its own.

    Raises:
        UsageError: one does not exist, or --name names a file where a folder is needed.
    """
    from dropbatch.client.uploads import upload_key

    many = len(sources) > 1 or any(Path(source).is_dir() for source in sources)
    if name is not None and not name.endswith("/") and many:
        raise UsageError("--name must end with a slash when several files are uploaded.")
    if sources.count("-") > 1:
        raise UsageError("Standard input can be uploaded once.")
    for source in sources:
        path = Path(source)
        if path.is_dir():
            yield from _files_in(path.resolve(), name or "")
            continue
        if source != "-" and not path.exists():
            raise UsageError(f"{source} does not exist.")
        upload_key(name, path.name)
        yield source, name


def _files_in(top: Path, name: str) -> Iterator[tuple[str, str]]:
    from dropbatch.client.uploads import upload_key

    for place, folders, files in os.walk(top):
        for one in folders + files:
            if one.startswith((".", "_")):
                click.echo(f"left out: {Path(place, one)}", err=True)
        folders[:] = sorted(one for one in folders if not one.startswith((".", "_")))
        for file in sorted(one for one in files if not one.startswith((".", "_"))):
            path = Path(place, file)
            target = name + path.relative_to(top.parent).as_posix()
            upload_key(target, "")
            yield str(path), target


def _upload(context: Context, source: str, name: str | None, options: Mapping[str, Any], *, check: bool) -> Job:
    """Upload one file and print its job."""
    from dropbatch.cli.bars import bytes_bar

    path = Path(source)
    with bytes_bar(path.name, path.stat().st_size if path.is_file() else 0) as advance:
        opened = sys.stdin.buffer if source == "-" else source
        job = context.client.submit(opened, name=name, progress=advance, check=check, **options)
    if job.uploaded and not job.uploaded.size:
        click.echo(f"{'Standard input' if source == '-' else source} is empty: its job has no records.", err=True)
    shown = {"path": job.path, "version": job.uploaded and job.uploaded.version, "job_id": job.id}
    emit(shown, f"s3://{context.stack.bucket}/inbox/{job.path}  job {job.id}")
    return job


def _progress_of(uploads: Sequence[tuple[str, str | None]], jobs: Sequence[Job]) -> str:
    """Which files were uploaded, for a message."""
    done, left = ([one for one, _ in some] for some in (uploads[: len(jobs)], uploads[len(jobs) :]))
    return f"Uploaded: {_some(done)}. Not uploaded: {_some(left)}."


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES]) or "nothing"
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES:,} more"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@upload_options
@click.option("--offline", is_flag=True, help="Check on this machine; the default if no stack is found.")
@as_json
@pass_context
def validate(
    context: Context,
    /,
    file: Path,
    *,
    name: str | None,
    offline: bool,
    **given: Any,  # noqa: ANN401 - click's own
) -> None:
    """Check a file. Nothing is sent to Workers AI."""
    from dropbatch.cli.reports import validation_lines

    report = _report(context, file, name, _options(**given), offline=offline)
    emit(report, *validation_lines(report))
    raise SystemExit(Exit.JOB_FAILED if report.get("error") or report.get("bad") else Exit.DONE)


def _report(
    context: Context, file: Path, name: str | None, options: dict[str, Any], *, offline: bool
) -> dict[str, Any]:
    from dropbatch.client.check import check_source
    from dropbatch.client.stack import DEFAULT_NAME

    if not offline:
        try:
            client = context.client
        except Error as error:
            if context.local or context.stack_name != DEFAULT_NAME:
                raise
            click.echo(f"Checked on this machine, because no stack was found. {error}", err=True)
        else:
            return client.validate(file, name=name, **options)
    return check_source(file, name, options)


def _options(*, options: Sequence[str], format_: str | None, **given: str | None) -> dict[str, Any]:
    """The options that were given.

    Raises:
        UsageError: one is unknown or has a wrong value.
    """
    from dropbatch.core.options import metadata_of

    pairs = {"format": format_, **given, **parse_options(options)}
    found = {option: value for option, value in pairs.items() if value is not None}
    metadata_of(found)
    return found
