"""Set what every test needs before any module of Dropbatch is imported.

The variables that Powertools reads at import.

Hypothesis tries the same examples on every machine and in every run, stores nothing and has no
deadline.
"""

import fcntl
import gc
import os
import ssl
from functools import cache
from pathlib import Path

import botocore.session
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from local.template import powertools_variables
from tests.support.examples import FEWER, QUICK

gc.disable()  # Until all is imported, which makes no garbage.
os.environ |= powertools_variables()
# A session reads its models for 70 ms.
botocore.session.create_loader = cache(botocore.session.create_loader)
# Each HTTP client would read all certificates.
ssl.create_default_context = cache(ssl.create_default_context)
settings.register_profile(
    "dropbatch",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(QUICK, settings.get_profile("dropbatch"), max_examples=60 // FEWER)
settings.load_profile("dropbatch")

TOGETHER_BY_FILE = ("tests/deployed/", "tests/faults/", "tests/unit/")
"""Tests of a file share a stack, or are so short that handing them out one by one takes longer."""
TOGETHER = {
    "tests/deployed/test_stack.py": "builds",
    "tests/unit/repo/test_artifact.py": "builds",
    "tests/unit/template/": "template",
}
"""The tests that share builds or the template, by the beginning of their paths."""


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """One process imports the tests before the others.

    Together, each would compile every module (10 s in a clone).
    """
    with Path(__file__).open("rb") as one:
        try:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(one, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_finish():
    """Exclude what is imported by now from garbage collection.

    Searching it took a tenth of a run.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)


class _LongTestsLast(LoadScopeScheduling):
    """Files go first, the largest before others; then one by one the tests that take seconds.

    They are grouped by path: xdist 3.8 cannot read its own group marks with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        for place, share in TOGETHER.items():
            if nodeid.startswith(place):
                return share
        return nodeid.partition("::")[0] if nodeid.startswith(TOGETHER_BY_FILE) else nodeid


@pytest.hookimpl(optionalhook=True)  # there are no such hooks under `-p no:xdist`
def pytest_xdist_auto_num_workers(config):
    waits = "not stack" not in config.option.markexpr  # Tests of a stack mostly wait.
    return (os.cpu_count() or 1) + waits


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return _LongTestsLast(config, log)
