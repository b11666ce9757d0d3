"""A tick whose parts are replaced."""

import pytest

from tests.support.doubles.tick_parts import TickParts


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> TickParts:
    return TickParts(monkeypatch)
