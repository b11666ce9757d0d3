"""What every test needs before anything of Dropbatch is imported: the variables that Powertools reads at import.

Hypothesis tries the same examples on every machine and in every run, keeps nothing and looks at no clock.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.template import template

os.environ |= {
    name: value
    for name, value in template()["Globals"]["Function"]["Environment"]["Variables"].items()
    if name.startswith("POWERTOOLS_") and isinstance(value, str)
} | {"POWERTOOLS_SERVICE_NAME": "dropbatch"}
settings.register_profile(
    "dropbatch",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dropbatch")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests of one file share a process, and with it a stack or an artifact, where making that takes long."""
    for item in items:
        if item.get_closest_marker("stack") or item.get_closest_marker("build"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
