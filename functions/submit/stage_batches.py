"""Staging: objects of several batches are put in S3 at the same time.

Their items are created one after another.

Split resumes after the last batch item, so an item may be created only after all objects and items
before it. Objects need no order: one that is put ahead of its item has no effect until the item
names it. If the process dies, the next run cuts the same batches and finds these objects.

An object that exists may also come from a run of another version that cut the upload differently.
Its metadata holds where its batch begins. If the item of the batch before it ends there, the object
counts, and every run uses it. If not, no item can name it, and it is replaced on the condition that
it is still the same object.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropbatch.core.errors import UploadRefused
from dropbatch.core.plan import Checkpoint
from shared import keys
from shared.errors import StorageError
from shared.staged_batch import StagedInfo, encode_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor, Future

    from dropbatch.core.read.cut import Cut
    from shared.aws.object_store import ObjectStore

MAX_PUTS = 8
"""Objects put at the same time."""
MAX_AHEAD, MAX_BYTES_AHEAD = 16, 20_000_000
"""Most objects whose items are not created yet, and their bytes: two of the largest batches."""


@dataclass(frozen=True, slots=True)
class StagedAhead:
    """A batch that was cut, and whose object is being put.

    Attributes:
        number: the batch's number.
        first_id: id of its first record.
        end: where the next cut begins.
        key: of the object.
        body: the object (`shared.staged_batch`).
        ours: the object's metadata if this run puts it.
        found: the metadata of the object that is stored, and its ETag if another run put it.
    """

    number: int
    first_id: int
    end: Checkpoint
    key: str
    body: bytes
    ours: StagedInfo
    found: Future[tuple[StagedInfo, str]]


def put_ahead(
    store: ObjectStore,
    threads: Executor,
    job_id: str,
    number: int,
    begin: Checkpoint,
    cuts: Iterator[Cut | Checkpoint],
) -> Iterator[StagedAhead | Checkpoint]:
    """Put the objects of batches, several at the same time.

    Yield the batches in order, once their objects are stored.

    Places up to which only blank lines follow a batch are yielded after it.

    Args:
        store: the object store.
        threads: put the objects. The caller owns them: a generator may be closed by the garbage
            collector, which must not wait for threads.
        job_id: the job.
        number: of the first batch.
        begin: where it begins: the end of the batch before it.
        cuts: the batches, and places between them.

    Raises:
        UploadRefused: as `cuts` raised it, after the batches before it.
        StorageError: as `cuts` raised it, likewise.
    """
    waiting: deque[StagedAhead | Checkpoint] = deque()
    problem: Exception | None = None
    while True:
        try:
            cut = next(cuts, None)
        except (UploadRefused, StorageError) as error:
            problem, cut = error, None
        if cut is None:
            break
        if isinstance(cut, Checkpoint):
            waiting.append(cut)
        else:
            key, ours = keys.staged(job_id, f"{number:08d}"), StagedInfo.of_cut(cut, begin)
            body = b"".join((cut.body, cut.originals, encode_index(cut.rows)))
            found = threads.submit(_put, store, key, body, ours)
            waiting.append(StagedAhead(number, cut.first_id, cut.end, key, body, ours, found))
            number, begin = number + 1, cut.end
            del body
        del cut  # keep in memory only what `waiting` counts
        while waiting and (_is_stored(waiting[0]) or _is_full(waiting)):
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
    if problem:
        raise problem


def _is_stored(one: StagedAhead | Checkpoint) -> bool:
    return isinstance(one, Checkpoint) or one.found.done()


def _is_full(waiting: deque[StagedAhead | Checkpoint]) -> bool:
    staged = [one for one in waiting if not isinstance(one, Checkpoint)]
    return len(staged) > MAX_AHEAD or sum(len(one.body) for one in staged) > MAX_BYTES_AHEAD


def _put(store: ObjectStore, key: str, body: bytes, ours: StagedInfo) -> tuple[StagedInfo, str]:
    """Put an object unless one exists.

    Return the metadata of the stored one, and its ETag if it is another run's.
    """
    if store.put_if_absent(key, body, ours.metadata()):
        return ours, ""
    there = store.existing(key)
    return StagedInfo.of(there.metadata), there.etag


def settle(store: ObjectStore, candidate: StagedAhead) -> StagedInfo:
    """Settle which object is a batch's, once the item of the batch before it exists.

    Return the object's metadata.

    Raises:
        StorageError: S3 failed, or another run replaced the object at the same time.
    """
    found, etag = candidate.found.result()
    if found.begin == candidate.ours.begin:
        return found
    store.replace(candidate.key, candidate.body, etag, candidate.ours.metadata())
    return candidate.ours
