"""Gives processes the share of a processor that Lambda gives a function of some memory. Linux only.

Lambda's functions run in a control group with a quota: in each period a process may compute for so long, and is stopped
until the next when that is used up; waiting costs nothing. Here the same is done with signals.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WHOLE_PROCESSOR_MB = 1_769
"""Memory for which Lambda gives one whole processor."""
PERIOD = 0.1
LOOK_EVERY = 0.004


def share_of(memory: int) -> float:
    """The share of a processor that a function of so many MB has."""
    return memory / WHOLE_PROCESSOR_MB


def cpu_seconds(pid: int) -> float:
    """Seconds that all threads of a process have computed.

    Raises:
        OSError: the process is gone.
    """
    return time.clock_gettime((~pid << 3) | 2)  # The kernel's number of another process's clock.


class Share(threading.Thread):
    """Holds processes to a share of a processor, each by itself, until it is told to stop."""

    def __init__(self, share: float, processes: Callable[[], Iterable[int]]) -> None:
        """Hold those processes that `processes` names, asked once a second, to so much of a processor."""
        super().__init__(daemon=True)
        self.share = share
        self.processes = processes
        self.over = threading.Event()
        self.used: dict[int, float] = {}
        """Seconds that each process has computed in all."""

    def run(self) -> None:
        """Look every few milliseconds who has used up what he may use."""
        left: dict[int, float] = {}
        stopped: set[int] = set()
        looked, asked = time.monotonic(), 0.0
        while not self.over.wait(LOOK_EVERY):
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
        """Let the processes go."""
        self.over.set()
        self.join()
