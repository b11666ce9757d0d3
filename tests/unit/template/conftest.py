"""The template, translated once for all its tests: that takes seconds."""

import pytest

from local.template import template as as_written
from tests.support.aws.translated_template import translated


@pytest.fixture(scope="session")
def source():
    return as_written()


@pytest.fixture(scope="session")
def template():
    return translated()


@pytest.fixture(scope="session")
def of_type(template):
    def find(kind):
        return {
            name: resource.get("Properties", {})
            for name, resource in template["Resources"].items()
            if resource["Type"] == kind
        }

    return find
