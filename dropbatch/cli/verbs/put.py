"""Upload: `put` and `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import Context, as_json, emit, pass_context, strict
from dropbatch.cli.exits import Exit
from dropbatch.errors import Error, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _formats(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    from dropbatch.formats.registry import FORMATS

    return [name for name in FORMATS if name.startswith(begun)]


def upload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide how an upload is read."""
    for option in (
        click.option(
            "-o", "--option", "options", multiple=True, metavar="K=V", help='An option, for instance tags={"team":"x"}.'
        ),
        click.option("--name", help="Path under inbox/; for several files a folder, ending in a slash."),
        click.option("--template", help="For CSV, TSV and text: the prompt, with {column} for each value."),
        click.option("--format", "format_", shell_complete=_formats, help="Detected if not given."),
        click.option("--model", help="The model id, for instance @cf/baai/bge-small-en-v1.5."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE..."
)
@upload_options
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
    files: Sequence[Path],
    *,
    model: str | None,
    format_: str | None,
    template: str | None,
    name: str | None,
    options: Sequence[str],
    wait: bool,
    folder: Path | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Upload files. Each becomes a job."""
    from dropbatch.cli.bars import bytes_bar
    from dropbatch.cli.verbs.look import wait_and_report
    from dropbatch.cli.verbs.results import get_files
    from dropbatch.waiting import created

    given = _options(model, format_, template, options)
    if name is not None and not name.endswith("/") and len(files) > 1:
        raise UsageError("--name must end with a slash when several files are uploaded.")
    jobs = []
    for file in files:
        with bytes_bar(file.name, file.stat().st_size) as advance:
            job = context.client.submit(file, name=name, progress=advance, **given)
        jobs.append(job)
        if as_json:
            emit({"path": job.path, "version": job.uploaded and job.uploaded.version, "job_id": job.id})
        else:
            click.echo(f"s3://{context.stack.bucket}/inbox/{job.path}  job {job.id}")
    if wait or folder:
        jobs = [created(job) for job in jobs]
        code = wait_and_report(jobs, strict=strict, as_json=as_json)
        if folder:
            for job in jobs:
                get_files(job, folder / job.id if len(jobs) > 1 else folder, as_json=as_json)
        raise SystemExit(code)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@upload_options
@click.option("--offline", is_flag=True, help="Check on this machine; the default if no stack is found.")
@as_json
@pass_context
def validate(
    context: Context,
    file: Path,
    *,
    model: str | None,
    format_: str | None,
    template: str | None,
    name: str | None,
    options: Sequence[str],
    offline: bool,
    as_json: bool,
) -> None:
    """Check a file. Nothing is sent to Workers AI."""
    from dropbatch.cli.reports import validation_lines

    report = _report(context, file, name, _options(model, format_, template, options), offline=offline)
    if as_json:
        emit(report)
    else:
        for line in validation_lines(report):
            click.echo(line)
    raise SystemExit(Exit.JOB_FAILED if report.get("error") or report.get("bad") else Exit.DONE)


def _report(
    context: Context, file: Path, name: str | None, options: dict[str, Any], *, offline: bool
) -> dict[str, Any]:
    from dropbatch.check import check_source
    from dropbatch.stack import DEFAULT_NAME

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


def _options(model: str | None, format_: str | None, template: str | None, options: Sequence[str]) -> dict[str, Any]:
    pairs = {"model": model, "format": format_, "template": template}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator:
            raise UsageError(f"-o {option}: write it as NAME=VALUE.")
        pairs[name] = value
    return pairs
