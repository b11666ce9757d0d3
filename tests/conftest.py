"""What every test needs before anything of Dropbatch is imported: the variables that Powertools reads at import."""

import os

import pytest

from tests.template import template

ON_THE_LOCAL_AWS = (
    "stack/",
    "faults/test_aws",
    "unit/test_artifact",
    "unit/test_local_aws",
    "unit/test_deploy",
    "unit/test_demo",
)

os.environ |= {
    name: value
    for name, value in template()["Globals"]["Function"]["Environment"]["Variables"].items()
    if name.startswith("POWERTOOLS_") and isinstance(value, str)
} | {"POWERTOOLS_SERVICE_NAME": "dropbatch"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that build or start the local stack go one by one, in one process; all others wherever one is free."""
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(ON_THE_LOCAL_AWS):
            item.add_marker(pytest.mark.xdist_group("local AWS"))
