"""Insist: a step that must not be left to a later message, done again and again while the invocation has time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shared.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.bootstrap import Services

T = TypeVar("T")

RESERVE_SECONDS = 10.0
"""Time that is left to the caller when the step never succeeded."""


def retry_until_deadline(step: Callable[[], T], services: Services, remaining: Callable[[], float]) -> T:
    """Do a step until no AWS service stands in its way.

    Args:
        step: may be done more than once.
        services: the process's clients and settings.
        remaining: seconds this invocation has left.

    Raises:
        StorageError: the time is over.
    """
    wait = 0.2
    while True:
        before = remaining()
        try:
            return step()
        except StorageError:
            left = remaining()
            if left < RESERVE_SECONDS + wait + (before - left):  # what hung is likely to hang as long again
                raise
            services.sleep(wait)
            wait = min(2 * wait, 5.0)
