"""Downloading results. Each file is checked against the manifest's SHA-256; an interrupted download is resumed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropbatch import aws
from dropbatch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dropbatch.job import Job

CHUNK_BYTES = 1 << 20
MAX_ATTEMPTS = 5
"""Attempts to read a file when the connection is cut off."""


@dataclass(frozen=True)
class Downloaded:
    """A file on this machine; `fetched` is how many of its bytes were downloaded now."""

    path: Path
    size: int
    fetched: int


def download(job: Job, folder: Path, progress: Callable[[str, int, int], None]) -> list[Downloaded]:
    """Download a job's files, its manifest last.

    Args:
        job: must be over.
        folder: created if it does not exist.
        progress: called with a file's name, the bytes on this machine, and its size.

    Raises:
        Error: the job is not over, or a file does not match the manifest.
    """
    manifest = job.manifest()
    folder.mkdir(parents=True, exist_ok=True)
    done = [download_file(job, folder, entry, progress) for entry in manifest["files"]]
    target = folder / "manifest.json"
    target.write_text(json.dumps(manifest, indent=1) + "\n")
    return [*done, Downloaded(target, target.stat().st_size, 0)]


def download_file(
    job: Job, folder: Path, entry: dict[str, Any], progress: Callable[[str, int, int], None]
) -> Downloaded:
    """Download one file of a manifest, unless it is there already.

    Raises:
        Error: it does not match the manifest.
    """
    name, size = entry["name"], entry["bytes"]
    if "/" in name or name in {"", ".", ".."}:
        raise Error(f"The manifest of job {job.id} names a file {name!r}, which is not the name of a result.")
    target, partial = folder / name, folder / f"{name}.part"
    if target.exists() and target.stat().st_size == size and entry["sha256"] in {None, _sha256(target).hexdigest()}:
        progress(name, size, size)
        return Downloaded(target, size, 0)
    there = partial.stat().st_size if partial.exists() else 0
    if there > size:
        partial.unlink()
        there = 0
    partial.touch()
    digest = _sha256(partial)
    held = there
    with partial.open("ab") as file:
        for block in blocks_of(job, entry, there):
            file.write(block)
            digest.update(block)
            held += len(block)
            progress(name, held, size)
    if entry["sha256"] is not None and digest.hexdigest() != entry["sha256"]:
        partial.unlink()
        raise Error(
            f"{job.folder}{name} does not match the manifest: its SHA-256 is {digest.hexdigest()}, expected "
            f"{entry['sha256']}. The download was deleted. Run the command again; if it fails again, the object was "
            "changed."
        )
    partial.replace(target)
    return Downloaded(target, size, size - there)


def blocks_of(job: Job, entry: dict[str, Any], start: int = 0) -> Iterator[bytes]:
    """The bytes of one file of a manifest; read on where a connection was cut off.

    Args:
        job: the job.
        entry: of its manifest's `files`.
        start: where to begin.
    """
    held, size = start, entry["bytes"]
    for attempt in range(MAX_ATTEMPTS):
        if held >= size:
            return
        with aws.explained(retry=attempt + 1 < MAX_ATTEMPTS):
            answer = job.stack.s3.get_object(
                Bucket=job.stack.bucket, Key=job.folder + entry["name"], Range=f"bytes={held}-"
            )
            for block in answer["Body"].iter_chunks(CHUNK_BYTES):
                held += len(block)
                yield block


def blocks_of_file(path: Path) -> Iterator[bytes]:
    """The bytes of a file on this machine."""
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            yield block


def _sha256(path: Path) -> Any:  # noqa: ANN401 - hashlib names no type for it
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")
