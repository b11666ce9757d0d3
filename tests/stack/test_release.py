"""A release is deployed from its folder alone, on the local AWS."""

import shutil

import pytest

from local import aws
from local.processes import ROOT
from local.release import build_release
from tests.support.stack import MODEL, as_lines, assert_every_line_answers_its_request, requests, running_stack

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_a_release_deploys_from_its_folder_alone(tmp_path, monkeypatch):
    made, alone = tmp_path / "made", tmp_path / "alone"
    build_release("local", aws._machine_architecture(), made)
    shutil.copytree(made, alone)
    shutil.rmtree(made)
    monkeypatch.setattr(aws, "BUILD", alone)
    monkeypatch.setattr(aws, "_build", lambda home, lock: "a release")

    with running_stack(aws.Home(ROOT / ".local/test-release"), "MaxRequestsPerBatch=20") as stack:
        records = requests(50, "release")
        stack.drop("day.jsonl", as_lines(records), model=MODEL)
        folder, manifest = stack.wait("day.jsonl")
        assert manifest["counts"] == {"total": 50, "succeeded": 50, "failed": 0}
        assert_every_line_answers_its_request(stack.lines(folder), records)
