"""CPU time of steps that take turns: machines are shared. AWS's time, and the form of the pages."""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

AWS_SECONDS = {"s3": 0.02, "dynamodb": 0.005, "sqs": 0.01}
"""Seconds until AWS answers a call, assumed; for S3 until the first byte."""
S3_BYTES_A_SECOND = 80e6


@dataclass(frozen=True, slots=True)
class Spread:
    least: float
    middle: float
    largest: float

    @classmethod
    def of(cls, values: list[float]) -> Self:
        return cls(min(values), statistics.median(values), max(values))

    def text(self, form: str = ".2f") -> str:
        return f"{self.middle:{form}} ({self.least:{form}} to {self.largest:{form}})"


Times = dict[str, list[float]]


def take_turns(steps: Mapping[str, Callable[[], object]], rounds: int) -> Times:
    """CPU seconds of each step, one value per round; a warm-up round is not counted."""
    found: Times = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            began = time.process_time()
            step()
            if turn:
                found[name].append(time.process_time() - began)
    return found


def ratio(times: Times, of: str, to: str) -> Spread:
    """The ratio of two steps' times, round by round."""
    return Spread.of([one / other for one, other in zip(times[of], times[to], strict=True)])


def in_fresh_process(task: str, *arguments: object) -> Any:
    """Run one of `bench.child`'s tasks in its own process; return its result."""
    command = [sys.executable, "-m", "bench.child", task, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def written_by(command: str) -> str:
    """Which command wrote a page, of which code and when; a test says when that is too old."""
    commit = subprocess.check_output(("git", "rev-parse", "--short", "HEAD"), text=True).strip()
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return f"Written by `{command}` at {commit}, {now}; do not edit."


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def write_page(page: Path, command: str, **made: str) -> None:
    """Write what a command has made of a page anew, between its markers; its prose stays."""
    text = page.read_text("utf-8")
    for name, content in {"written": written_by(command), **made}.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{content}\n\n{end}{rest.partition(end)[2]}"
    page.write_text(text, "utf-8")


def machine() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    processor = found[1] if found else platform.processor()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{processor}, {os.cpu_count()} processors, {platform.system()}, {python}"
