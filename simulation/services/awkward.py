"""What real services do that tests like to forget: each a number, drawn from a world's seed."""

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Self

HALF = 0.5
"""Share of the awkward things that `drawn` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Awkward:
    """Chances are per call or per message; seconds are the longest that something may take."""

    #: The index of the table shows a write this much later.
    index_lag_seconds: float = 0.0
    #: A query ends a page after this many bytes, not only after the service's 1 MB.
    page_bytes: int = 1 << 20
    #: A batch read leaves keys unprocessed.
    unprocessed: float = 0.0
    #: A call fails for good with a throttling error, after the SDK's own tries.
    throttled: float = 0.0
    #: A write is applied but its answer is lost, and the SDK sends it again.
    answered_late: float = 0.0
    #: A message is delivered again before its visibility timeout.
    delivered_twice: float = 0.0
    #: A message of S3 is sent twice.
    notified_twice: float = 0.0
    #: A message of S3 comes this much later.
    notified_late_seconds: float = 0.0
    #: An invocation dies at some call.
    death: float = 0.0
    #: How far an invocation of a new process is delayed.
    cold_start_seconds: float = 1.0
    #: An invocation's clock is this much behind that of the services.
    clock_behind_seconds: float = 0.0

    @classmethod
    def drawn(cls, random: Random) -> Self:
        """Some of everything; which, and how much, is decided by the seed."""
        worst = cls(
            index_lag_seconds=3.0,
            page_bytes=2_000,
            unprocessed=0.1,
            throttled=0.01,
            answered_late=0.02,
            delivered_twice=0.2,
            notified_twice=0.1,
            notified_late_seconds=120.0,
            death=0.02,
            clock_behind_seconds=25.0,
        )
        chosen = [
            one.name
            for one in fields(cls)
            if getattr(worst, one.name) != one.default and random.random() < HALF
        ]
        return replace(cls(), **{name: getattr(worst, name) for name in chosen})
