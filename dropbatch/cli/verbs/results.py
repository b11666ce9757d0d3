"""Results: `get`, `retry`, `report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import (
    Context,
    as_json,
    emit,
    note,
    options,
    parse_options,
    pass_context,
    strict,
)
from dropbatch.cli.exits import Exit, in_options, worst
from dropbatch.client.download import EXPORTS, check_kinds
from dropbatch.client.job import Job
from dropbatch.core.names import JobState
from dropbatch.errors import NotFound, NothingToRetry, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder, or that of the folders of several jobs; the job's id, or this folder, if "
    "not given.",
)
@click.option(
    "--merged",
    is_flag=True,
    help="Also write the output with each record's newest answer, retries included.",
)
@click.option(
    "--as",
    "kinds",
    metavar=f"[{'|'.join(EXPORTS)}]",
    multiple=True,
    help="Also write the records so.",
)
@click.option(
    "--no-columns",
    is_flag=True,
    help="With --as: leave out the columns of the table that was uploaded.",
)
@click.option(
    "--force", is_flag=True, help="Replace what another job or program wrote in the folder."
)
@click.option("--strict", is_flag=True, help="Exit with 3 if answers of a retry cannot be merged.")
@as_json
@pass_context
def get(
    context: Context,
    *,
    jobs: Sequence[str],
    folder: Path | None,
    merged: bool,
    kinds: Sequence[str],
    no_columns: bool,
    force: bool,
    strict: bool,
) -> None:
    """Download the files of finished jobs. Resumes an interrupted download."""
    from dropbatch.cli.fetching import get_files
    from dropbatch.cli.following import Following

    check_kinds(kinds)
    found, many = context.jobs(jobs)
    if folder and folder.is_file():
        raise UsageError(f"{folder} is a file. -o names a folder.")
    wanted: dict[str, Any] = {
        "merged": merged,
        "exports": kinds,
        "columns": not no_columns,
        "force": force,
    }
    if many:
        code = Following(folder=folder or Path(), many=True, download=wanted, whole=strict).collect(
            found
        )
        raise SystemExit(worst(code, context.code))
    (job,) = found
    done = get_files(job, folder or Path(job.id), **wanted)
    code = _exit_of(job, json.loads(done.files[-1].path.read_bytes()))
    if done.merged and done.merged.skipped and strict:
        code = worst(code, Exit.SOME_FAILED)
    raise SystemExit(code)


def _exit_of(job: Job, manifest: dict[str, Any]) -> Exit:
    """The exit code of a job that is over; say why it is not completed."""
    from dropbatch.cli.fetching import failure_of

    if manifest["state"] == JobState.COMPLETED:
        return Exit.DONE
    note(failure_of(job, manifest))
    return Exit.JOB_FAILED


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@options
@click.option("--wait", is_flag=True, help="Wait until the new jobs are over.")
@strict
@as_json
@pass_context
def retry(
    context: Context, *, jobs: Sequence[str], options: Sequence[str], wait: bool, strict: bool
) -> None:
    """Try jobs' failed records again, each as a new job with the same options."""
    from dropbatch.cli.following import Following

    found, many = context.jobs(jobs)
    given, made = parse_options(options), list[Job]()

    def retried(job: Job) -> Job | str:
        try:
            return job.retry(**given)
        except NothingToRetry as error:
            if not many:
                raise
            return str(error)

    for _, again in context.each(retried, found, many=many):
        if isinstance(again, str):
            note(in_options(again))
            continue
        made.append(again)
        line = f"s3://{context.stack.bucket}/inbox/{again.path}  job {again.id}"
        emit({"path": again.path, "job_id": again.id}, line)
    if many and not made and not context.code:
        raise NotFound(f"None of these {len(found):,} jobs has records to try again.")
    code = Following(strict=strict, many=many).follow(made) if wait and made else Exit.DONE
    raise SystemExit(worst(code, context.code))


@click.command()
@click.argument("job")
@click.option("--open", "open_", is_flag=True, help="Open it in a browser.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to save it.",
)
@as_json
@pass_context
def report(context: Context, *, job: str, open_: bool, output: Path | None) -> None:
    """Show a finished job on one page: how it ended, batches over time, failures by group."""
    from dropbatch.client.download import writing
    from dropbatch.client.report import report as page

    found = context.job(job)
    path = output or Path(f"{found.id}.html")
    made = page(found)
    with writing(path):
        path.write_bytes(made)
    emit({"job_id": found.id, "path": str(path)}, path)
    if open_:
        click.launch(str(path.resolve()))
