"""What of a job's output was handed out: spans of records, and where they lie in the output's order.

What is between two spans is not there yet. Neighbours become one span, so there are about as many as batches are
outstanding, not as many as the job has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Span(NamedTuple):
    """Consecutive records.

    Attributes:
        first: the id of the first.
        end: the id after the last.
        size: bytes of their lines in the output.
        last_batch: the number of the last batch; empty if it is not known.
    """

    first: int
    end: int
    size: int
    last_batch: str


@dataclass
class HandedOut:
    """Records that were handed out.

    Attributes:
        spans: them, in order.
        begun: likewise, of pieces that were not taken to their ends: first ids, and ids after the last.
    """

    spans: list[Span] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)

    @property
    def records(self) -> int:
        """How many."""
        return sum(one.end - one.first for one in self.spans)

    @property
    def size(self) -> int:
        """Bytes of their lines."""
        return sum(one.size for one in self.spans)

    def add(self, more: Iterable[Span]) -> None:
        """Note other spans, of which none overlaps another one."""
        found: list[Span] = []
        for one in sorted([*self.spans, *more]):
            if found and found[-1].end == one.first:
                last = found.pop()
                found.append(Span(last.first, one.end, last.size + one.size, one.last_batch))
            else:
                found.append(one)
        self.spans = found
        self.begun = [(first, end) for first, end in self.begun if not any(s.first <= first < s.end for s in found)]

    def gaps(self, total: int) -> list[tuple[int, int]]:
        """What is missing of so many records: first ids, and ids after the last."""
        edges = [0, *(edge for one in self.spans for edge in one[:2]), total]
        return [(first, end) for first, end in list(pairwise(edges))[::2] if first < end]
