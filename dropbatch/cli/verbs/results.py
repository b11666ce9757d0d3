"""Results: `get`, `retry`, `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dropbatch.cli.context import Context, as_json, emit, options, parse_options, pass_context, strict
from dropbatch.cli.exits import Exit
from dropbatch.core.keys import EXPORTS
from dropbatch.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.client.job import Job
    from dropbatch.client.results.delivery import Delivery
    from dropbatch.client.results.merging import Merged


@click.command()
@click.argument("job")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder; the job's id if not given.",
)
@click.option(
    "--merged", is_flag=True, help="Also write the output with each record's newest answer, retries included."
)
@click.option("--as", "kinds", type=click.Choice(tuple(EXPORTS)), multiple=True, help="Also write the records so.")
@click.option("--force", is_flag=True, help="Replace what another job or program wrote in the folder.")
@click.option("--strict", is_flag=True, help="Exit with 3 if answers of a retry cannot be merged.")
@as_json
@pass_context
def get(
    context: Context,
    *,
    job: str,
    folder: Path | None,
    merged: bool,
    kinds: Sequence[str],
    force: bool,
    strict: bool,
) -> None:
    """Download a finished job's files. Resumes an interrupted download."""
    found = context.job(job)
    done = get_files(found, folder or Path(found.id), merged=merged, exports=kinds, force=force)
    if done.merged and done.merged.skipped and strict:
        raise SystemExit(Exit.SOME_FAILED)


def get_files(
    job: Job,
    folder: Path,
    *,
    merged: bool = False,
    exports: Sequence[str] = (),
    force: bool = False,
) -> Delivery:
    """Do what `Job.download` does, with a bar on a terminal; print what was written.

    Raises:
        Interrupted: the user interrupted it.
    """
    from dropbatch.cli.bars import FilesBar

    bar = FilesBar()
    try:
        done = job.download(folder, bar.show, merged=merged, exports=exports, force=force)
    except KeyboardInterrupt:
        raise Interrupted("\nInterrupted. The same command resumes the download.") from None
    finally:
        bar.close()
    for file in done.files:
        emit({"path": str(file.path), "bytes": file.size, "fetched": file.fetched}, str(file.path))
    if done.merged:
        _show_merged(done.merged)
    for one in done.exports:
        emit({**vars(one), "path": str(one.path)}, one.path)
        if one.left_out:
            click.echo(f"{one.left_out:,} failed records are left out of {one.path.name}.", err=True)
        if one.renamed:
            click.echo(
                f"{one.path.name}: {one.renamed:,} of {one.records:,} ids are made of the job's id and the record's, "
                "whose reference is missing, longer than 64 bytes, or another record's.",
                err=True,
            )
    return done


def _show_merged(done: Merged) -> None:
    for one in done.skipped:
        click.echo(f"Retry {one.job_id} is skipped: {one.message}", err=True)
    shown = {
        "path": str(done.path),
        "errors": done.errors and str(done.errors),
        "replaced": done.replaced,
        "retries": done.retries,
        "skipped": [one._asdict() for one in done.skipped],
    }
    line = f"{done.path}  answers replaced: {done.replaced:,}, retries: {done.retries:,}"
    emit(shown, line if done.errors is None else f"{line}\n{done.errors}")


@click.command()
@click.argument("job")
@options
@click.option("--wait", is_flag=True, help="Wait until the new job is over.")
@strict
@as_json
@pass_context
def retry(context: Context, *, job: str, options: Sequence[str], wait: bool, strict: bool) -> None:
    """Try a job's failed records again, as a new job with the same options."""
    from dropbatch.cli.following import Following

    made = context.job(job).retry(**parse_options(options))
    emit({"path": made.path, "job_id": made.id}, f"s3://{context.stack.bucket}/inbox/{made.path}  job {made.id}")
    if wait:
        raise SystemExit(Following(strict=strict).follow([made]))


@click.command()
@click.argument("job")
@click.option("--open", "open_", is_flag=True, help="Open it in a browser.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Where to save it."
)
@as_json
@pass_context
def report(context: Context, *, job: str, open_: bool, output: Path | None) -> None:
    """Download a finished job's report page."""
    from dropbatch.cli.reports import save_report

    found = context.job(job)
    path = save_report(found, output or Path(f"{found.id}.html"))
    emit({"job_id": found.id, "path": str(path)}, path)
    if open_:
        click.launch(str(path.resolve()))
