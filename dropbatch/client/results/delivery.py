"""What `get` and `Job.download` do: a finished job's files, its merged output, its exports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dropbatch.client.results import EXPORTS, check_kinds
from dropbatch.client.results.downloads import download, writing
from dropbatch.client.results.merging import merge_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from dropbatch.client.job_files import JobFiles
    from dropbatch.client.results.downloads import Downloaded
    from dropbatch.client.results.exports import Exported
    from dropbatch.client.results.merging import Merged


class Delivery(NamedTuple):
    """What was written.

    Attributes:
        files: the job's own files, the manifest last.
        merged: the output with the answers of retries; None if it was not wanted.
        exports: one file for each export, in their order.
    """

    files: list[Downloaded]
    merged: Merged | None
    exports: list[Exported]


def deliver(
    job: JobFiles,
    folder: Path,
    progress: Callable[[str, int, int], None],
    *,
    merged: bool = False,
    exports: Collection[str] = (),
    columns: bool = True,
    force: bool = False,
    manifest: dict[str, Any] | None = None,
) -> Delivery:
    """Do what `dropbatch.client.job.Job.download` says.

    Read the manifest only if it is not given.
    """
    exports = (exports,) if isinstance(exports, str) else exports
    check_kinds(exports)
    if exports:
        from dropbatch.client.results.exports import check_exports, export_folder

        check_exports(job, exports, merged=merged)
    beside = [EXPORTS[kind] for kind in exports]
    files = download(
        job, folder, progress, beside=beside, merged=merged, force=force, manifest=manifest
    )
    with writing(folder):
        newest = merge_retries(job, folder) if merged else None
        records = newest.files() if newest else None
        made = [export_folder(folder, kind, records, columns=columns) for kind in exports]
    return Delivery(files, newest, made)
