"""A test over many seeds: which one fails, how it is played again, and where it goes another way.

Two seeds never have the same times, so what happens is compared without them.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections import deque
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Trace = Callable[[str], None]

COMPARED, SHOWN = 20, 4
"""Seeds that passed last whose worlds are compared, and lines shown after the first difference."""


def seeds(number: int, first: int = 0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for so many seeds, with its arguments `seed` and `trace`; SEED=17 runs that alone.

    `trace` takes lines, as `Account.trace` gives them. A failure names its seed, the command that
    plays it again, and the first difference from the seed among those that passed before it that
    went the same way for longest.
    """

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**given: Any) -> None:
            passed: deque[tuple[int, list[str]]] = deque(maxlen=COMPARED)
            alone = os.environ.get("SEED")
            for seed in [int(alone)] if alone else range(first, first + number):
                lines: list[str] = []
                try:
                    test(seed=seed, trace=lines.append, **given)
                except Exception as error:
                    said = str(error) or type(error).__name__
                    told = [f"seed {seed}: {said}", f"again: {_command(test, seed)}"]
                    raise AssertionError("\n".join([*told, *_nearest(passed, lines)])) from error
                passed.append((seed, lines))

        signature = inspect.signature(test)
        own = [one for one in signature.parameters.values() if one.name not in {"seed", "trace"}]
        run.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return run

    return decorated


def _command(test: Callable[..., None], seed: int) -> str:
    file = Path(inspect.getfile(test))
    near = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"SEED={seed} python -m pytest '{near}' -k {test.__name__}"


def _nearest(passed: Iterable[tuple[int, list[str]]], lines: list[str]) -> Iterator[str]:
    """How a world goes another way than the one of a seed that passed."""
    found = max(passed, key=lambda one: _same(one[1], lines), default=None)
    if found is not None:
        yield f"first difference from seed {found[0]}, which passed:"
        yield from first_difference(found[1], lines)


def first_difference(passed: list[str], lines: list[str], shown: int = SHOWN) -> Iterator[str]:
    """The first lines that differ but for their times: `-` of what passed, `+` of what failed."""
    place = _same(passed, lines)
    yield from (f"  {line}" for line in lines[max(place - 1, 0) : place])
    yield from (f"- {line}" for line in islice(passed, place, place + shown))
    yield from (f"+ {line}" for line in islice(lines, place, place + shown))


def _same(one: list[str], other: list[str]) -> int:
    """How many lines two worlds have in common, but for their times."""
    pairs = enumerate(zip_longest(map(_untimed, one), map(_untimed, other)))
    return next((place for place, (left, right) in pairs if left != right), len(one))


def _untimed(line: str) -> str:
    return line.strip().partition(" ")[2]
