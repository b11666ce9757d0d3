"""Results: `get`, `retry`, `report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import (
    Context,
    Exit,
    as_json,
    bar_of,
    emit,
    job_argument,
    jobs_argument,
    note,
    options,
    parse_options,
    pass_context,
    strict,
    worst,
)
from dropbatch.client.download import EXPORTS
from dropbatch.core.names import JobState
from dropbatch.errors import Interrupted, NotFound, NothingToRetry, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.client.export import Delivery, Exported
    from dropbatch.client.job import Job
    from dropbatch.client.merge import Merged


@click.command()
@jobs_argument
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
    type=click.Choice(tuple(EXPORTS)),
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
    from dropbatch.cli.follow import Following

    found, many = context.jobs(jobs)
    if folder and folder.is_file():
        raise UsageError(f"{folder} is a file. -o names a folder.")
    wanted = {"merged": merged, "exports": kinds, "columns": not no_columns, "force": force}
    if many:
        following = Following(folder=folder or Path(), many=True, download=wanted, whole=strict)
        raise SystemExit(worst(following.collect(found), context.code))
    (job,) = found
    done = get_files(job, folder or Path(job.id), **wanted)
    manifest, code = json.loads(done.files[-1].path.read_bytes()), Exit.DONE
    if manifest["state"] != JobState.COMPLETED:
        note(failure_of(job, manifest))
        code = Exit.JOB_FAILED
    if done.merged and done.merged.skipped and strict:
        code = worst(code, Exit.SOME_FAILED)
    raise SystemExit(code)


def get_files(job: Job, folder: Path, **wanted: Any) -> Delivery:  # noqa: ANN401 - those of `Job.download`
    """Do what `Job.download` does, with a bar for each file; print what was written.

    Raises:
        Interrupted: the user interrupted it.
    """
    bar = _FilesBar()
    try:
        done = job.download(folder, bar.show, **wanted)
    except KeyboardInterrupt:
        raise Interrupted("\nInterrupted. The same command resumes the download.") from None
    finally:
        bar.close()
    for file in done.files:
        emit({"path": str(file.path), "bytes": file.size, "fetched": file.fetched}, file.path)
    if done.merged:
        show_merged(done.merged)
    for one in done.exports:
        emit({**vars(one), "path": str(one.path)}, one.path)
        note_export(one)
    return done


class _FilesBar:
    """A bar for one file after another."""

    def __init__(self) -> None:
        self._name, self._held, self._bar = "", 0, bar_of("", 0, hidden=True)

    def show(self, name: str, held: int, size: int) -> None:
        """Show how many bytes of a file are on this machine."""
        if name != self._name:
            self.close()
            self._name, self._held, self._bar = name, 0, bar_of(name, size)
            self._bar.__enter__()
        self._bar.update(held - self._held)
        self._held = held

    def close(self) -> None:
        """End the last bar's line."""
        if self._name:
            self._bar.__exit__(None, None, None)


def failure_of(job: Job, manifest: dict[str, Any]) -> str:
    """What to say of a job that is over and not completed."""
    error = manifest["error"]
    why = f": {error['code']}: {error['message']}" if error else ""
    return f"{job.id}  {manifest['state']}{why}"


def note_export(one: Exported, of: str = "") -> None:
    """Say what a file lacks, or has otherwise; `of` names the job where there are several."""
    if one.left_out:
        note(f"{of}{one.left_out:,} failed records are left out of {one.path.name}.")
    if one.renamed:
        note(
            f"{of}{one.path.name}: {one.renamed:,} of {one.records:,} ids are made of the job's id "
            "and the record's, whose reference is missing, longer than 64 bytes, or another's."
        )


def show_merged(done: Merged, of: str = "") -> None:
    """Print what was merged, and say what was not; `of` as for `note_export`."""
    for one in done.skipped:
        note(f"{of}Retry {one.job_id} is skipped: {one.message}")
    shown = {
        "path": str(done.path),
        "errors": done.errors and str(done.errors),
        "replaced": done.replaced,
        "retries": done.retries,
        "skipped": [one._asdict() for one in done.skipped],
    }
    line = f"{done.path}  answers replaced: {done.replaced:,}, retries: {done.retries:,}"
    emit(shown, *filter(None, (line, done.errors)))


@click.command()
@jobs_argument
@options
@click.option("--wait", is_flag=True, help="Wait until the new jobs are over.")
@strict
@as_json
@pass_context
def retry(
    context: Context, *, jobs: Sequence[str], options: Sequence[str], wait: bool, strict: bool
) -> None:
    """Try jobs' failed records again, each as a new job with the same options."""
    from dropbatch.cli.follow import Following
    from dropbatch.client.submit import retry as retry_job

    found, many = context.jobs(jobs)
    given = parse_options(options)
    made: list[Job] = []

    def retried(job: Job) -> tuple[Job | None, list[str]]:
        try:
            return retry_job(job, given)
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
    code = Following(strict=strict, many=many).follow(made) if wait and made else Exit.DONE
    raise SystemExit(worst(code, context.code))


@click.command()
@job_argument
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
