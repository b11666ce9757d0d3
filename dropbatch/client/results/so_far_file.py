"""A file of a running job's answers, in input order; each call adds what has come since.

Beside it lies what it has (`NAME.so-far.json`). Both are written anew and then replaced, the file first: after a death
between the two, the file has the size that the newer state says. Only what is new is read from the bucket.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import os
from dataclasses import dataclass, field
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from dropbatch.client.results.downloads import blocks_of_file, writing
from dropbatch.client.results.handed_out import HandedOut, Span
from dropbatch.client.results.so_far import look
from dropbatch.client.transfer.objects import CHUNK_BYTES
from dropbatch.errors import Error, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from dropbatch.client.job_files import JobFiles
    from dropbatch.client.results.so_far import Piece, SoFar

STATE = ".so-far.json"


class Written(NamedTuple):
    """What a call has done.

    Attributes:
        path: the file.
        records: in it.
        new: those that this call has added.
        pending: those that are still to come; None if the upload was not read to its end.
        manifest: the job's, if it is over: then nothing more comes.
    """

    path: Path
    records: int
    new: int
    pending: int | None
    manifest: dict[str, Any] | None


@dataclass
class _State:
    """What a file has: its job, the bytes before its first record, the spans of its records; whether it is written."""

    job_id: str
    opening: int = 0
    done: HandedOut = field(default_factory=HandedOut)
    is_written: bool = True

    @property
    def size(self) -> int:
        return self.opening + self.done.size

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"job_id": self.job_id, "opening": self.opening, "spans": self.done.spans}) + "\n")

    @classmethod
    def read(cls, path: Path) -> _State | None:
        """What is at a path; None if it is no such state."""
        try:
            found = json.loads(path.read_bytes())
            return cls(found["job_id"], found["opening"], HandedOut([Span(*one) for one in found["spans"]]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def answers_in(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The files in a folder that `write_so_far` wrote and nobody has replaced, each with what is said of it."""
    found, there = dict[str, str](), set(names)
    for name in there:
        own = name.removesuffix(".part")
        if not own.endswith(STATE) or not (folder / name).is_file() or not os.access(folder / name, os.R_OK):
            continue
        if state := _State.read(folder / name):
            answers = folder / own.removesuffix(STATE)
            told = f"{answers} (answers of job {state.job_id})"
            found[name] = told
            if answers.is_file() and answers.stat().st_size == state.size:
                found |= dict.fromkeys(there.intersection({answers.name, f"{answers.name}.part"}), told)
    return found


def write_so_far(job: JobFiles, path: Path, *, force: bool = False) -> Written:
    """Bring a file up to date.

    Args:
        job: running or over.
        path: the file.
        force: replace a file that is none of this job, or does not match the manifest of one that is over.

    Raises:
        NotFound: there is no such job.
        UsageError: the file is another one's, or was changed, or cannot be written.
        Error: it does not match the manifest of the job that is over.
    """
    with writing(path):
        job.exists()  # Then its id is its own.
        state = _state_of(job, path, force=force)
        before = state.done.records
        found, problem = _updated(job, path, state)
        if problem and force:
            state, before = _State(job.id, is_written=False), 0
            found, problem = _updated(job, path, state)
        if problem:
            raise Error(problem)
    return Written(path, state.done.records, state.done.records - before, found.pending, found.manifest)


def _updated(job: JobFiles, path: Path, state: _State) -> tuple[SoFar, str]:
    """Add what has come since a state; return what there is now, and what is wrong with the file, if anything is."""
    found = look(job, state.done)
    _Update(found, path, state).run()
    return found, _mismatch(found, path)


def _state_of(job: JobFiles, path: Path, *, force: bool) -> _State:
    current, newer = _beside(path, STATE), _beside(path, f"{STATE}.part")
    size = path.stat().st_size if path.exists() else 0
    for place in (current, newer):
        state = _State.read(place)
        if state and path.exists() and (state.job_id, state.size) == (job.id, size):
            if place == newer:
                newer.replace(current)
            return state
    if path.exists() and not force:
        raise UsageError(
            f"{path} is no file of this job's answers so far, or was changed. Choose another file, or replace it with "
            "`force=True`."
        )
    return _State(job.id, is_written=False)


@dataclass
class _Update:
    """One call's work on a file. What was read before an error is kept."""

    found: SoFar
    path: Path
    state: _State
    error: BaseException | None = None

    def run(self) -> None:
        pieces = self._pieces()
        first = next(pieces, None)
        if first or not self.state.is_written:
            added = self._write(first, pieces)
            self.state.done.add(added.spans)
            self.state.opening = len(self.found.opening)
            newer = _beside(self.path, f"{STATE}.part")
            self.state.write(newer)
            _beside(self.path, ".part").replace(self.path)
            newer.replace(_beside(self.path, STATE))
        if self.error:
            raise self.error

    def _pieces(self) -> Iterator[Piece]:
        try:
            for one in self.found.pieces():
                yield one
                if self.error:
                    return
        except (Error, KeyboardInterrupt) as error:
            self.error = error

    def _write(self, first: Piece | None, others: Iterator[Piece]) -> HandedOut:
        """Write the old records and the new ones in order; return the new ones."""
        added = HandedOut()
        with _beside(self.path, ".part").open("wb") as new, self._old() as old:
            new.write(self.found.opening)
            spans = iter(self.state.done.spans)
            old_or_new: Iterator[Span | Piece] = heapq.merge(
                spans, chain([first] if first else [], others), key=lambda one: one.first
            )
            for one in old_or_new:
                if isinstance(one, Span):
                    _copy(old, new, one.size)
                else:
                    added.add(self._append(new, one))
        return added

    def _old(self) -> IO[bytes]:
        if not self.path.exists():
            return io.BytesIO()
        old = self.path.open("rb")
        old.seek(self.state.opening)
        return old

    def _append(self, new: IO[bytes], one: Piece) -> list[Span]:
        began = new.tell()
        try:
            for block in one.output:
                new.write(block)
        except (Error, KeyboardInterrupt) as error:
            self.error = error
            new.seek(began)
            new.truncate()
            return []
        return [Span(one.first, one.first + one.records, new.tell() - began, one.batch)]


def _copy(old: IO[bytes], new: IO[bytes], size: int) -> None:
    while size:
        block = old.read(min(size, CHUNK_BYTES))
        if not block:
            raise Error("The file became shorter while it was read.")
        new.write(block)
        size -= len(block)


def _mismatch(found: SoFar, path: Path) -> str:
    """What to say of a file that is not the output of its job; empty if it is, or cannot be yet."""
    entry = found.output
    if not entry or found.pending:
        return ""
    digest = hashlib.sha256()
    for block in blocks_of_file(path):
        digest.update(block)
    if digest.hexdigest() == entry["sha256"]:
        return ""
    return (
        f"{path} does not match the manifest: its SHA-256 is {digest.hexdigest()}, expected {entry['sha256']}. "
        "Write it anew with `force=True`."
    )


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
