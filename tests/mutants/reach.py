"""Which everyday tests reach a line, and how long each takes: what `make mutants` begins with.

As a plugin of pytest it records the times, beside the coverage.
"""

from __future__ import annotations

import ast
import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import coverage
import pytest

from tests.support.shipped import ROOT

DATA, SECONDS = ROOT / ".local/coverage/data", ROOT / ".local/coverage/seconds.json"
LINES_BACK = 12
"""How far back to look for a statement's first line."""
TELLING_SECONDS, OTHER_SECONDS = 10.0, 60.0
"""Of the most telling tests of a defect; then of tests from every file that reaches it."""

_seconds: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add one phase of a test."""
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write all times, in the process that receives the reports of all workers."""
    if not hasattr(session.config, "workerinput"):
        SECONDS.parent.mkdir(parents=True, exist_ok=True)
        SECONDS.write_text(json.dumps(_seconds))


class Reach:
    """What the last run of the everyday tests reached."""

    def __init__(self) -> None:
        self.data = coverage.CoverageData(basename=str(DATA))
        self.data.read()
        self.seconds: dict[str, float] = json.loads(SECONDS.read_text())
        self.lines: dict[Path, dict[int, list[str]]] = {}

    def tests(self, path: Path, line: int) -> list[str]:
        """The tests to run with a defect on a line, the most telling first.

        Those of the module and the quickest; those that reach what the line guards alternate with
        those that do not.
        """
        by_line = self._lines(path)
        telling = set(by_line.get(guarded(path).get(line, 0), ()))
        own = f"test_{path.stem}"
        places, ranks = Counter[tuple[bool, bool]](), dict[str, tuple[bool, int]]()
        for test in sorted(self._reaching(path, line), key=self.seconds.__getitem__):
            group = own not in test.partition("::")[0], test in telling
            ranks[test] = group[0], places[group]
            places[group] += 1
        ordered = sorted(ranks, key=ranks.__getitem__)
        first = self._within(ordered, TELLING_SECONDS)
        return list(dict.fromkeys([*first, *self._within(spread(ordered), OTHER_SECONDS)]))

    def _lines(self, path: Path) -> dict[int, list[str]]:
        if path not in self.lines:
            self.lines[path] = {
                at: [one.rpartition("|")[0] for one in contexts if one]
                for at, contexts in self.data.contexts_by_lineno(
                    str(path.relative_to(ROOT))
                ).items()
            }
        return self.lines[path]

    def _reaching(self, path: Path, line: int) -> set[str]:
        by_line = self._lines(path)
        near = (by_line.get(at) for at in range(line, line - LINES_BACK, -1))
        found = set(next(filter(None, near), ()))
        if not found:  # Done once, at import: any test that uses the module may notice it.
            users = {test for of in by_line.values() for test in of}
            files = {test.partition("::")[0] for test in users if test.startswith("tests/unit")}
            found = users | {test for test in self.seconds if test.partition("::")[0] in files}
        return found & self.seconds.keys()

    def _within(self, tests: list[str], seconds: float) -> list[str]:
        """The first of these tests, as many as take this long together; at least one."""
        chosen = []
        for test in tests:
            chosen.append(test)
            seconds -= self.seconds[test]
            if seconds < 0:
                break
        return chosen


def spread(tests: list[str]) -> list[str]:
    """The first of each file, then the second of each, and so on."""
    taken, ranks = Counter[str](), dict[str, int]()
    for test in tests:
        file = test.partition("::")[0]
        ranks[test] = taken[file]
        taken[file] += 1
    return sorted(tests, key=ranks.__getitem__)


@cache
def guarded(path: Path) -> dict[int, int]:
    """For each line of an `if`'s condition, the first line that runs only if it is true."""
    nodes = ast.walk(ast.parse(path.read_text()))
    ifs = [
        (range(one.test.lineno, (one.test.end_lineno or 0) + 1), one.body[0].lineno)
        for one in nodes
        if isinstance(one, ast.If)
    ]
    return {at: first for lines, first in ifs for at in lines if first not in lines}
