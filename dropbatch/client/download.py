"""Downloading results: each file is checked against the manifest's SHA-256, and resumed.

A folder has one job's files. Whose it is stands in its manifest, in `manifest.json.part` until all
is there, so that no file of another job or program is replaced unasked.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dropbatch.client.job import Job
from dropbatch.client.stack import CHUNK_BYTES, blocks
from dropbatch.errors import Error, Taken, UsageError

MANIFEST = "manifest.json"
BEDROCK_MANIFEST = "manifest.json.out"
MERGED_ERRORS = "errors.merged.jsonl"

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


@dataclass(frozen=True)
class Downloaded:
    """A file on this machine; `fetched` is how many of its bytes were downloaded now."""

    path: Path
    size: int
    fetched: int


def check_kinds(kinds: Iterable[str]) -> None:
    """Refuse exports that do not exist."""
    for kind in kinds:
        if kind in _GONE:
            raise UsageError(f"The export {kind} is gone since 0.9. In Python: {_GONE[kind]}")
        if kind not in EXPORTS:
            raise UsageError(
                f"There is no export {kind!r}. It must be one of {', '.join(EXPORTS)}."
            )


def download(
    job: Job,
    folder: Path,
    progress: Callable[[str, int, int], None],
    *,
    beside: Iterable[str] = (),
    merged: bool = False,
    force: bool = False,
    manifest: dict[str, Any] | None = None,
) -> list[Downloaded]:
    """Download a job's files, its manifest last."""
    manifest = manifest or job.manifest()
    refuse_paths(manifest)
    entries = [*manifest["files"], *_bedrock_manifest(job, manifest)]
    outputs = [one["name"] for one in manifest["files"] if merged and one["kind"] == "output"]
    more = [*beside, *map(merged_name, outputs), *([MERGED_ERRORS] if outputs else [])]
    written = [*entries, *({"name": name, "sha256": None} for name in more)]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        partial = _claim(folder, manifest, written, force=force)
        done: list[Downloaded] = []
        try:
            done.extend(download_file(job, folder, entry, progress) for entry in entries)
        except Error:
            if not done:
                partial.unlink()
            raise
        target = partial.replace(folder / MANIFEST)
        return [*done, Downloaded(target, target.stat().st_size, 0)]


