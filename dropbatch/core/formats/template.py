"""Templates: text with `{column}`s that a row's values replace; `{{` and `}}` are literal braces.

Braces in values have no meaning, and only a column's name may be between braces.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dropbatch.core.errors import UploadRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Template:
    """A template, read once: text, column, text, column, … text."""

    def __init__(self, template: str, columns: Sequence[str]) -> None:
        """Parse it.

        Raises:
            UploadRefused: `bad_options`: it names a column that does not exist, or a brace is
                unmatched.
        """
        self._texts = [""]
        self._columns: list[int] = []
        at = 0
        for token in _TOKEN.finditer(template):
            self._texts[-1] += template[at : token.start()]
            at = token.end()
            name = token.group(1)
            if name is not None:
                column = position(columns, name)
                if column is None:
                    raise UploadRefused(
                        "bad_options",
                        f"template: there is no column {name!r}. The columns "
                        f"are: {listed(columns)}.",
                    )
                self._columns.append(column)
                self._texts.append("")
            elif len(token.group()) == 1:
                raise UploadRefused(
                    "bad_options",
                    f"template: a {token.group()} is unmatched. Write {{{{ and }}}} for "
                    "literal braces.",
                )
            else:
                self._texts[-1] += token.group()[0]
        self._texts[-1] += template[at:]

    def is_blank(self, values: Sequence[str]) -> bool:
        """Whether every value that would be filled in is empty."""
        return bool(self._columns) and not any(values[column] for column in self._columns)

    @property
    def columns(self) -> list[int]:
        """The positions of the columns that it names."""
        return self._columns

    def fill(self, values: Sequence[str]) -> str:
        """The text for one row's values."""
        pieces = [self._texts[0]]
        for column, text in zip(self._columns, self._texts[1:], strict=True):
            pieces += (values[column], text)
        return "".join(pieces)


def position(columns: Sequence[str], name: str) -> int | None:
    """Where a column is.

    One that differs in case, or in space around it, counts if there is no other such.
    """
    if name in columns:
        return columns.index(name)
    like = [
        index
        for index, column in enumerate(columns)
        if column.strip().casefold() == name.strip().casefold()
    ]
    return like[0] if len(like) == 1 and name.strip() else None


def listed(columns: Sequence[str]) -> str:
    """The first columns, for an error message."""
    names = ", ".join(repr(column[:60]) for column in columns[:20])
    return names if len(columns) <= 20 else f"{names} and {len(columns) - 20} more"  # noqa: PLR2004
