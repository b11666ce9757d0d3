"""The SAM CLI's environment: its guided questions, which Enter answers but for one, and our own programs there."""

import re
import subprocess

import pytest

from local.processes import ROOT, bare_environment
from tests.support.terminal import converse

pytestmark = pytest.mark.build

ASK = """
import sys
from samcli.commands._utils.template import get_template_parameters
from samcli.commands.deploy.guided_context import GuidedContext

asked = GuidedContext.prompt_parameters(
    object.__new__(GuidedContext), get_template_parameters("template.yaml"), {}, "", ""
)
print("ANSWERED", {name: one["Value"] for name, one in asked.items()})
"""
ACCOUNT = "0123456789abcdef0123456789abcdef"
SECRET = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:cf-AbCdEf"


@pytest.mark.parametrize(
    "given",
    [{}, {"CloudflareApiTokenSecretArn": SECRET}, {"Transport": "worker", "WorkerUrl": "https://w.example"}],
    ids=["token", "own secret", "worker"],
)
def test_enter_passes_every_optional_question(source, given):
    asked = []

    def answer(line):
        if not line.startswith("Parameter "):
            return None
        name = line.split()[1].rstrip(":")
        assert name not in asked, f"{name} is asked again"
        asked.append(name)
        return {"CloudflareAccountId": ACCOUNT, **given}.get(name, "")

    command = [str(ROOT / ".local/sam/bin/python"), "-c", ASK]
    code, shown = converse(command, answer, ROOT, {**bare_environment(), "SAM_CLI_TELEMETRY": "0"})

    assert code == 0, shown
    assert asked == list(source["Parameters"])
    assert "ANSWERED" in shown


def test_programs_of_make_find_their_packages():
    programs = re.findall(r"^\t\.local/sam/bin/python -m (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "tools.deploy" in programs

    command = [ROOT / ".local/sam/bin/python", "-c", f"import {', '.join(programs)}"]
    done = subprocess.run(command, cwd=ROOT, env=bare_environment(), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
