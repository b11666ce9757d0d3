"""The fixtures of tests/journeys: Dropbatch in one process."""

from tests.journeys.conftest import api, start, way

__all__ = ["api", "start", "way"]
