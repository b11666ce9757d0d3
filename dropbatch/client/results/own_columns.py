"""The columns of a table that was uploaded, as Arrow's: its output has them before the answer.

Needs pyarrow.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from dropbatch.client.results.reading import answer_column, delimiter_of, table_rows
from dropbatch.core.formats.tables import Columns, read_fields
from dropbatch.core.read.rows import split_row
from dropbatch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dropbatch.client.results.reading import ResultFiles

_INTEGER = re.compile(rb"-?(?:0|[1-9]\d{0,18})")
_MAX_INTEGER = 2**63 - 1
_FLOAT = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[-+]?\d+)?")
_BOOLEAN = re.compile(rb"true|false")
_END_COLUMNS = 2
"""`error_code` and `error_message` end an output's rows."""


class OwnColumns(NamedTuple):
    """The columns of an upload in its output.

    Attributes:
        delimiter: between the fields.
        names: of all of the output's columns.
        answer: the place of the answer; the upload's own columns come before it.
        kinds: Arrow's type of each of the upload's own columns.
    """

    delimiter: bytes
    names: tuple[str, ...]
    answer: int
    kinds: tuple[Any, ...]

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the upload's own columns."""
        return self.names[: self.answer]

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the columns with the answer's members."""
        return self.names[self.answer + 1 : len(self.names) - _END_COLUMNS]

    def free(self, name: str) -> str:
        """A name for another column, with a number if the upload has one of that name."""
        taken, number, choice = {*self.own, *self.members}, 2, name
        while choice in taken:
            choice, number = f"{name}_{number}", number + 1
        return choice


def own_columns(pa: Any, files: ResultFiles) -> OwnColumns | None:  # noqa: ANN401
    """The columns of a table's output; None of an empty one. Reads all rows, to find the types.

    A column of numbers, or of `true` and `false`, is one of these if every cell is written as Arrow
    writes them and none is in quotes, so that no text changes: `007` and `1.50` stay text. Dates
    are text.
    """
    rows = table_rows(files.output())
    header = next(rows, b"")
    if not header:
        return None
    delimiter = delimiter_of(header + b"\n")
    columns = Columns(header, delimiter)
    answer = answer_column(columns)
    kinds = [{"int64", "float64", "bool"} for _ in range(answer)]
    seen = [False] * answer
    left = set(range(answer))
    for row in rows if left else ():
        fields = split_row(row, delimiter)
        if len(fields) != len(columns.names):
            raise Error("The output was changed: a row does not fit its header.")
        for at in tuple(left):
            if cell := fields[at]:
                seen[at] = True
                kinds[at] &= _kinds_of(pa, cell)
                if not kinds[at]:
                    left.discard(at)
    types = (
        _type(pa, kind) if some else pa.string() for kind, some in zip(kinds, seen, strict=True)
    )
    return OwnColumns(delimiter, tuple(columns.names), answer, tuple(types))


def _kinds_of(pa: Any, cell: bytes) -> set[str]:  # noqa: ANN401
    """What a cell may be, besides text."""
    if _INTEGER.fullmatch(cell) and abs(int(cell)) <= _MAX_INTEGER:
        return {"int64", "float64"} if cell != b"-0" else {"float64"}
    if _BOOLEAN.fullmatch(cell):
        return {"bool"}
    if _FLOAT.fullmatch(cell) and pa.scalar(float(cell)).cast(pa.string()).as_py() == cell.decode():
        return {"float64"}
    return set()


def _type(pa: Any, kinds: set[str]) -> Any:  # noqa: ANN401
    for name in ("int64", "float64", "bool"):
        if name in kinds:
            return pa.type_for_alias(name)
    return pa.string()


def cells(
    pa: Any,  # noqa: ANN401
    files: ResultFiles,
    columns: OwnColumns,
    size: int,  # noqa: ANN401, RUF100
) -> Iterator[tuple[list[Any], list[Any]]]:
    """The upload's own columns, and those of the answer's members, some rows at a time.

    As Arrow's arrays.

    Args:
        pa: pyarrow.
        files: the job's.
        columns: as `own_columns` returned them.
        size: rows at a time.
    """
    rows = table_rows(files.output())
    next(rows, None)
    while some := list(itertools.islice(rows, size)):
        read = [_texts(row, columns) for row in some]
        own = [_array(pa, [one[at] for one in read], kind) for at, kind in enumerate(columns.kinds)]
        first = columns.answer + 1
        members = [
            pa.array([one[at] for one in read], pa.string())
            for at in range(first, first + len(columns.members))
        ]
        yield own, members


def _array(pa: Any, texts: list[str | None], kind: Any) -> Any:  # noqa: ANN401
    if pa.types.is_boolean(kind):
        return pa.array([None if one is None else one == "true" for one in texts], kind)
    read = {"int64": int, "double": float}.get(str(kind))
    return pa.array([None if one is None else read(one) for one in texts] if read else texts, kind)


def _texts(row: bytes, columns: OwnColumns) -> list[str | None]:
    """A row's values; None for an empty cell that is not in quotes."""
    raw = split_row(row, columns.delimiter)
    (found,) = read_fields([row], columns.delimiter)
    if not isinstance(found, list) or len(found) != len(raw):
        read = (read_fields([one], columns.delimiter) for one in raw)
        found = [one[0] if isinstance(one, list) and one else "" for (one,) in read]
    return [text if cell else None for text, cell in zip(found, raw, strict=True)]
