"""`get --merged`: a job's output with each record's newest answer, from the job and its retries.

`errors.merged.jsonl` has the newest error of each record that still failed. A usable answer is
replaced only by one that was asked for again: of a retry of chosen records (`again`).

The promise is that nothing is guessed: record k of a retry is line k of its parent's retry file.
Where the numbers of records differ, or a reference, a record is found by its reference alone, if no
other has it. A record that cannot be placed so is left out and named.

Answers are collected in a temporary SQLite database, so that memory does not grow with them.
"""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

from dropbatch.client.again import chosen_ids, retry_ids
from dropbatch.client.download import (
    MERGED_ERRORS,
    blocks_of_file,
    download_file,
    merged_name,
    refuse_paths,
)
from dropbatch.client.job import Job
from dropbatch.client.records import (
    DEFAULT_FORMAT,
    ResultFiles,
    lines_of,
    read_failures,
    records_of,
    table_rows,
)
from dropbatch.core.formats.base import NULL, encode, is_retried, members_of, value_of
from dropbatch.core.formats.table import FORMATS
from dropbatch.errors import NotFound

_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE failures (
  age INTEGER PRIMARY KEY, job TEXT, id INTEGER, number INTEGER, place INTEGER, reference TEXT,
  line BLOB
);
CREATE INDEX numbers ON failures (job, number);
CREATE INDEX their_references ON failures (job, reference);
CREATE TABLE found (id INTEGER PRIMARY KEY, reference TEXT, success INTEGER);
CREATE TABLE chosen (number INTEGER PRIMARY KEY, id INTEGER);
CREATE TABLE placed (id INTEGER PRIMARY KEY, place INTEGER);
CREATE TABLE places (job TEXT, id INTEGER, place INTEGER, PRIMARY KEY (job, id)) WITHOUT ROWID;
CREATE TABLE failed (place INTEGER PRIMARY KEY);
CREATE TABLE answers (place INTEGER PRIMARY KEY, line BLOB, success INTEGER);
"""
"""A `place` is a record's id in the first job. Of all jobs: `failures`, the oldest job's first,
with their `number` in its retry file, and the `places` of retries' records. Of the first job: what
`failed`, and newer `answers`. Of the retry that is added: `found`, its records; `chosen`, their ids
in its parent; `placed`, their places."""
_STILL_FAILED = """
SELECT place, line FROM failures
WHERE age IN (SELECT max(age) FROM failures WHERE place IS NOT NULL GROUP BY place)
AND place IN failed AND place NOT IN (SELECT place FROM answers WHERE success) ORDER BY place
"""
_BY_NUMBER = "FROM found JOIN failures ON failures.number = found.id WHERE failures.job = ?"
_BY_REFERENCE = (
    "FROM found JOIN failures USING (reference) WHERE failures.job = ? GROUP BY reference "
    "HAVING count(*) = 1"
)
_CHOSEN = "chosen.number, places.place FROM chosen JOIN places USING (id) WHERE places.job = ?"

_ID = re.compile(rb'\{"id":\d+,')
_RECORD_ID = b',"recordId":'


class Files(NamedTuple):
    """A finished job's files on this machine; `errors` is None if no record failed.

    `ids`: of a retry of chosen records, which of its parent's they are; None of any other.
    """

    job_id: str
    format: str
    retry_lines: int
    output: Path
    errors: Path | None
    ids: Callable[[], Iterator[int]] | None = None


class Skipped(NamedTuple):
    """A retry of which records could not be placed."""

    job_id: str
    records: int
    message: str


@dataclass
class Merged:
    """The merged output, how many answers of how many retries are in it, what was not placed."""

    path: Path
    format: str
    errors: Path | None = None
    replaced: int = 0
    retries: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def files(self) -> ResultFiles:
        """The merged records."""
        return ResultFiles(
            lambda: blocks_of_file(self.path),
            lambda: blocks_of_file(self.errors) if self.errors else (),
            self.format,
        )


@contextmanager
def merged_files(job: Job) -> Iterator[ResultFiles]:
    """A job's records with the answers of its retries, in temporary files."""
    with TemporaryDirectory() as folder:
        merged = merge_retries(job, Path(folder))
        for one in merged.skipped:
            warnings.warn(f"Retry {one.job_id} is skipped: {one.message}", stacklevel=2)
        yield merged.files()


def merge_retries(job: Job, folder: Path) -> Merged:
    """Write a job's output with the answers of its retries."""
    first = _fetch(job, folder)
    if first is None:
        raise NotFound(f"Job {job.id} has no output.")
    with (
        TemporaryDirectory(dir=folder) as scratch,
        closing(Merging(first, Path(scratch))) as merging,
    ):
        for child, parent in _retries(job, merging.merged):
            own = Path(scratch) / child
            own.mkdir()
            try:
                files = _fetch(Job.recorded(job.stack, child), own, is_retry=True)
            except NotFound as error:
                merging.merged.skipped.append(Skipped(child, 0, str(error)))
                continue
            # A retry that was cancelled early has read no record.
            if files and files.output.stat().st_size:
                merging.add(files, parent)
        return merging.write()


