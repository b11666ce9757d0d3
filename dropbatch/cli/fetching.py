"""One job's files are downloaded, with a bar on a terminal, and what was written is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dropbatch.cli.bars import FilesBar
from dropbatch.cli.context import emit, note
from dropbatch.cli.exits import in_options
from dropbatch.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dropbatch.client.export import Delivery, Exported
    from dropbatch.client.job import Job
    from dropbatch.client.merge import Merged


def get_files(
    job: Job,
    folder: Path,
    *,
    merged: bool = False,
    exports: Sequence[str] = (),
    columns: bool = True,
    force: bool = False,
) -> Delivery:
    """Do what `Job.download` does, with a bar on a terminal; print what was written.

    Raises:
        Interrupted: the user interrupted it.
    """
    bar = FilesBar()
    try:
        done = job.download(
            folder, bar.show, merged=merged, exports=exports, columns=columns, force=force
        )
    except KeyboardInterrupt:
        raise Interrupted("\nInterrupted. The same command resumes the download.") from None
    finally:
        bar.close()
    for file in done.files:
        emit({"path": str(file.path), "bytes": file.size, "fetched": file.fetched}, str(file.path))
    if done.merged:
        show_merged(done.merged)
    for one in done.exports:
        emit({**vars(one), "path": str(one.path)}, one.path)
        note_export(one)
    return done


def failure_of(job: Job, manifest: dict[str, Any]) -> str:
    """What to say of a job that is over and not completed."""
    error = manifest["error"]
    why = f": {error['code']}: {in_options(error['message'])}" if error else ""
    return f"{job.id}  {manifest['state']}{why}"


def note_export(one: Exported, of: str = "") -> None:
    """Say what a file lacks, or has otherwise.

    `of` comes before, and names the job where there are several.
    """
    if one.left_out:
        note(f"{of}{one.left_out:,} failed records are left out of {one.path.name}.")
    if one.renamed:
        note(
            f"{of}{one.path.name}: {one.renamed:,} of {one.records:,} ids are made of the "
            "job's id and the record's, "
            "whose reference is missing, longer than 64 bytes, or another record's."
        )


def show_merged(done: Merged, of: str = "") -> None:
    """Print what was merged, and say what was not.

    `of` comes before, and names the job where there are several.
    """
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
