"""`put`: which files its arguments mean, under which names, and where their results will lie."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from dropbatch.cli.context import note
from dropbatch.client import aws
from dropbatch.client.download import MANIFEST, read_manifest, writing, written_names
from dropbatch.client.sources import is_stored, stored_name, upload_name
from dropbatch.client.stack import S3, Stack
from dropbatch.client.submit import EVER, path_in_place
from dropbatch.client.upload import upload_key
from dropbatch.core.names import is_attachment
from dropbatch.errors import UsageError

MAX_NAMES = 20
"""At most this many files are named in a message."""
BEGUN = ".dropbatch-put"
"""The file in a folder of results that says when the first `put` with it began."""
CLOCK_MINUTES = 15
"""AWS refuses calls from machines whose clocks differ by more."""


class Planned(NamedTuple):
    """A file that is to be uploaded, and its path or folder under `inbox/`, if that is named."""

    source: str
    name: str | None


def some(names: Sequence[str]) -> str:
    """Names for a message."""
    shown = ", ".join(names[:MAX_NAMES]) or "nothing"
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES:,} more"


class Plan(NamedTuple):
    """What is uploaded.

    Attributes:
        files: that become jobs.
        many: whether these are or may be several.
        attached: pictures and sounds in folders, which records may name.
    """

    files: list[Planned]
    many: bool
    attached: list[Planned]


def plan(sources: Sequence[str], name: str | None, stack: Callable[[], Stack]) -> Plan:
    """The files that the arguments and --name mean."""
    many = len(sources) > 1 or any(map(_is_folder, sources))
    if name is not None and not name.endswith("/") and many:
        raise UsageError("--name must end with a slash when several files are uploaded.")
    if sources.count("-") > 1:
        raise UsageError("Standard input can be uploaded once.")
    if "" in sources:  # As of an empty variable: the current folder is not meant.
        raise UsageError("A file's name is empty.")
    left_out: list[str] = []
    found: dict[str, Planned] = {}
    attached: list[Planned] = []
    for source in sources:
        files = list(_files_of(source, name, stack, left_out))
        if not files:
            _note_left_out(left_out)
            raise UsageError(f"{source} has no files to upload.")
        for one in files:
            if not is_attachment(one.name or ""):
                _add(one, found)
            elif is_stored(one.source):  # The stack reads those of its source bucket in place.
                left_out.append(one.source)
            else:
                attached.append(one)
    _note_left_out(left_out)
    return Plan(list(found.values()), many, attached)


def _add(one: Planned, found: dict[str, Planned]) -> None:
    key = _key(one)
    if key in found:
        raise UsageError(
            f"{found[key].source} and {one.source} would both be {key}. Upload their folder, or "
            "give each another --name."
        )
    found[key] = one


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
        left_out += _unwanted_folders(Path(place), folders)
        folders[:] = sorted(one for one in folders if not one.startswith((".", "_")))
        results = _results_in(Path(place), files)
        left_out += sorted(set(results.values()))
        for file in sorted(set(files) - results.keys()):
            path = Path(place, file)
            if file.startswith((".", "_")):
                left_out.append(str(path))
            elif not path.is_file():  # To read a pipe would wait for ever.
                left_out.append(f"{path} (no file)")
            else:
                yield Planned(str(path), name + path.relative_to(top.parent).as_posix())


def _unwanted_folders(place: Path, folders: Sequence[str]) -> Iterator[str]:
    for one in sorted(folders):
        if one.startswith((".", "_")):
            yield str(place / one)
        elif (place / one).is_symlink():
            yield f"{place / one} (a link to a folder)"


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


def _stored(stack: Stack, url: str, name: str, left_out: list[str]) -> Iterator[Planned]:
    """The objects under a prefix, below its last folder's name, or as the stack reads them."""
    bucket, _, prefix = url.removeprefix(S3).partition("/")
    top = len(prefix.rstrip("/").rpartition("/")[0])
    pages = stack.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    with aws.explained():
        for key in pages.search("Contents[].Key"):
            if key is None or key.endswith("/"):  # What consoles make of a folder.
                continue
            one = f"{S3}{bucket}/{key}"
            if any(part.startswith((".", "_")) for part in key[len(prefix) :].split("/")):
                left_out.append(one)
                continue
            in_place = None if name else path_in_place(stack, one)
            yield Planned(one, in_place or name + key[top:].lstrip("/"))


def path_in(folder: Path, path: str) -> Path:
    """The folder of a job's results: its path, below a folder that it cannot leave."""
    parts = [one.replace("\\", "%5C").replace("\0", "%00") for one in path.split("/")]
    return folder.joinpath(
        *("%" + one.replace(".", "%2E") if one in {"", ".", ".."} else one for one in parts)
    )


def resumes_since(folder: Path | None, *, skip_existing: bool) -> datetime | None:
    """Since when what the bucket holds need not be sent again; None: everything is sent."""
    if skip_existing:
        return EVER
    return _begun(folder) if folder else None


def _begun(folder: Path) -> datetime | None:
    """When the `put` began whose results the folder is for; None if it is new."""
    try:
        at = json.loads((folder / BEGUN).read_bytes())["began"]
        return datetime.fromisoformat(at) - timedelta(minutes=CLOCK_MINUTES)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        message = f"{folder / BEGUN} was changed. Delete it, or choose another folder."
        raise UsageError(message) from None


def begin(folder: Path, places: Mapping[tuple[str, str], Path]) -> None:
    """Note in a folder of results that a `put` begins; nothing of it is sent yet.

    `places`: where each job's files will lie, by bucket and key of its upload. One that has another
    job's files is refused.
    """
    has_begun = (folder / BEGUN).exists()
    for of, place in places.items():
        source = (read_manifest(place / MANIFEST) or {}).get("source", {})
        is_ours = has_begun and (source.get("bucket"), source.get("key")) == of
        if (place / MANIFEST).exists() and not is_ours:
            message = f"{place} has the files of another job. Choose another folder with --get."
            raise UsageError(message)
    if has_begun:
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / BEGUN).write_text(json.dumps({"began": datetime.now(UTC).isoformat()}) + "\n")
