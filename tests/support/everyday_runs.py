"""A pytest plugin for `make mutants`: records how long each test took, beside the coverage."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / ".local/coverage/data"
SECONDS = ROOT / ".local/coverage/seconds.json"

_seconds: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add one phase of a test."""
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write all times, in the process that receives the reports of all workers."""
    if not hasattr(session.config, "workerinput"):
        SECONDS.parent.mkdir(parents=True, exist_ok=True)
        SECONDS.write_text(json.dumps(_seconds))
