"""Gives processes the share of a processor that Lambda gives a function with a given memory size. Linux only.

Lambda's functions run in a control group with a quota: in each period a process may compute for a
fixed time. When that is used up, it is stopped until the next period. Waiting costs nothing. Here
signals do the same.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from local.template import properties, template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WHOLE_PROCESSOR_MB = 1_769
"""Memory for which Lambda gives one whole processor."""
PERIOD = 0.1
CHECK_SECONDS = 0.004


def memory_of(function: str) -> int:
    """MB that the template gives a function."""
    own = properties(f"{function.title()}Function")
    return int(own.get("MemorySize", template()["Globals"]["Function"]["MemorySize"]))


def share_of(memory: int) -> float:
    """The share of a processor that a function of `memory` MB has."""
    return memory / WHOLE_PROCESSOR_MB


def cpu_seconds(pid: int) -> float:
    """Seconds that all threads of a process have computed.

    Raises:
        OSError: the process has ended.
    """
    # The kernel's number for the clock of another process.
    return time.clock_gettime((~pid << 3) | 2)


class Share(threading.Thread):
    """Limits each of several processes to a share of a processor, until it is ended."""

    def __init__(self, share: float, processes: Callable[[], Iterable[int]]) -> None:
        """Limit the processes that `processes` returns, called once a second.

        To `share` of a processor.
        """
        super().__init__(daemon=True)
        self.share = share
        self.processes = processes
        self.over = threading.Event()
        self.used: dict[int, float] = {}
        """Seconds that each process has computed in total."""

    def run(self) -> None:
        """Stop the processes that have used up their share; check every few milliseconds."""
        left: dict[int, float] = {}
        stopped: set[int] = set()
        looked, asked = time.monotonic(), 0.0
        while not self.over.wait(CHECK_SECONDS):
            now = time.monotonic()
            if now - asked > 1:
                asked = now
                left |= {pid: self.share * PERIOD for pid in self.processes() if pid not in left}
            for pid in list(left):
                try:
                    used = cpu_seconds(pid)
                    left[pid] += (now - looked) * self.share - (used - self.used.get(pid, used))
                    self.used[pid] = used
                    left[pid] = min(left[pid], self.share * PERIOD)
                    if (left[pid] < 0) != (pid in stopped):
                        os.kill(pid, signal.SIGSTOP if left[pid] < 0 else signal.SIGCONT)
                        stopped ^= {pid}
                except OSError:
                    del left[pid]
                    stopped.discard(pid)
            looked = now
        for pid in stopped:
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """Release the processes."""
        self.over.set()
        self.join()
