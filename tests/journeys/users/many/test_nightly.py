"""What the nightly examples run, night after night: a workflow of GitHub, and a crontab."""

import re
import shlex

import pytest
import yaml

from tests.support.shipped import ROOT

WORKFLOW = yaml.safe_load((ROOT / "examples/github-actions.yml").read_text())
CRONTAB = re.search(
    r"^0 2 \* \* \* (dropbatch .*)$", (ROOT / "docs/pipelines.md").read_text("utf-8"), re.MULTILINE
)[1]


def workflow_line(verb):
    """The workflow's command of Dropbatch with this verb."""
    scripts = [step.get("run", "") for step in WORKFLOW["jobs"]["translate"]["steps"]]
    return re.search(rf"^dropbatch {verb} .*$", "\n".join(scripts), re.MULTILINE)[0]


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"text":"{text}","target_lang":"es"}}\n')


@pytest.fixture
def run(command, tmp_path, monkeypatch):
    """Run a line of the examples in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda line: command.run(*shlex.split(line)[1:])


def jobs(command):
    return len(
        {key.split("/")[-2] for key in command.world.objects("results/") if "manifest" in key}
    )


def test_workflow_translates_what_is_new_each_night(command, run, tmp_path):
    for number in range(8):
        write(tmp_path / f"texts/{number}.jsonl", f"text {number}")

    for night, text in ((8, "text 0"), (9, "another text")):
        write(tmp_path / "texts/0.jsonl", text)
        assert run(workflow_line("put")).code == 0
        command.settle()
        assert run(workflow_line("get")).code == 0
        assert jobs(command) == night
        answers = sorted((tmp_path / "answers").rglob("output.jsonl"))
        assert len(answers) == 8
        assert text in answers[0].read_text()


def test_crontab_sends_what_is_new_and_fetches_what_is_over(command, run, tmp_path):
    for night in (1, 2):
        write(tmp_path / f"exports/{night}.jsonl", f"night {night}")
        outcome = run(CRONTAB)
        assert outcome.code == 0, outcome.err
        assert jobs(command) == night
        assert len(list((tmp_path / "answers").rglob("output.jsonl"))) == night