def _fetch(job: Job, folder: Path, *, is_retry: bool = False) -> Files | None:
    manifest = job.manifest()
    refuse_paths(manifest)
    entries = {entry["kind"]: entry for entry in manifest["files"]}
    paths = {
        kind: download_file(job, folder, entries[kind], lambda *_: None).path
        for kind in ("output", "errors")
        if kind in entries
    }
    if "output" not in paths:
        return None
    retry_lines = entries["retry"]["lines"] if "retry" in entries else 0
    return Files(
        job.id,
        manifest["format"] or DEFAULT_FORMAT,
        retry_lines,
        paths["output"],
        paths.get("errors"),
        chosen_ids(job, manifest) if is_retry else None,
    )


def _retries(job: Job, merged: Merged) -> list[tuple[str, str]]:
    """All retries of a job, retries of retries included, each with its parent; oldest first."""
    found: dict[str, tuple[int, str]] = {}
    new, generation = [job], 0
    while new:
        parents, new, generation = new, [], generation + 1
        for parent in parents:
            ids = [one for one in retry_ids(parent) if one not in found]
            found.update((one, (generation, parent.id)) for one in ids)
            for one in ids:
                try:
                    new.append(Job.recorded(job.stack, one))
                except NotFound as error:
                    merged.skipped.append(Skipped(one, 0, str(error)))
                    del found[one]
    # Ids begin with the time of the upload; a retry may have its parent's.
    ordered = sorted(found, key=lambda one: (one.partition("-")[0], found[one][0], one))
    return [(one, found[one][1]) for one in ordered]


