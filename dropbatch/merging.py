"""`get --merged`: a job's output with each record's newest answer, from the job and from its retries.

Record k of a retry is line k of the retry file, which holds the job's failed records in order. Outputs are read side by
side, so that memory does not grow with them.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dropbatch import aws
from dropbatch.downloads import download_file
from dropbatch.errors import Error, NotFound
from dropbatch.jobs import find_job
from dropbatch.names import JOB_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dropbatch.job import Job

UNREADABLE_CODES = frozenset({"invalid_json", "not_an_object", "invalid_utf8", "too_large"})
"""Codes of records that are in no retry file."""
MAX_GENERATIONS = 20
"""How many generations of retries are followed: retries of a job, retries of these, and so on."""
_ID = re.compile(rb'\{"id":\d+,')


@dataclass(frozen=True)
class Merged:
    """The merged output, and how many answers of how many retries are in it."""

    path: Path
    replaced: int
    retries: int


def merge_retries(job: Job, folder: Path) -> Merged:
    """Write a job's output with the answers of its retries.

    Args:
        job: its files are in the folder.
        folder: where the merged output is written.

    Raises:
        Error: a retry is not over, or its records are not this job's.
    """
    output = _file_of(job.manifest(), "output")
    if output is None:
        raise NotFound(f"Job {job.id} has no output.")
    name = Path(output["name"])
    target = folder / f"{name.stem}.merged{name.suffix}"
    with TemporaryDirectory(dir=folder) as scratch:
        result = _merge_job(job, Path(scratch), 0)
        result.path.replace(target)
    return Merged(target, result.replaced, result.retries)


def retries_of(job: Job) -> list[Job]:
    """The finished jobs that tried a job's failed records again, oldest first."""
    with aws.explained():
        pages = job.stack.s3.get_paginator("list_objects_v2").paginate(
            Bucket=job.stack.bucket, Prefix=f"{job.folder}retries/"
        )
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    ids = sorted(key.rpartition("/")[2].removesuffix(".json") for key in keys)
    return [find_job(job.stack, one) for one in ids if JOB_ID.fullmatch(one)]


def _merge_job(job: Job, scratch: Path, generation: int) -> Merged:
    """The job's output with the answers of its retries, as a new file in a folder for temporary files."""
    if generation >= MAX_GENERATIONS:
        raise Error(f"Job {job.id} is the {generation}th retry of a retry. Merge a later one.")
    manifest = job.manifest()
    own = scratch / job.id
    own.mkdir()
    files = {kind: _file_of(manifest, kind) for kind in ("output", "errors", "retry")}
    fetched = {
        kind: download_file(job, own, entry, lambda *_: None).path
        for kind, entry in files.items()
        if entry and kind != "retry"
    }
    if "output" not in fetched:
        return Merged(own / "none", 0, 0)
    if files["retry"] is None or "errors" not in fetched:
        return Merged(fetched["output"], 0, 0)
    current, replaced, retries = fetched["output"], set[int](), 0
    for number, child in enumerate(retries_of(job)):
        newer = _merge_job(child, scratch, generation + 1)
        if not newer.path.exists():
            continue
        places = _places(fetched["errors"], files["retry"]["lines"], newer.path, child)
        merged = own / f"merged-{number}"
        replaced.update(overlay(current, newer.path, places, merged))
        current, retries = merged, retries + 1 + newer.retries
    return Merged(current, len(replaced), retries)


def overlay(current: Path, newer: Path, places: Iterable[int], target: Path) -> Iterator[int]:
    """Write a file of answers with newer ones at some places; yield the places where one was used.

    A newer answer replaces an older one, but a failure never replaces a success.

    Args:
        current: an output; its suffix says whether it is a table.
        newer: an output with one answer for each place, in their order.
        places: record ids in the current output, ascending.
        target: the file to write.
    """
    is_table = _is_table(current)
    with current.open("rb") as old_file, newer.open("rb") as new_file, target.open("wb") as merged:
        old, new = records(old_file, is_table=is_table), records(new_file, is_table=is_table)
        header = next(old, b"") if is_table else b""
        if is_table:
            merged.write(header)
            next(new, b"")
        upcoming = iter(zip(places, new, strict=True))
        place, answer = next(upcoming, (-1, b""))
        for at, line in enumerate(old):
            if at != place:
                merged.write(line)
                continue
            was, is_now = (is_success(one, is_table=is_table, header=header) for one in (line, answer))
            if was and not is_now:
                merged.write(line)
            else:
                merged.write(_in_place_of(line, answer, at))
                yield at
            place, answer = next(upcoming, (-1, b""))


