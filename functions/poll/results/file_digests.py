"""SHA-256 of result files: kept while they grow, or from reading them once more.

Too large a file has none.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from functions.poll.results.running_sha256 import RunningSha256, is_possible, unfinished_bytes
from shared.observability import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.invocation import Invocation
    from shared.models import ResultFileProgress

MAX_DIGEST_READ_BYTES = 1 << 30
"""Bytes of a file that are read once more for its digest if no running one could be kept.

A larger file has none.
"""
READ_BYTES_PER_SECOND, READ_RESERVE_SECONDS = 80e6, 20.0
"""Bytes per second at which that is done, and the time kept after it for the manifest."""


def has_digest(progress: ResultFileProgress) -> bool:
    """Whether a file's running digest is kept."""
    return is_possible() and bool(progress.sha) == bool(progress.size)


def seconds_for_digests(files: Iterable[ResultFileProgress]) -> float:
    """Time that reading files once more for their digests takes.

    None, unless no running digest could be kept.
    """
    sizes = [progress.size for progress in files if not has_digest(progress)]
    return sum(size / READ_BYTES_PER_SECOND for size in sizes if size <= MAX_DIGEST_READ_BYTES) + (
        READ_RESERVE_SECONDS if sizes else 0
    )


def digest_of(invocation: Invocation, key: str, progress: ResultFileProgress) -> str | None:
    """A file's SHA-256: the running one, else from reading the file once more.

    None if it is too large for that.
    """
    store = invocation.services.store
    if has_digest(progress):
        rest = unfinished_bytes(progress.size)
        return RunningSha256(progress.sha, store.get(key, progress.size - rest, rest)).hexdigest()
    digest = hashlib.sha256()
    if progress.size <= MAX_DIGEST_READ_BYTES:
        for block in store.sections([(key, 0, progress.size)]):
            digest.update(block)
            if not invocation.allows(READ_RESERVE_SECONDS / 2):
                break
        else:
            return digest.hexdigest()
    job_id, name = key.split("/")[-2:]
    logger.warning("no digest of a file", job_id=job_id, file=name, bytes=progress.size)
    return None
