"""What several tests of pacing share."""

import pytest

import functions.poll.tick


@pytest.fixture
def short_ticks(monkeypatch):
    """A tick looks once; the test decides when the next one comes."""
    monkeypatch.setattr(functions.poll.tick, "TICK_SECONDS", 0.0)
