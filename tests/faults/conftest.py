"""The fixtures of tests/moto: Dropbatch in one process."""

from tests.moto.conftest import api, start, way

__all__ = ["api", "start", "way"]
