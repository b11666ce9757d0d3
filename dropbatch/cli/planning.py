"""`put`: which files its arguments mean, and under which names they are uploaded."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dropbatch.cli.context import note
from dropbatch.client import aws
from dropbatch.client.download import MANIFEST, read_manifest, written_names
from dropbatch.client.sources import S3, is_stored, stored_name, upload_name
from dropbatch.client.submit import path_in_place
from dropbatch.client.upload import upload_key
from dropbatch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dropbatch.client.stack import Stack

MAX_NAMES = 20
"""At most this many files are named in a message."""
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Planned(NamedTuple):
    """A file that is to be uploaded.

    Attributes:
        source: a path, `-` for standard input, or `s3://bucket/key`.
        name: its path under `inbox/`; if it ends in a slash, the folder; None for its own name.
    """

    source: str
    name: str | None


def plan(
    sources: Sequence[str], name: str | None, stack: Callable[[], Stack]
) -> tuple[list[Planned], bool]:
    """The files that arguments mean, and whether they are several, or may be.

    Args:
        sources: the arguments.
        name: the option.
        stack: finds the stack, which is only asked for what lies in S3.

    Raises:
        UsageError: one does not exist or has no files, two would have one name, or --name names a
            file where a folder is needed.
    """
    many = len(sources) > 1 or any(map(_is_folder, sources))
    if name is not None and not name.endswith("/") and many:
        raise UsageError("--name must end with a slash when several files are uploaded.")
    if sources.count("-") > 1:
        raise UsageError("Standard input can be uploaded once.")
    if "" in sources:  # As of an empty variable: the current folder is not meant.
        raise UsageError("A file's name is empty.")
    left_out: list[str] = []
    found: dict[str, Planned] = {}
    for source in sources:
        before = len(found)
        for one in _files_of(source, name, stack, left_out):
            key = _key(one)
            if key in found:
                raise UsageError(
                    f"{found[key].source} and {one.source} would both be {key}. Upload "
                    "their folder, or give each "
                    "another --name."
                )
            found[key] = one
        if len(found) == before:
            _note_left_out(left_out)
            raise UsageError(f"{source} has no files to upload.")
    _note_left_out(left_out)
    return list(found.values()), many


def _note_left_out(left_out: Sequence[str]) -> None:
    for left in left_out[:MAX_NAMES]:
        note(f"left out: {left}")
    if len(left_out) > MAX_NAMES:
        note(f"left out: {len(left_out) - MAX_NAMES:,} more")


def _is_folder(source: str) -> bool:
    return source.endswith("/") if is_stored(source) else Path(source).is_dir()


def _key(one: Planned) -> str:
    """Its key; what has no name of its own gets one that no other has."""
    own = "" if one.source == "-" else one.source.rpartition("/")[2]
    if own:
        own = stored_name(one.source) if is_stored(one.source) else upload_name(Path(one.source))
    if not own and (one.name is None or one.name.endswith("/")):
        return f"{one.source} "
    return upload_key(one.name, own)


def _files_of(
    source: str, name: str | None, stack: Callable[[], Stack], left_out: list[str]
) -> Iterator[Planned]:
    path = Path(source)
    if is_stored(source):
        if _is_folder(source):
            yield from _stored(stack(), source, name or "", left_out)
        else:
            yield Planned(source, path_in_place(stack(), source) if name is None else name)
    elif path.is_dir():
        yield from _files_in(path.resolve(), name or "", left_out)
    elif source != "-" and not path.exists():
        raise UsageError(f"{source} does not exist.")
    else:
        yield Planned(source, name)


def _files_in(top: Path, name: str, left_out: list[str]) -> Iterator[Planned]:
    for place, folders, files in os.walk(top, onerror=_unreadable):
        for one in sorted(folders):
            if one.startswith((".", "_")):
                left_out.append(str(Path(place, one)))
            elif Path(place, one).is_symlink():
                left_out.append(f"{Path(place, one)} (a link to a folder)")
        folders[:] = sorted(one for one in folders if not one.startswith((".", "_")))
        results = _results_in(Path(place), files)
        left_out += sorted(set(results.values()))
        for file in sorted(files):
            path = Path(place, file)
            if file in results:
                continue
            if file.startswith((".", "_")):
                left_out.append(str(path))
            elif kind := _unusual(path):
                left_out.append(f"{path} ({kind})")
            else:
                yield Planned(str(path), name + path.relative_to(top.parent).as_posix())


def _results_in(place: Path, names: Sequence[str]) -> dict[str, str]:
    """The files in a folder that `get` wrote, each with what is said of those of its job."""
    found = dict[str, str]()
    for name in (MANIFEST, f"{MANIFEST}.part"):
        if name in names and (manifest := read_manifest(place / name)):
            told = f"{place} (files of job {manifest['job_id']})"
            found |= dict.fromkeys(written_names(manifest).intersection(names), told)
    return found


def _unreadable(error: OSError) -> None:
    raise UsageError(f"{error.filename} cannot be read: {error.strerror}.")


def _unusual(path: Path) -> str:
    """What a file in a folder is, if it is no regular one: to read a pipe would wait for ever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "a link to nothing"
    return "" if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "no file")


def _stored(stack: Stack, url: str, name: str, left_out: list[str]) -> Iterator[Planned]:
    """The objects under a prefix of a bucket, under the name of the prefix's last folder.

    Those of the source bucket have the path there under which the stack reads them.
    """
    bucket, _, prefix = url.removeprefix(S3).partition("/")
    top = len(prefix.rstrip("/").rpartition("/")[0])
    pages = stack.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    with aws.explained():
        for page in pages:
            for entry in page.get("Contents", []):
                key = entry["Key"]
                if any(part.startswith((".", "_")) for part in key[len(prefix) :].split("/")):
                    left_out.append(f"{S3}{bucket}/{key}")
                elif not key.endswith("/"):  # What consoles make of a folder.
                    one = f"{S3}{bucket}/{key}"
                    in_place = None if name else path_in_place(stack, one)
                    yield Planned(one, in_place or name + key[top:].lstrip("/"))


def some(names: Sequence[str]) -> str:
    """Names for a message."""
    shown = ", ".join(names[:MAX_NAMES]) or "nothing"
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES:,} more"
