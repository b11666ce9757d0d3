"""What a user does with a job's results: download, read, merge, export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

EXPORTS = {
    "parquet": "output.parquet",
    "csv": "output.as.csv",
    "vectorize": "output.vectorize.ndjson",
}
"""The file that each export of results writes on the user's machine."""
_GONE = {
    "arrow": "pyarrow.feather.write_feather(job.to_arrow(), path)",
    "jsonl": 'job.to_pandas().to_json(path, orient="records", lines=True)',
    "npy": 'numpy.save(path, numpy.stack(job.to_pandas()["embedding"].dropna()))',
}


def check_kinds(kinds: Iterable[str]) -> None:
    """Refuse exports that do not exist.

    Raises:
        UsageError: one does not.
    """
    for kind in kinds:
        if kind in _GONE:
            raise UsageError(f"The export {kind} is gone since 0.9. In Python: {_GONE[kind]}")
        if kind not in EXPORTS:
            raise UsageError(
                f"There is no export {kind!r}. It must be one of {', '.join(EXPORTS)}."
            )
