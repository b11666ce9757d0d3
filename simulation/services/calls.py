"""What all services share: a call takes time, lets others run, and may be its process's last."""

from collections.abc import Callable
from functools import wraps
from random import Random
from typing import Any, TypeVar, cast

from simulation.kernel import DiedError, Kernel, Life
from simulation.services.awkward import Awkward
from simulation.services.errors import refused

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SECONDS = {
    "dynamodb": (0.004, 0.012),
    "s3": (0.02, 0.08),
    "sqs": (0.005, 0.02),
    "events": (0.01, 0.03),
}
"""Shortest and longest usual duration of a call of each service, seconds."""


def reads(operation: str) -> Callable[[F], F]:
    """Make a method of a client a call without an effect that stays."""
    return _called("read", operation)


def writes(operation: str) -> Callable[[F], F]:
    """Make a method of a client a call that changes something."""
    return _called("write", operation)


def _called(how: str, operation: str) -> Callable[[F], F]:
    def decorated(method: F) -> F:
        @wraps(method)
        def called(self: Any, **given: Any) -> Any:
            return getattr(self.calls, how)(operation, lambda: method(self, **given))

        return cast(F, called)

    return decorated


class Calls:
    """How calls take place: before its effect a call takes time, and after it."""

    def __init__(self, kernel: Kernel, awkward: Awkward) -> None:
        self.kernel = kernel
        self.awkward = awkward
        self.random: Random = kernel.random
        self.seconds = dict(SECONDS)
        """Shortest and longest duration of a call, seconds, by the first word of its operation."""
        self.retries = 0
        self.total = 0
        self.by_operation: dict[str, int] = {}
        self.before: Callable[[Life, str], None] | None = None
        """Called at each moment at which a process may be switched away from, or killed."""
        self.places = 0
        """How many such moments there have been."""
        self.held_up: dict[int, float] = {}
        """Seconds, by place, for which the running task does not go on."""
        self.dies_at = 0
        """The place at which the running process dies; 0: none."""
        self.lost_at = self.fails_at = self.refused_at = 0
        """Places of writes whose answer is lost: sent again, or given up; and of one refused."""

    @property
    def disturbances(self) -> int:
        """How many of these there are."""
        return len(self.held_up) + sum(
            map(bool, (self.dies_at, self.lost_at, self.fails_at, self.refused_at))
        )

    def now(self) -> float:
        return self.kernel.now

    def happens(self, what: str) -> bool:
        """Whether an awkward thing happens now; only to functions, not to the users of a world."""
        chance: float = getattr(self.awkward, what)
        return chance > 0 and self.kernel.life() is not None and self.random.random() < chance

    def read(self, operation: str, effect: Callable[[], T]) -> T:
        """A call without an effect that stays."""
        if self.kernel.task is None:
            return effect()
        self._pass(operation)
        if self.happens("throttled"):
            raise refused("ThrottlingException", operation)
        return effect()

    def write(self, operation: str, effect: Callable[[], T]) -> T:
        """A call that changes something; `retries` counts the SDK's earlier tries of it."""
        if self.kernel.task is None:
            return effect()
        place = self.places + 1
        self._pass(operation)
        if self.happens("throttled") or place == self.refused_at:
            raise refused("ThrottlingException", operation)
        done = effect()
        if place == self.fails_at:
            raise refused("InternalServerError", operation, 500)
        if self.happens("answered_late") or place == self.lost_at:
            self.take(operation, 1.0)
            self.retries = 1
            try:
                done = effect()
            finally:
                self.retries = 0
        self.take(operation, 0.5)
        return done

    def _pass(self, operation: str) -> None:
        self.total += 1
        self.by_operation[operation] = self.by_operation.get(operation, 0) + 1
        self.take(operation, 1.0)

    def take(self, operation: str, share: float) -> None:
        """Let a share of a call's time pass, for a task."""
        task = self.kernel.task
        if task is None:
            return
        life = task.life
        life.calls += 1
        self.places += 1
        task.called_at, task.place = self.kernel.now, self.places
        if self.before is not None:
            self.before(life, operation)
        if self.places == self.dies_at:
            self.kernel.kill(life)
            raise DiedError
        low, high = self.seconds[operation.partition(".")[0]]
        self.kernel.wait(
            share * self.random.uniform(low, high) + self.held_up.get(self.places, 0.0)
        )
