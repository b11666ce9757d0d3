"""Results: `get`, `retry`, `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dropbatch.cli.context import Context, as_json, emit, options, parse_options, pass_context, strict
from dropbatch.cli.exits import Exit
from dropbatch.errors import Interrupted
from dropbatch.rules.names import EXPORTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.job import Job
    from dropbatch.results.merging import Merged


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
    as_json: bool,
) -> None:
    """Download a finished job's files. Resumes an interrupted download."""
    from dropbatch.results.downloads import writing
    from dropbatch.results.exports import check_exports, export_folder

    found = context.job(job)
    target = folder or Path(found.id)
    if kinds:
        check_exports(found, kinds, merged=merged)
    files = [EXPORTS[kind] for kind in kinds]
    get_files(found, target, beside=files, merged=merged, force=force, as_json=as_json)
    newest = get_merged(found, target, as_json=as_json) if merged else None
    for kind in kinds:
        with writing(target):
            exported = export_folder(target, kind, newest.files() if newest else None)
        if as_json:
            emit({"path": str(exported.path), "records": exported.records, "left_out": exported.left_out})
            continue
        click.echo(exported.path)
        if exported.left_out:
            click.echo(f"{exported.left_out:,} failed records are left out of {exported.path.name}.", err=True)
    if newest and newest.skipped and strict:
        raise SystemExit(Exit.SOME_FAILED)


def get_merged(job: Job, folder: Path, *, as_json: bool) -> Merged:
    """Write a job's output with the answers of its retries; name what could not be placed."""
    from dropbatch.results.downloads import writing
    from dropbatch.results.merging import merge_retries

    with writing(folder):
        result = merge_retries(job, folder)
    for one in result.skipped:
        click.echo(f"Retry {one.job_id} is skipped: {one.message}", err=True)
    errors = result.errors if result.errors.exists() else None
    if as_json:
        skipped = [one._asdict() for one in result.skipped]
        emit(
            {
                "path": str(result.path),
                "errors": errors and str(errors),
                "replaced": result.replaced,
                "retries": result.retries,
                "skipped": skipped,
            }
        )
    else:
        click.echo(f"{result.path}  answers replaced: {result.replaced:,}, retries: {result.retries:,}")
        if errors:
            click.echo(errors)
    return result


def get_files(
    job: Job, folder: Path, *, beside: Sequence[str] = (), merged: bool = False, force: bool = False, as_json: bool
) -> None:
    """Download a job's files and print their paths.

    Args:
        job: must be over.
        folder: created if it does not exist.
        beside: names of the files that will be written there too.
        merged: the output with the answers of retries will be written there too.
        force: replace what another job or program wrote there.
        as_json: print JSON.

    Raises:
        Error: the job is not over, a file does not match the manifest, or the user interrupted it.
    """
    from dropbatch.cli.bars import FilesBar
    from dropbatch.results.downloads import download

    bar = FilesBar()
    try:
        files = download(job, folder, bar.show, beside=beside, merged=merged, force=force)
    except KeyboardInterrupt:
        raise Interrupted("\nInterrupted. The same command resumes the download.") from None
    finally:
        bar.close()
    for file in files:
        if as_json:
            emit({"path": str(file.path), "bytes": file.size, "fetched": file.fetched})
        else:
            click.echo(file.path)


@click.command()
@click.argument("job")
@options
@click.option("--wait", is_flag=True, help="Wait until the new job is over.")
@strict
@as_json
@pass_context
def retry(context: Context, *, job: str, options: Sequence[str], wait: bool, strict: bool, as_json: bool) -> None:
    """Try a job's failed records again, as a new job with the same options."""
    from dropbatch.cli.verbs.look import wait_and_report

    made = context.job(job).retry(**parse_options(options))
    if as_json:
        emit({"path": made.path, "job_id": made.id})
    else:
        click.echo(f"s3://{context.stack.bucket}/inbox/{made.path}  job {made.id}")
    if wait:
        raise SystemExit(wait_and_report([made], strict=strict, as_json=as_json))


@click.command()
@click.argument("job")
@click.option("--open", "open_", is_flag=True, help="Open it in a browser.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Where to save it."
)
@as_json
@pass_context
def report(context: Context, *, job: str, open_: bool, output: Path | None, as_json: bool) -> None:
    """Download a finished job's report page."""
    from dropbatch.cli.reports import save_report

    found = context.job(job)
    path = save_report(found, output or Path(f"{found.id}.html"))
    if as_json:
        emit({"job_id": found.id, "path": str(path)})
    else:
        click.echo(path)
    if open_:
        click.launch(str(path.resolve()))