def records(lines: Iterable[bytes], *, is_table: bool) -> Iterator[bytes]:
    """The records of an output: lines, or rows whose quoted fields may hold line ends."""
    if not is_table:
        yield from lines
        return
    row = b""
    for line in lines:
        row += line
        if row.count(b'"') % 2 == 0:
            yield row
            row = b""
    if row:
        yield row


_LAST_COLUMN = re.compile(rb"([,;\t|])error_message(?:_\d+)?\s*$")


def is_success(record: bytes, *, is_table: bool, header: bytes = b"") -> bool:
    """Whether a record of an output is an answer, in any format."""
    if is_table:
        # The last fields are answer, error_code and error_message.
        last = _LAST_COLUMN.search(header)
        delimiter = last.group(1).decode() if last else "\t" if b"\t" in record and b"," not in record else ","
        fields = next(csv.reader([record.decode(errors="replace")], delimiter=delimiter))
        return len(fields) > 1 and not fields[-2]
    answer = json.loads(record)
    if "success" in answer:
        return bool(answer["success"])
    if isinstance(answer.get("result"), dict):  # Anthropic's
        return bool(answer["result"].get("type") == "succeeded")
    if "processed_time" in answer:  # Vertex AI's
        return not answer.get("status")
    if "key" in answer:  # the Gemini API's
        return "error" not in answer
    if "response" in answer:
        return (answer["response"] or {}).get("status_code") == 200  # noqa: PLR2004 - HTTP's OK
    return "modelOutput" in answer


def _in_place_of(line: bytes, answer: bytes, at: int) -> bytes:
    """An answer with the id that its record has in this job."""
    if _ID.match(answer):
        return _ID.sub(b'{"id":%d,' % at, answer, count=1)
    if answer.startswith(b'{"modelInput"'):
        ours, theirs = (json.loads(one).get("recordId") for one in (line, answer))
        end = b'"recordId":%b}\n' % json.dumps(theirs, ensure_ascii=False).encode()
        if ours != theirs and answer.endswith(end):
            return answer.removesuffix(end) + b'"recordId":%b}\n' % json.dumps(ours, ensure_ascii=False).encode()
    return answer


def _is_table(path: Path) -> bool:
    with path.open("rb") as file:
        return not file.read(1).startswith(b"{")


def _places(errors: Path, retry_lines: int, newer: Path, child: Job) -> list[int]:
    """The record id in the job for each line of a retry's output, in their order.

    Raises:
        Error: the retry's records are not those of the retry file.
    """
    failed = [one for one in _failures(errors) if one.is_object]
    if len(failed) != retry_lines:
        failed = [one for one in failed if one.code not in UNREADABLE_CODES]
    is_table = _is_table(newer)
    with newer.open("rb") as file:
        answers = sum(1 for _ in records(file, is_table=is_table)) - is_table
    if answers == len(failed) == retry_lines:
        return [one.id for one in failed]
    by_reference = _unique({one.id: one.reference for one in _failures(errors)})
    with newer.open("rb") as file:
        found = [] if is_table else [by_reference.get(_reference(json.loads(line)), -1) for line in file]
    if not found or -1 in found or found != sorted(set(found)):
        raise Error(
            f"Job {child.id} has {answers:,} records, and the retry file {retry_lines:,}. The file was changed before "
            "it was uploaded, and its records have no unique references in the same order, so they cannot be matched."
        )
    return found


@dataclass(frozen=True)
class _Failure:
    id: int
    code: str
    reference: str
    is_object: bool


def _failures(errors: Path) -> Iterator[_Failure]:
    with errors.open("rb") as lines:
        for line in lines:
            one = json.loads(line)
            reference = one.get("external_reference")
            yield _Failure(
                int(one["id"]),
                one["error"]["code"],
                reference if isinstance(reference, str) else "",
                isinstance(one.get("request"), dict),
            )


def _unique(references: dict[int, str]) -> dict[str, int]:
    """Record ids by those references that only one record has."""
    times = Counter(references.values())
    return {reference: at for at, reference in references.items() if reference and times[reference] == 1}


def _reference(answer: dict[str, Any]) -> str:
    for name in ("external_reference", "custom_id", "recordId", "key", "id"):
        if isinstance(answer.get(name), str):
            return str(answer[name])
    return ""


def _file_of(manifest: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((entry for entry in manifest["files"] if kind_of(entry) == kind), None)


def kind_of(entry: dict[str, Any]) -> str:
    """What a file of a manifest holds: `output`, `errors`, `retry` or another."""
    kind: str = entry.get("kind") or entry["name"].partition(".")[0]
    return kind
