"""A plugin of pytest for `make coverage`: keeps how long each test took, beside what it reached."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / ".local/coverage/data"
SECONDS = ROOT / ".local/coverage/seconds.json"

_seconds: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report):
    """Add a phase of a test."""
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session):
    """Write all times down, in the process that hears of every worker's tests."""
    if not hasattr(session.config, "workerinput"):
        SECONDS.parent.mkdir(parents=True, exist_ok=True)
        SECONDS.write_text(json.dumps(_seconds))
