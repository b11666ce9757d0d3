"""The running invocation of a function: what it works with, and how much time it has left."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from shared.errors import StorageError
from shared.retry import exponential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aws_lambda_powertools.utilities.typing import LambdaContext

    from shared.services import Services

T = TypeVar("T")

CALLER_RESERVE_SECONDS = 10.0
"""Seconds that are left for the caller of `retry` if the step never succeeds."""
FIRST_STEP_SECONDS, MAX_STEP_SECONDS = 0.2, 5.0
"""Seconds between two tries of a step."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One invocation of a function.

    Attributes:
        services: the process's clients and settings.
        deadline: Unix seconds at which Lambda ends it.
    """

    services: Services
    deadline: float

    @staticmethod
    def of(services: Services, context: LambdaContext) -> Invocation:
        """The invocation that Lambda describes by a context."""
        return Invocation(services, services.now() + context.get_remaining_time_in_millis() / 1000)

    @property
    def seconds_left(self) -> float:
        """Seconds until its end."""
        return self.deadline - self.services.now()

    def allows(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return self.seconds_left >= seconds

    def until(self, end: float) -> Invocation:
        """The same invocation with an earlier end, Unix seconds.

        Its own end stays if that comes first.
        """
        return replace(self, deadline=min(self.deadline, end))

    def retry(self, step: Callable[[], T]) -> T:
        """Run a step, again if necessary, until no AWS service fails in it.

        Args:
            step: may be run more than once.

        Raises:
            StorageError: the time is used up.
        """
        tries = 0
        while True:
            before = self.seconds_left
            try:
                return step()
            except StorageError:
                wait = exponential(FIRST_STEP_SECONDS, tries, MAX_STEP_SECONDS)
                left = self.seconds_left
                # A call that hung is likely to hang as long again.
                if left < CALLER_RESERVE_SECONDS + wait + (before - left):
                    raise
                self.services.sleep(wait)
                tries += 1

    @contextmanager
    def called_by_message(self, hops: int) -> Iterator[Invocation]:
        """The same invocation with the services that `Services.called_by_message` makes for one message."""
        with self.services.called_by_message(hops) as own:
            yield replace(self, services=own)
