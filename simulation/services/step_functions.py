"""Step Functions in memory.

Tasks that wait with a token until they get a report, expire or are aborted.

Which states an execution goes through is not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from simulation.services.errors import EXCEPTIONS, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.services.calls import Calls


@dataclass(slots=True)
class Task:
    """A task of an execution. Times are Unix seconds.

    Attributes:
        expires: when it waits no longer.
        heartbeat: seconds within which it must get each heartbeat.
        beats: its beginning, and when it got heartbeats.
        report: what ended it: the operation and its arguments.
        is_aborted: whether its execution was aborted.
    """

    expires: float
    heartbeat: float
    beats: list[float]
    report: tuple[str, dict[str, str]] | None = None
    is_aborted: bool = False

    def is_waiting(self, now: float) -> bool:
        """Whether it takes a report."""
        is_late = now > self.expires or now > self.beats[-1] + self.heartbeat
        return self.report is None and not self.is_aborted and not is_late


class StepFunctions:
    """A client; keeps the tasks by their tokens.

    Attributes:
        watchers: called with the token, the operation and its arguments before a report is taken.
        denied: code with which every report is refused; empty: none is.
    """

    exceptions = EXCEPTIONS

    def __init__(self, calls: Calls) -> None:
        """Begin without tasks."""
        self.calls = calls
        self.tasks: dict[str, Task] = {}
        self.watchers: list[Callable[[str, str, dict[str, str]], None]] = []
        self.denied = ""

    def wait(self, token: str, seconds: float = inf, heartbeat: float = inf) -> Task:
        """Begin a task that waits with this token for so many seconds, and for each heartbeat."""
        now = self.calls.now()
        task = self.tasks[token] = Task(now + seconds, heartbeat, [now])
        return task

    def send_task_heartbeat(self, *, taskToken: str) -> dict[str, Any]:
        """Report that a task is worked on."""
        return self._report("send_task_heartbeat", taskToken, {})

    def send_task_success(self, *, taskToken: str, output: str) -> dict[str, Any]:
        """Report that a task has succeeded."""
        return self._report("send_task_success", taskToken, {"output": output})

    def send_task_failure(
        self, *, taskToken: str, error: str = "", cause: str = ""
    ) -> dict[str, Any]:
        """Report that a task has failed."""
        return self._report("send_task_failure", taskToken, {"error": error, "cause": cause})

    def _report(self, operation: str, token: str, told: dict[str, str]) -> dict[str, Any]:
        def take(retries: int) -> dict[str, Any]:
            if self.denied:
                raise refused(self.denied, operation, retries=retries)
            task = self.tasks.get(token)
            if task is None:
                raise refused("InvalidToken", operation, retries=retries)
            if not task.is_waiting(self.calls.now()):
                raise refused("TaskTimedOut", operation, retries=retries)
            if not retries:
                for watch in self.watchers:
                    watch(token, operation, told)
            if told:
                task.report = operation, told
            elif not retries:
                task.beats.append(self.calls.now())
            return {}

        return self.calls.write(f"states.{operation}", take)
