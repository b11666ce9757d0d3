"""The submit function with one job and one batch to work on."""

from functools import partial

import pytest

from tests.support.doubles.submitting import begun


@pytest.fixture
def begin(table, monkeypatch):
    return partial(begun, table, monkeypatch)
