"""Results: `get`, `retry`, `report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dropbatch.cli.context import (
    Context,
    Exit,
    as_json,
    emit,
    flag,
    get_option,
    gone,
    job_argument,
    jobs_argument,
    note,
    options,
    parse_options,
    pass_context,
    strict,
    worst,
)
from dropbatch.cli.follow import Following
from dropbatch.client.again import Wanted, send_chosen
from dropbatch.client.again import retry as retry_job
from dropbatch.client.download import EXPORTS, check_kinds, writing
from dropbatch.client.job import Job
from dropbatch.client.report import report as page
from dropbatch.errors import NotFound, NothingToRetry, UsageError


@click.command()
@jobs_argument
@click.option(
    "-o",
    "--output",
    "place",
    metavar="PLACE",
    help="The folder, or that of several jobs' folders (the job's id, or this one, if not given); "
    "a file with a suffix such as .csv, for the output alone; - for standard output.",
)
@flag("--merged", help="Also write the output with each record's newest answer, retries included.")
@click.option(
    "--as",
    "exports",
    multiple=True,
    metavar=f"[{'|'.join(EXPORTS)}]",
    help="Also write the records so.",
)
@flag("--no-columns", help="With --as: leave out the columns of the table that was uploaded.")
@flag("--force", help="Replace what another job or program wrote in the folder.")
@flag("--check", help="Name the answers that do not fit the schema of their request.")
@flag("--strict", help="Exit with 3 if answers do not fit, or those of a retry cannot be merged.")
@gone("--so-far", "status has the counts; answers come when the job is over.", is_flag=True)
@as_json
@pass_context
def get(
    context: Context,
    /,
    *,
    jobs: Sequence[str],
    place: str | None,
    no_columns: bool,
    check: bool,
    strict: bool,
    **download: Any,
) -> None:
    """Download the files of finished jobs. Resumes an interrupted download."""
    check_kinds(download["exports"])
    found, many = context.jobs(jobs)
    download["columns"] = not no_columns
    following = Following(many=many, download=download, whole=strict, check=check)
    if place and _is_file(place) and not many:
        following.file = Path(place)
    elif place == "-":
        raise UsageError("-o - is for the output of one job.")
    else:
        following.folder = Path(place or ("" if many else found[0].id))
    raise SystemExit(worst(following.collect(found), context.code))


def _is_file(place: str) -> bool:
    """Whether -o names a file for the output: not a folder, which ends in a slash or exists."""
    is_folder = place.endswith("/") or Path(place).is_dir()
    return not is_folder and (place == "-" or Path(place).suffix != "")


@click.command()
@jobs_argument
@options
@click.option("--model", multiple=True, help="Another model than the job's.")
@get_option
@flag("--incomplete", help="Instead those whose answers are none: empty, or cut off.")
@flag("--misfits", help="Instead those whose answers do not fit the schema of their request.")
@flag("--wait", help="Wait until the new jobs are over.")
@strict
@as_json
@pass_context
def retry(
    context: Context,
    /,
    *,
    jobs: Sequence[str],
    incomplete: bool,
    misfits: bool,
    wait: bool,
    folder: Path | None,
    strict: bool,
    **given: Any,
) -> None:
    """Try jobs' failed records again, each as a new job with the same options."""
    found, many = context.jobs(jobs)
    options = parse_options(**given)
    made: list[Job] = []

    def retried(job: Job) -> tuple[Job | None, list[str]]:
        try:
            if incomplete or misfits:
                wanted = Wanted(incomplete=incomplete, misfits=misfits)
                return send_chosen(job, wanted, options)[0], []
            return retry_job(job, options)
        except NothingToRetry as error:
            if not many:
                raise
            return None, [str(error)]

    for _, (again, notes) in context.each(retried, found, many=many):
        for one in notes:
            note(one)
        if again is None:
            continue
        made.append(again)
        line = f"s3://{context.stack.bucket}/inbox/{again.path}  job {again.id}"
        emit({"path": again.path, "job_id": again.id}, line)
    if many and not made and not context.code:
        raise NotFound(f"None of these {len(found):,} jobs has records to try again.")
    following = Following(strict=strict, many=many, folder=folder)
    code = following.follow(made) if made and (wait or folder) else Exit.DONE
    raise SystemExit(worst(code, context.code))


@click.command()
@job_argument
@flag("--open", "open_", help="Open it in a browser.")
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
    """Show a finished job on one page: how it ended, failures by group."""
    found = context.client.job(job)
    path = output or Path(f"{found.id}.html")
    made = page(found)
    with writing(path):
        path.write_bytes(made)
    emit({"job_id": found.id, "path": str(path)}, path)
    if open_:
        click.launch(str(path.resolve()))
