"""Lines of tables about jobs.

In a pipe they are whole; on a narrow terminal less important columns go first.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, NamedTuple

from dropbatch.client.progress import columns_of, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = "  "
MIN_PATH = 16
"""Columns that a path has at least, if others can go."""


class Cell(NamedTuple):
    """A column's value.

    Attributes:
        text: as shown.
        width: columns of the terminal that all values of the column have.
        rank: which columns go first: the highest; 0 stays.
        right: whether it stands at the right.
    """

    text: str
    width: int
    rank: int = 0
    right: bool = True

    def __str__(self) -> str:
        """The padded text."""
        return self.text.rjust(self.width) if self.right else self.text.ljust(self.width)


def job_lines(cells: Sequence[Cell], path: str, says: str, width: int | None) -> list[str]:
    """A job in a line of a table; on a narrow terminal perhaps in two.

    Args:
        cells: before the path.
        path: of the job's upload.
        says: what else there is to say.
        width: columns of the terminal; None if it is none.
    """
    if width is None:
        return [GAP.join(filter(None, [*map(str, cells), path, says])).rstrip()]
    path, says, kept = printable(path), printable(says), list(cells)
    while (
        kept
        and _width(kept) + MIN_PATH > width
        and (least := max(kept, key=lambda one: one.rank)).rank
    ):
        kept.remove(least)
    path = shortened(path, max(width - _width(kept), MIN_PATH // 2))
    first = GAP.join([*map(str, kept), path]).rstrip()
    if not says or columns_of(first) + len(GAP) + columns_of(says) <= width:
        return [f"{first}{GAP}{says}".rstrip()]
    return [first, GAP + says]


def _width(cells: Sequence[Cell]) -> int:
    return sum(one.width + len(GAP) for one in cells)


def terminal_width() -> int | None:
    """Columns of the terminal on which lines are printed; None if they go elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
