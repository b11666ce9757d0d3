"""Call limits over a moving window, for tokens and for models.

Counting only: the reply to a refused caller is made elsewhere.
"""

from collections import defaultdict, deque
from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether a window allows a call."""

    allowed: bool
    remaining: int
    seconds: float
    """Until a place is free again; for a refused call, until the block ends."""


class Windows:
    """One moving window for each key. Not thread-safe: `WorkersAI` holds its lock around every call."""

    def __init__(self) -> None:
        self._calls: defaultdict[str, deque[float]] = defaultdict(deque)
        self._blocked_until: dict[str, float] = {}

    def take(self, key: str, now: float, limit: int, window: float, block: float = 0.0) -> Verdict:
        """Count a call, or refuse it; with `block`, the first refused call closes the window for that many seconds."""
        until = self._blocked_until.get(key, 0.0)
        if now < until:
            return Verdict(allowed=False, remaining=0, seconds=until - now)
        calls = self._calls[key]
        while calls and calls[0] <= now - window:
            calls.popleft()
        if len(calls) >= limit:
            free = calls[0] + window - now if calls else window
            if block:
                self._blocked_until[key] = now + block
                calls.clear()
            return Verdict(allowed=False, remaining=0, seconds=block or free)
        calls.append(now)
        return Verdict(allowed=True, remaining=limit - len(calls), seconds=calls[0] + window - now)
