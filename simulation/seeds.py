"""A test over many seeds: which one fails, how it is played again, where it goes another way."""

import functools
import inspect
import os
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

COMPARED, SHOWN = 20, 4
"""Worlds that passed last, one of which is compared, and lines shown after the difference."""


def seeds(number: int, first: int = 0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for so many seeds, with its arguments `seed` and `trace`; SEED=17 runs that alone.

    `trace` takes lines, as `Account.trace` gives them. A failure names its seed, the command that
    plays it again, and the first difference from a world that passed: of the last ones, the one
    that went the same way for longest.
    """

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**given: Any) -> None:
            passed: list[tuple[int, list[str]]] = []
            alone = os.environ.get("SEED")
            for seed in [int(alone)] if alone else range(first, first + number):
                lines: list[str] = []
                try:
                    test(seed=seed, trace=lines.append, **given)
                except Exception as error:
                    told = (
                        f"seed {seed}: {str(error) or type(error).__name__}\n{_again(test, seed)}"
                    )
                    raise AssertionError("\n".join([told, *_nearest(passed, lines)])) from error
                passed = [*passed[1 - COMPARED :], (seed, lines)]

        signature = inspect.signature(test)
        own = [one for one in signature.parameters.values() if one.name not in {"seed", "trace"}]
        run.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return run

    return decorated


def _again(test: Callable[..., None], seed: int) -> str:
    file = os.path.relpath(Path(inspect.getfile(test)))
    return f"again: SEED={seed} python -m pytest '{file}' -k {test.__name__}"


def _nearest(passed: list[tuple[int, list[str]]], lines: list[str]) -> list[str]:
    """How a world goes another way than the one of a seed that passed."""
    if not passed:
        return []
    seed, before = max(passed, key=lambda one: _same(one[1], lines))
    return [f"first difference from seed {seed}, which passed:", *first_difference(before, lines)]


def first_difference(passed: list[str], failed: list[str]) -> list[str]:
    """The first lines that differ but for their times: `-` of what passed, `+` of what failed."""
    place = _same(passed, failed)
    shown = slice(place, place + SHOWN)
    return [*(f"- {line}" for line in passed[shown]), *(f"+ {line}" for line in failed[shown])]


def _same(one: list[str], other: list[str]) -> int:
    """How many lines two worlds have in common, but for their times, which no two share."""
    pairs = zip(map(_untimed, one), map(_untimed, other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _untimed(line: str) -> str:
    return line.strip().partition(" ")[2]
