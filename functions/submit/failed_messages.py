"""What happens to a message when its function fails or dies.

An error on an item counts as a claim, so that the item ends in time. Only an upload's first message has no item yet
that would become due again.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shared.claims import report_stuck, retry_seconds
from shared.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.bootstrap import Services

DEATH_MARGIN_SECONDS = 30.0
"""Seconds after an invocation's end at which its message is delivered again if it died."""
FAILED_AGAIN_SECONDS = 900.0
"""Seconds until the message of an invocation that failed is delivered again: five tries take over an hour."""


@contextmanager
def count_failures(services: Services, job_id: str, number: str = "") -> Iterator[None]:
    """Count an error before an item was claimed as a claim of it; otherwise its message would fail forever.

    Nothing was sent for it, so it is due again soon, whatever lease its message had.
    """
    try:
        yield
    except Exception:
        now = services.now()
        if found := services.ledger.unclaimed(job_id, number, now):
            due, claims = found
            services.ledger.set_aside(due, claims + 1, now + retry_seconds(claims))
            report_stuck(claims + 1, job_id, number)
        raise


@contextmanager
def retry_soon_after_death(services: Services, receipt: str, remaining: Callable[[], float]) -> Iterator[None]:
    """Have the message of an upload delivered again soon if this invocation dies, not after the queue's 15 minutes."""
    url = services.queues.upload_url
    with suppress(StorageError):  # Then it is delivered again later.
        services.queues.hide(url, receipt, remaining() + DEATH_MARGIN_SECONDS)
    try:
        yield
    except Exception:
        with suppress(StorageError):
            services.queues.hide(url, receipt, FAILED_AGAIN_SECONDS)
        raise