def _bedrock_manifest(job: Job, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Bedrock's own manifest, which is not among a job's files."""
    if manifest["format"] != "bedrock" or manifest["error"]:
        return []
    found = job.stack.ask("head_object", job.folder + BEDROCK_MANIFEST)
    size = found and found["ContentLength"]
    entry = {"name": BEDROCK_MANIFEST, "kind": "manifest", "bytes": size, "sha256": None}
    return [entry] if found else []


def _claim(
    folder: Path, manifest: dict[str, Any], entries: list[dict[str, Any]], *, force: bool
) -> Path:
    """Make sure that a folder has no other job's files, and write down whose it is."""
    final, partial = folder / MANIFEST, folder / f"{MANIFEST}.part"
    owners = [owner for one in (final, partial) if (owner := read_manifest(one))]
    others = [owner for owner in owners if owner["job_id"] != manifest["job_id"]]
    if others and not force:
        raise Taken(
            f"{folder} has the files of job {others[0]['job_id']}. Choose another folder, or force "
            "it."
        )
    for owner in others:
        for name in written_names(owner):
            (folder / name).unlink(missing_ok=True)
    if len(others) == len(owners):
        for entry in entries:
            _refuse_others(folder, entry, force=force)
        if final.exists() and not force:
            raise _not_ours(final)
    partial.write_text(json.dumps(manifest, indent=1) + "\n")
    return partial


def _refuse_others(folder: Path, entry: dict[str, Any], *, force: bool) -> None:
    target = folder / entry["name"]
    if target.exists() and not _is_whole(target, entry["sha256"]):
        if not force:
            raise _not_ours(target)
        target.unlink()
    if entry["sha256"] is None:  # Nothing would tell whether the beginning of a file is this one's.
        target.with_name(f"{target.name}.part").unlink(missing_ok=True)


def _not_ours(path: Path) -> Taken:
    return Taken(f"{path} exists, and is no file of this job. Choose another folder, or force it.")


def refuse_paths(manifest: dict[str, Any]) -> None:
    """Make sure that no name in a manifest leads out of the folder."""
    for entry in manifest["files"]:
        if not is_file_name(entry["name"]):
            raise Error(
                f"The manifest of job {manifest['job_id']} names a file {entry['name']!r}, which "
                "is not the name of a result."
            )


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a job's files; None if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("job_id"), str):
        return None
    files = found.get("files")
    is_one = isinstance(files, list) and all(isinstance(one, dict) for one in files)
    return found if is_one else None


def remove_unchanged(folder: Path, manifest: dict[str, Any]) -> None:
    """Remove a job's files that are as they were downloaded, or in part, and its manifest."""
    files = {one["name"]: one.get("sha256") for one in _named_files(manifest)}
    own = {MANIFEST, *([BEDROCK_MANIFEST] if manifest.get("format") == "bedrock" else [])}
    with writing(folder):
        own |= {name for name, sha256 in files.items() if _is_whole(folder / name, sha256)}
        for name in {*own, *(f"{name}.part" for name in {*files, MANIFEST})}:
            (folder / name).unlink(missing_ok=True)


def written_names(manifest: dict[str, Any]) -> set[str]:
    """Names of the files that `get` may have written for a job, in whole or in part."""
    files = [one["name"] for one in _named_files(manifest)]
    made = {*EXPORTS.values(), *map(merged_name, files), MERGED_ERRORS, BEDROCK_MANIFEST, MANIFEST}
    whole = {*files, *made}
    return whole | {f"{name}.part" for name in whole}


def _named_files(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in manifest["files"] if is_file_name(one.get("name"))]


def merged_name(output: str) -> str:
    """The name of an output with the answers of retries."""
    stem, dot, suffix = output.rpartition(".")
    return f"{stem}.merged{dot}{suffix}"


def is_file_name(name: object) -> TypeGuard[str]:
    """Whether a manifest's name of a file is one, and no path on any system."""
    return isinstance(name, str) and not set("/\\:\0") & set(name) and name not in {"", ".", ".."}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the errors of writing a file or folder into messages."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
            raise
        kind = Error if error.errno in {errno.ENOSPC, errno.EDQUOT} else UsageError
        raise kind(f"{error.filename or path} cannot be written: {error.strerror}.") from error


def download_file(
    job: Job, folder: Path, entry: dict[str, Any], progress: Callable[[str, int, int], None]
) -> Downloaded:
    """Download one file of a manifest, unless it is there already."""
    name, size, sha256 = entry["name"], entry["bytes"], entry["sha256"]
    target, partial = folder / name, folder / f"{name}.part"
    is_there = target.is_file() and target.stat().st_size == size
    if is_there and (sha256 is None or _is_whole(target, sha256)):
        progress(name, size, size)
        return Downloaded(target, size, 0)
    there = partial.stat().st_size if partial.exists() else 0
    if there > size:
        partial.unlink()
        there = 0
    digest = _append(job, entry, partial, progress)
    if there and sha256 not in {None, digest}:
        there = 0  # What was there is not this file's beginning.
        partial.unlink()
        digest = _append(job, entry, partial, progress)
    if sha256 not in {None, digest}:
        partial.unlink()
        raise Error(
            f"{job.folder}{name} does not match the manifest: its SHA-256 is {digest}, expected "
            f"{sha256}. The download was deleted. Run the command again; if it fails again, the "
            "object was changed."
        )
    partial.replace(target)
    return Downloaded(target, size, size - there)


def _append(
    job: Job, entry: dict[str, Any], partial: Path, progress: Callable[[str, int, int], None]
) -> str:
    partial.touch()
    digest = _sha256(partial)
    held = partial.stat().st_size
    with partial.open("ab") as file:
        for block in blocks_of(job, entry, held):
            file.write(block)
            digest.update(block)
            held += len(block)
            progress(entry["name"], held, entry["bytes"])
    return str(digest.hexdigest())


def blocks_of(job: Job, entry: dict[str, Any], start: int = 0) -> Iterator[bytes]:
    """The bytes of one file of a manifest; read on where a connection was cut off."""
    place = {"Bucket": job.stack.bucket, "Key": job.folder + entry["name"]}
    yield from blocks(job.stack.s3, place, entry["bytes"], start)


def blocks_of_file(path: Path) -> Iterator[bytes]:
    """The bytes of a file on this machine."""
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            yield block


def _is_whole(path: Path, sha256: str | None) -> bool:
    """Whether a file has the content with this SHA-256; not without one."""
    return bool(sha256) and path.is_file() and _sha256(path).hexdigest() == sha256


def _sha256(path: Path) -> Any:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")
