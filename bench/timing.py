"""CPU time of steps that take turns (not wall time.

Machines are shared), and the time that AWS takes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

AWS_SECONDS = {"s3": 0.02, "dynamodb": 0.005, "sqs": 0.01}
"""Seconds until AWS answers a call, assumed; for S3 until the first byte."""
S3_BYTES_A_SECOND = 80e6


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum of several measurements."""

    least: float
    middle: float
    largest: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of these measurements."""
        return cls(min(values), statistics.median(values), max(values))

    def text(self, form: str = ".2f", unit: str = "") -> str:
        """The median, and the range in brackets."""
        return f"{self.middle:{form}}{unit} ({self.least:{form}} to {self.largest:{form}})"


Times = dict[str, list[float]]


def take_turns(steps: Mapping[str, Callable[[], object]], rounds: int) -> Times:
    """CPU seconds, user and system, of each step, one value per round.

    A warm-up round is not counted.
    """
    found: Times = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            began = time.process_time()
            step()
            taken = time.process_time() - began
            if turn:
                found[name].append(taken)
    return found


def ratio(times: Times, of: str, to: str) -> Spread:
    """The ratio of two steps' times, round by round."""
    return Spread.of([one / other for one, other in zip(times[of], times[to], strict=True)])


def in_fresh_process(task: str, *arguments: object) -> Any:
    """Run one of `bench.child`'s tasks in its own process; return its result."""
    command = [sys.executable, "-m", "bench.child", task, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])
