"""The same Dropbatch in one process that tests/moto uses."""

from tests.moto.conftest import api, start

__all__ = ["api", "start"]
