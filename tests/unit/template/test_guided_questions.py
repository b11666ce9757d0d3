"""The SAM CLI's environment."""

import re
import subprocess

import pytest

from local.processes import ROOT, bare_environment
from tests.support.terminal import converse

pytestmark = pytest.mark.build

ASK = """
from samcli.commands._utils.template import get_template_parameters
from samcli.commands.deploy.guided_context import GuidedContext

for _ in range({times}):
    asked = GuidedContext.prompt_parameters(
        object.__new__(GuidedContext), get_template_parameters("template.yaml"), {{}}, "", ""
    )
    print("ANSWERED", {{name: one["Value"] for name, one in asked.items()}})
"""
ACCOUNT = "0123456789abcdef0123456789abcdef"
SECRET = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:cf-AbCdEf"
STACKS = [
    {},
    {"CloudflareApiTokenSecretArn": SECRET},
    {"Transport": "worker", "WorkerUrl": "https://w.example"},
]
"""What somebody answers; one process asks for all of them, since the SAM CLI takes 2 s to start."""


def test_enter_passes_every_optional_question(source):
    parameters, asked = list(source["Parameters"]), []

    def answer(line):
        if not (line.startswith("Parameter ") and line.endswith(":")):
            return None
        stack, number = divmod(len(asked), len(parameters))
        name = line.split()[1].rstrip(":")
        assert name == parameters[number], f"{name} is asked again, or too early: {STACKS[stack]}"
        asked.append(name)
        return {"CloudflareAccountId": ACCOUNT, **STACKS[stack]}.get(name, "")

    command = [str(ROOT / ".local/sam/bin/python"), "-c", ASK.format(times=len(STACKS))]
    code, shown = converse(
        command, answer, ROOT, {**bare_environment(), "SAM_CLI_TELEMETRY": "0"}, quiet=0.03
    )

    assert code == 0, shown
    assert asked == parameters * len(STACKS)
    assert shown.count("ANSWERED") == len(STACKS)


def test_programs_of_make_find_their_packages():
    programs = re.findall(
        r"^\t\.local/sam/bin/python -m (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert "tools.deploy" in programs

    command = [ROOT / ".local/sam/bin/python", "-c", f"import {', '.join(programs)}"]
    done = subprocess.run(
        command, cwd=ROOT, env=bare_environment(), capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
