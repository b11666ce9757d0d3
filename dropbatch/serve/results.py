"""The two files of a batch's results: one `output.jsonl`, separated while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from dropbatch.core.names import INBOX, result
from dropbatch.serve import objects
from dropbatch.serve.batches import Batches
from dropbatch.serve.files import BLOCK_BYTES
from dropbatch.serve.objects import batch_object, file_object, no_such

ANSWERED = 200
_KNOWN_SIZES = 2_000


class _Response(msgspec.Struct):
    status_code: int = 0


class _Line(msgspec.Struct):
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Line).decode


class Results:
    """The files of results of a bucket's batches. `ApiError`: there is no such file."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._store = batches.store
        self._size = lru_cache(_KNOWN_SIZES)(self._measured)  # Results do not change.

    def retrieve(self, file_id: str) -> dict[str, Any]:
        """A file's object."""
        batch_id, kind = _known(file_id)
        found = self._batches.result(batch_id, kind)
        shown = batch_object(found.record, found.status, found.manifest)
        more = {"purpose": "batch_output", "created_at": shown[f"{shown['status']}_at"]}
        return file_object(file_id, self._size(file_id), f"{batch_id}_{kind}.jsonl", None, **more)

    def blocks(self, file_id: str) -> Iterator[bytes]:
        """A file's content."""
        batch_id, kind = _known(file_id)
        found = self._batches.result(batch_id, kind)
        assert found.job  # noqa: S101 - `result` found its manifest
        assert found.manifest  # noqa: S101
        key = result(INBOX + objects.upload_path(batch_id), found.job.id, "output.jsonl")
        head = self._store.head(key)
        if head is None:  # deleted by the lifecycle of results
            raise no_such("File", file_id)
        whole = self._store.blocks(key, head, BLOCK_BYTES)
        if kind == "output" and not found.manifest["counts"]["failed"]:
            return whole
        return _lines_of(whole, answered=kind == "output")

    def delete(self, file_id: str) -> None:
        """Hide a file."""
        self._batches.delete_result(*_known(file_id))

    def _measured(self, file_id: str) -> int:
        return sum(map(len, self.blocks(file_id)))


def _known(file_id: str) -> tuple[str, str]:
    found = objects.batch_of_result(file_id)
    if found is None:
        raise no_such("File", file_id)
    return found


def _lines_of(blocks: Iterator[bytes], *, answered: bool) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        whole, end, after = block.rpartition(b"\n")
        if not end:
            rest += block
            continue
        lines = (rest + whole).split(b"\n")
        rest = after
        if chosen := [line for line in lines if _is_answered(line) is answered]:
            yield b"\n".join([*chosen, b""])


def _is_answered(line: bytes) -> bool:
    response = _decode(line).response
    return response is not None and response.status_code == ANSWERED