class Merging:
    """The newest answers for a job's failed records."""

    def __init__(self, first: Files, scratch: Path) -> None:
        self.merged = Merged(first.output.with_name(merged_name(first.output.name)), first.format)
        self._first = first
        self._retry_lines = {first.job_id: first.retry_lines}
        self._db = sqlite3.connect(scratch / "answers.sqlite", isolation_level=None)
        self._db.executescript(_SCHEMA)
        self._add_failures(first)
        self._db.execute("UPDATE failures SET place = id")
        self._db.execute("INSERT INTO failed SELECT id FROM failures")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def add(self, retry: Files, parent: str) -> None:
        """Take a retry's answers. Call this for older retries first."""
        if problem := self._mismatch(retry, parent):
            self.merged.skipped.append(Skipped(retry.job_id, 0, problem))
            return
        total = self._place(retry, parent)
        self._add_failures(retry)
        self._db.execute(
            "UPDATE failures SET place = (SELECT place FROM placed WHERE placed.id = "
            "failures.id) WHERE job = ?",
            (retry.job_id,),
        )
        self._retry_lines[retry.job_id] = retry.retry_lines
        # The newest wins over a failure; over an answer only one that was asked for again.
        self._db.executemany(
            "INSERT INTO answers VALUES (?1, ?2, ?3) ON CONFLICT (place) DO UPDATE "
            "SET line = excluded.line, success = excluded.success "
            "WHERE NOT answers.success OR (excluded.success AND ?4)",
            self._placed_lines(retry),
        )
        placed = self._count("SELECT count(*) FROM placed WHERE place IS NOT NULL")
        self.merged.retries += placed > 0
        if placed < total:
            lines = self._retry_lines[parent]
            message = (
                f"{total - placed:,} of its {total:,} records cannot be matched: they are not the "
                f"records of the retry file of job {parent}, which has {lines:,}, or have no "
                "reference of their own."
            )
            self.merged.skipped.append(Skipped(retry.job_id, total - placed, message))

    def write(self) -> Merged:
        """Write the merged output, and the errors of what still failed."""
        self.merged.replaced = self._count("SELECT count(*) FROM answers")
        answers = self._db.execute("SELECT place, line FROM answers ORDER BY place")
        with _whole(self.merged.path) as file:
            if header := _header(self._first):
                file.write(header + b"\n")
            place, answer = next(answers, (-1, b""))
            for at, line in enumerate(_lines(self._first)):
                if at == place:
                    file.write(_in_place_of(line, answer, at, self._first.format) + b"\n")
                    place, answer = next(answers, (-1, b""))
                else:
                    file.write(line + b"\n")
        errors = self.merged.path.with_name(MERGED_ERRORS)
        errors.unlink(missing_ok=True)
        failed = self._db.execute(_STILL_FAILED)
        if first := next(failed, None):
            self.merged.errors = errors
            with _whole(errors) as file:
                file.writelines(
                    _with_id(line, place) + b"\n" for place, line in chain([first], failed)
                )
        return self.merged

    def _mismatch(self, retry: Files, parent: str) -> str:
        if parent not in self._retry_lines:
            return f"It is a retry of job {parent}, which is skipped."
        if retry.format != self._first.format:
            return f"Its format is {retry.format}, and the job's is {self._first.format}."
        if _header(retry) != _header(self._first):
            return "Its output has other columns than the job's."
        return ""

    def _place(self, retry: Files, parent: str) -> int:
        """Find the places of a retry's records; return how many records it has."""
        execute = self._db.execute
        execute("DELETE FROM found")
        execute("DELETE FROM placed")
        errors = blocks_of_file(retry.errors) if retry.errors else ()
        records = records_of(blocks_of_file(retry.output), errors, retry.format)
        self._db.executemany(
            "INSERT INTO found VALUES (?, ?, ?)",
            ((one.id, _as_json(one.external_reference), one.success) for one in records),
        )
        total = self._count("SELECT count(*) FROM found")
        numbered = self._count("SELECT count(number) FROM failures WHERE job = ?", parent)
        differ = self._count(
            f"SELECT count(*) {_BY_NUMBER} AND found.reference <> failures.reference", parent
        )
        same = total == numbered == self._retry_lines[parent] and not differ
        rule = f"found.id, failures.place {_BY_NUMBER if same else _BY_REFERENCE}"
        if retry.ids and self._chosen(retry.ids()) == total:
            rule = _CHOSEN
            if parent == self._first.job_id:
                execute("INSERT OR IGNORE INTO places SELECT ?, id, id FROM chosen", (parent,))
        execute(f"INSERT INTO placed SELECT {rule}", (parent,))
        execute("INSERT INTO places SELECT ?, id, place FROM placed", (retry.job_id,))
        return total

    def _chosen(self, ids: Iterator[int]) -> int:
        """Note which of a job's records were sent again; return how many."""
        self._db.execute("DELETE FROM chosen")
        self._db.executemany("INSERT INTO chosen VALUES (?, ?)", enumerate(ids))
        return self._count("SELECT count(*) FROM chosen")

    def _placed_lines(self, retry: Files) -> Iterator[tuple[int, bytes, int, bool]]:
        placed = self._db.execute(
            "SELECT place, success, success OR place IN failed "
            "FROM found LEFT JOIN placed USING (id) ORDER BY id"
        )
        for line, (place, success, counts) in zip(_lines(retry), placed, strict=True):
            if place is not None and counts:  # No failure replaces an answer of the first job.
                yield place, line, success, retry.ids is not None

    def _add_failures(self, files: Files) -> None:
        """Note a job's failed records, and the line of the retry file of each that has one."""
        self._db.executemany(
            "INSERT INTO failures (job, id, number, reference, line) VALUES (?, ?, ?, ?, ?)",
            _failures(files),
        )

    def _count(self, query: str, *values: str) -> int:
        (count,) = self._db.execute(query, values).fetchone()
        return int(count)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which has its name only once it is written to its end."""
    partial = path.with_name(f"{path.name}.part")
    with partial.open("wb") as file:
        yield file
    partial.replace(path)


def _failures(files: Files) -> Iterator[tuple[str, int, int | None, str | None, bytes]]:
    number, is_json = 0, FORMATS[files.format].is_json
    for one in read_failures(blocks_of_file(files.errors)) if files.errors else ():
        has_line = is_retried(one.error.code, one.request if is_json else NULL)
        reference = _as_json(value_of(one.external_reference))
        yield files.job_id, one.id, number if has_line else None, reference, encode(one)
        number += has_line


def _as_json(reference: Any) -> str | None:
    """A reference as JSON, in one spelling: `é` may be written as an escape."""
    return None if reference is None else encode(reference).decode()


def _lines(files: Files) -> Iterator[bytes]:
    blocks = blocks_of_file(files.output)
    if not FORMATS[files.format].is_table:
        return lines_of(blocks)
    rows = table_rows(blocks)
    next(rows, None)
    return rows


def _header(files: Files) -> bytes:
    if not FORMATS[files.format].is_table:
        return b""
    return next(table_rows(blocks_of_file(files.output)), b"")


def _in_place_of(line: bytes, answer: bytes, at: int, format_: str) -> bytes:
    """An answer with the id that its record has in this job."""
    if format_ == "objects":
        return answer
    if format_ == "bedrock":
        record_id = (members_of(line) or {}).get("recordId", NULL)
        return answer[: answer.rindex(_RECORD_ID)] + _RECORD_ID + bytes(record_id) + b"}"
    return _with_id(answer, at)


def _with_id(line: bytes, place: int) -> bytes:
    """A line with its record's id; one that begins with none stays."""
    return _ID.sub(b'{"id":%d,' % place, line, count=1) if _ID.match(line) else line
