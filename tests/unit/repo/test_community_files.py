"""What hosts and editors read."""

import re

import pytest
import yaml

from tests.support.shipped import ROOT
from tools.release import project


def test_workflow_runs_ci():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()

    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name
)
def test_issue_forms_have_what_host_demands(path):
    form = yaml.safe_load(path.read_text())

    assert {"name", "description", "body"} <= form.keys()
    assert all(
        field["attributes"]["label"] for field in form["body"] if field["type"] != "markdown"
    )


def test_changelog_is_in_form_of_keep_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)

    assert headings[0] == project()[0]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", heading) for heading in headings)
    assert len(text.partition("## ")[2].splitlines()) <= 40
    allowed = {"Added", "Gone", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= allowed
