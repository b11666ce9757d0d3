"""Upload: `put` and `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import (
    Context,
    as_json,
    emit,
    gone,
    note,
    options,
    parse_options,
    pass_context,
    strict,
)
from dropbatch.cli.exits import Exit, in_options, worst
from dropbatch.core.options import GONE
from dropbatch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _formats(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    from dropbatch.core.formats.table import FORMATS

    return [name for name in FORMATS if name.startswith(begun)]


def upload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide how an upload is read."""
    for option in (
        options,
        click.option(
            "--name", help="Path under inbox/; for several files a folder, ending in a slash."
        ),
        click.option(
            "--template",
            multiple=True,
            help="For CSV, TSV and text: the prompt, with {column} for each value.",
        ),
        click.option(
            "--delimiter",
            multiple=True,
            metavar="CHARACTER",
            help="For tables: , ; | or tab. Detected if not given.",
        ),
        click.option(
            "--format",
            "format_",
            multiple=True,
            metavar="NAME",
            shell_complete=_formats,
            help="Such as csv. Detected if not given.",
        ),
        click.option(
            "--model", multiple=True, help="The model id, for instance @cf/baai/bge-small-en-v1.5."
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument(
    "sources", nargs=-1, required=True, type=click.Path(allow_dash=True), metavar="FILE..."
)
@upload_options
@click.option(
    "--no-check",
    is_flag=True,
    help="Send it even if the stack would refuse it, or each of its first records.",
)
@click.option(
    "--skip-bad", is_flag=True, help="Leave out files that the stack would refuse, and exit with 1."
)
@click.option(
    "--skip-existing",
    is_flag=True,
    help="Leave out what the bucket holds already: path, options, content.",
)
@gone("--task-token", GONE["task_token"], envvar="DROPBATCH_TASK_TOKEN")
@click.option("--wait", is_flag=True, help="Wait until the jobs are over.")
@click.option(
    "--get",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Wait, then download the results; of several files into folders of their names.",
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
    skip_bad: bool,
    skip_existing: bool,
    wait: bool,
    folder: Path | None,
    strict: bool,
    **given: Any,  # noqa: ANN401 - click's own
) -> None:
    """Upload files. Each becomes a job.

    FILE may be a folder, a pipe, - for standard input, s3://bucket/key or s3://bucket/prefix/. Of a
    folder, names that begin with . or _ are left out.
    """
    from dropbatch.cli import sending
    from dropbatch.cli.following import Following, path_in
    from dropbatch.cli.planning import plan
    from dropbatch.core.names import upload_path

    options = _options(**given)
    planned, many = plan(sources, name, lambda: context.stack)
    resumed = sending.since(folder, skip_existing=skip_existing)
    files = sending.Sending(
        context.stack,
        planned,
        options,
        skip_bad=skip_bad,
        existing_since=resumed,
    )
    following = Following(strict=strict, folder=folder, many=many, replaces=True)
    if folder:
        files.resumes = following.go_on = "The same command goes on."
    submissions = files.check(records=not no_check)
    if folder:
        places = {
            one.place: path_in(folder, upload_path(one.key)) if many else folder
            for one in submissions
        }
        sending.begin(folder, places)
    jobs = files.send(submissions)
    code = following.follow(jobs) if jobs and (wait or folder) else Exit.DONE
    raise SystemExit(worst(code, files.report_refused()))


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@upload_options
@click.option(
    "--offline", is_flag=True, help="Check on this machine; the default if no stack is found."
)
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
    from dropbatch.client.validate import validate as check

    if not offline:
        try:
            client = context.client
        except Error as error:
            if context.local or context.stack_name:
                raise
            note(f"Checked on this machine, because no stack was found. {in_options(str(error))}")
        else:
            return client.validate(file, name=name, **options)
    return check(file, name, options)


def _options(
    *, options: Sequence[str], format_: Sequence[str], **given: Sequence[str]
) -> dict[str, Any]:
    """The options that were given: a second value of one would replace the first unseen.

    Raises:
        UsageError: one is unknown, or has a wrong value or two.
    """
    from dropbatch.core.options import metadata_of

    named = {"format": format_, **given}
    found = parse_options(
        options, ((name, value) for name, values in named.items() for value in values)
    )
    metadata_of(found)
    return found
