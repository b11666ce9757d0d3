"""Upload: `put` and `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import Context, as_json, emit, pass_context, strict
from dropbatch.cli.exits import Exit
from dropbatch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dropbatch.uploads import Uploaded

FORMATS = ("native", "openai", "anthropic", "gemini", "bedrock", "csv", "tsv", "text")


def upload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide how an upload is read."""
    for option in (
        click.option(
            "-o", "--option", "options", multiple=True, metavar="K=V", help='An option, for instance tags={"team":"x"}.'
        ),
        click.option("--name", help="Path under inbox/; for several files a folder, ending in a slash."),
        click.option("--template", help="For CSV, TSV and text: the prompt, with {column} for each value."),
        click.option("--format", "format_", type=click.Choice(FORMATS), help="Detected if not given."),
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
    from dropbatch.cli.verbs.look import wait_and_report
    from dropbatch.cli.verbs.results import get_files
    from dropbatch.waiting import wait_for_job

    metadata = _metadata(model, format_, template, options)
    paths = [_path(file, name, files) for file in files]
    jobs = []
    for file, path in zip(files, paths, strict=True):
        uploaded = _upload(context, file, path, metadata, "inbox")
        if wait or folder:
            jobs.append(wait_for_job(context.stack, uploaded))
        if as_json:
            emit({"path": path, "version": uploaded.version, "job_id": jobs[-1].id if jobs else None})
        else:
            click.echo(f"s3://{context.stack.bucket}/inbox/{path}" + (f"  job {jobs[-1].id}" if jobs else ""))
    if jobs:
        code = wait_and_report(jobs, strict=strict, as_json=as_json)
        if folder:
            for job in jobs:
                get_files(job, folder / job.id if len(jobs) > 1 else folder, as_json=as_json)
        raise SystemExit(code)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@upload_options
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
    as_json: bool,
) -> None:
    """Check a file. Nothing is sent to Workers AI."""
    from dropbatch.cli.reports import validation_lines, wait_for_validation

    uploaded = _upload(
        context, file, _path(file, name, [file]), _metadata(model, format_, template, options), "validate"
    )
    report = wait_for_validation(context.stack, uploaded)
    if as_json:
        emit(report)
    else:
        for line in validation_lines(report):
            click.echo(line)
    raise SystemExit(Exit.JOB_FAILED if report.get("error") or report.get("bad") else Exit.DONE)


def _upload(context: Context, file: Path, path: str, metadata: dict[str, str], folder: str) -> Uploaded:
    from dropbatch.cli.bars import bytes_bar
    from dropbatch.uploads import upload

    with bytes_bar(file.name, file.stat().st_size) as advance:
        return upload(context.stack, file, path, metadata, folder=folder, progress=advance)


def _metadata(model: str | None, format_: str | None, template: str | None, options: Sequence[str]) -> dict[str, str]:
    from dropbatch.options import metadata_of

    given = {"model": model, "format": format_, "template": template}
    pairs = {name: value for name, value in given.items() if value is not None}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator:
            raise UsageError(f"-o {option}: write it as NAME=VALUE.")
        pairs[name] = value
    return metadata_of(pairs)


def _path(file: Path, name: str | None, files: Sequence[Path]) -> str:
    if name is None:
        path = file.name
    elif name.endswith("/"):
        path = name + file.name
    elif len(files) > 1:
        raise UsageError("--name must end with a slash when several files are uploaded.")
    else:
        path = name
    path = path.removeprefix("inbox/").lstrip("/")
    if any(segment[:1] in {"_", "."} for segment in path.split("/")):
        raise UsageError(
            f"{path}: a path with a segment that begins with _ or . is not an upload. Choose another with --name.",
        )
    return path
