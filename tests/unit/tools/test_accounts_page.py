"""docs/accounts.md: each command prints what the page says."""

import re
import shlex
import sys

import pytest
from botocore.exceptions import ClientError

import dropbatch.client.stack
from dropbatch.cli import main
from tools import answers_files, deploy, destroy

PAGE = answers_files.ROOT / "docs/accounts.md"
GIVEN = {"CLOUDFLARE_ACCOUNT_ID": "0" * 32, "CLOUDFLARE_API_TOKEN": "token"}
SETTINGS = {
    **GIVEN,
    "BUCKET_NAME": "files",
    "TRANSPORT": "rest",
    "WORKERS_AI_BASE_URL": "https://api.example.com",
}
DENIED = (
    "User: arn:aws:iam::111122223333:user/ada is not authorized to perform: "
    "cloudformation:DescribeStacks"
)


def commands():
    """Each command with the lines that the page shows after it."""
    text = PAGE.read_text("utf-8")
    for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            yield command, lines


@pytest.fixture
def user(cloud, monkeypatch):
    """Someone with one stack; types a command."""

    def denied(client, name):
        message = f"{DENIED} with an explicit deny in a service control policy"
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": message}}, "DescribeStacks")

    def type_in(command):
        program, *words = shlex.split(command)
        if program == "dropbatch":
            monkeypatch.setattr(sys, "argv", [program, *words])
            with pytest.raises(SystemExit):
                main()
            return
        with monkeypatch.context() as environment:
            for name, value in {**GIVEN, **dict(word.split("=", 1) for word in words[1:])}.items():
                environment.setenv(name, value)
            {"deploy": deploy, "destroy": destroy}[words[0]].main()

    for name in (
        "STACK_NAME",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "PARAMETERS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(deploy, "_deployed_settings", lambda saved, stack: (SETTINGS, "token"))
    monkeypatch.setattr(deploy, "_unconfirmed_email", lambda saved, stack: "")
    monkeypatch.setattr(deploy, "check_token", lambda api: "")
    monkeypatch.setattr(deploy, "session", lambda saved: cloud)
    monkeypatch.setattr(deploy.smoke_job, "run", lambda stack: "The smoke job was fine.")
    monkeypatch.setattr(dropbatch.client.stack, "_describe", denied)
    cloud.client = None
    deploy.deploy(GIVEN | {"AWS_REGION": "eu-west-1"})
    return type_in


def test_commands_print_what_page_says(user, capsys):
    shown = list(commands())
    for command, lines in shown:
        capsys.readouterr()
        user(command)
        said = "\n".join(capsys.readouterr())
        for line in lines:
            pattern = re.escape(line).replace(re.escape("..."), ".*")
            assert re.search(f"^{pattern}", said, re.MULTILINE), (command, line, said)
    assert len(shown) > 6


def test_page_is_short():
    assert len(PAGE.read_text("utf-8").splitlines()) <= 60
