"""`make deploy` in a pseudo-terminal, on the local AWS."""

import json
import os
import shutil

import boto3
import pytest
from botocore.exceptions import ClientError

from local import aws
from local.processes import ROOT, bare_environment
from local.template import template
from tests.support.terminal import converse

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1800)]

SECONDS = 600
"""Of one deployment, which takes a minute on a machine that does nothing else."""
HOME = aws.Home(ROOT / ".local/test-deploy")
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
ANSWERS = {
    "AWS region": "us-east-1",
    "Cloudflare account id": aws.LOCAL_ACCOUNT,
    "Cloudflare API token": aws.LOCAL_TOKEN,
    "E-mail address": "",
    "Create it?": "y",
}


@pytest.fixture
def environment():
    """A local AWS and a local Workers AI without a stack."""
    aws.down(HOME)
    HOME.logs.mkdir(parents=True, exist_ok=True)
    port = aws.free_port()
    try:
        aws._start_services(HOME, port, "", with_workers_ai=True)
        api = f"WorkersAiBaseUrl=http://127.0.0.1:{port + 1}/client/v4"
        yield {
            **bare_environment(),
            **aws.CREDENTIALS,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "DROPBATCH_BUILD": "local",
            "PARAMETERS": f"{api} Architecture={aws._machine_architecture()}",
            "SAM_CLI_POLL_DELAY": "0.2",
            "SAM_CLI_TELEMETRY": "0",
        }
    finally:
        aws.down(HOME)


CHECKOUT = (
    "Makefile",
    "pyproject.toml",
    "samconfig.toml",
    "docs/limits.md",
    "requirements",
    ".local",
    ".venv",
)
SOURCES = ("dropbatch", "functions", "local", "shared", "tools")
MAKE = ("/usr/bin/env", "make", "--no-print-directory", "--assume-old=.local/sam/.stamp", "deploy")


@pytest.fixture
def checkout(tmp_path):
    """A checkout in which nobody has deployed yet."""
    folder = tmp_path / "checkout"
    (folder / "docs").mkdir(parents=True)
    for name in CHECKOUT:
        (folder / name).symlink_to(ROOT / name)
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    # SAM follows links: it would build where this one leads.
    shutil.copy(ROOT / "template.yaml", folder)
    return folder


def test_person_answers_questions_and_sees_job_end(environment, checkout):
    asked = []

    def answer(line):
        for question, typed in ANSWERS.items():
            if line.startswith(question):
                asked.append(question)
                return typed
        return None

    del environment["AWS_DEFAULT_REGION"]
    saved = checkout / "samconfig.local.toml"

    code, shown = converse(MAKE, answer, checkout, environment, seconds=SECONDS)

    assert code == 0, shown
    assert asked == list(ANSWERS)
    assert aws.LOCAL_TOKEN not in shown, "the terminal shows no token"
    assert aws.LOCAL_TOKEN not in saved.read_text()
    for words in (
        "This creates the stack",
        "a month while it is idle",
        "Lambda: this account",
        "The token is valid",
    ):
        assert words in shown
    assert "its bad line is in retry.jsonl" in shown

    code, shown = converse(MAKE, answer, checkout, {**environment, "SMOKE": "no"}, seconds=SECONDS)

    assert code == 0, shown
    assert asked == list(ANSWERS), "an update asks nothing"
    assert "smoke job:" not in shown


ROLE = """[profile base]
aws_access_key_id = test
aws_secret_access_key = test
[profile work]
role_arn = arn:aws:iam::000000000000:role/deployer
source_profile = base
mfa_serial = arn:aws:iam::000000000000:mfa/ada
"""


def make_role(environment):
    """Create the role, which may do anything."""
    port = int(environment["AWS_ENDPOINT_URL"].rpartition(":")[2])
    iam, anything = aws.client("iam", port), {"Effect": "Allow", "Action": "*"}
    for_all = json.dumps({"Statement": [{**anything, "Principal": "*"}]})
    iam.create_role(RoleName="deployer", AssumeRolePolicyDocument=for_all)
    policy = json.dumps({"Statement": [{**anything, "Resource": "*"}]})
    iam.put_role_policy(RoleName="deployer", PolicyName="all", PolicyDocument=policy)


def parameters(environment, region, stack):
    """A stack's parameters; None if there is no such stack."""
    client = boto3.client(
        "cloudformation", region, endpoint_url=environment["AWS_ENDPOINT_URL"], **KEYS
    )
    try:
        (found,) = client.describe_stacks(StackName=stack)["Stacks"]
    except ClientError:
        return None
    if found["StackStatus"] == "DELETE_COMPLETE":
        return None
    return {one["ParameterKey"]: one["ParameterValue"] for one in found["Parameters"]}


def test_second_stack_and_one_code_for_role(environment, checkout, tmp_path):
    """A role that wants a code signs in once for the tool, the SAM CLI and the next command."""
    asked = []
    answers = {"E-mail address": "", "Create it?": "y", "Delete the stack": "y"}

    def answer(line):
        if line.startswith("Enter MFA code"):
            asked.append(line)
            return f"{len(asked):06}"
        return next(
            (typed for question, typed in answers.items() if line.startswith(question)), None
        )

    make_role(environment)
    (tmp_path / "config").write_text(ROLE)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        del environment[name]
    environment |= {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "HOME": str(tmp_path),
        "SMOKE": "no",
        "AWS_PROFILE": "work",
    }
    given = {
        "CLOUDFLARE_ACCOUNT_ID": aws.LOCAL_ACCOUNT,
        "CLOUDFLARE_API_TOKEN": aws.LOCAL_TOKEN,
    }
    first, second = (
        {"AWS_REGION": "us-east-1"},
        {"STACK_NAME": "team-b", "AWS_REGION": "eu-west-1"},
    )

    for more in (first, second):
        code, shown = converse(MAKE, answer, checkout, environment | given | more, seconds=SECONDS)
        assert code == 0, shown
    assert "export DROPBATCH_STACK=team-b AWS_REGION=eu-west-1" in shown
    before = parameters(environment, "us-east-1", "dropbatch")
    assert parameters(environment, "eu-west-1", "team-b") == before
    assert parameters(environment, "us-east-1", "team-b") is None

    del environment["AWS_PROFILE"]  # Each stack's file remembers it.
    destroy = [*MAKE[:-1], "destroy", "STACK_NAME=team-b"]
    code, shown = converse(destroy, answer, checkout, environment, seconds=SECONDS)

    assert code == 0, shown
    assert parameters(environment, "eu-west-1", "team-b") is None
    assert parameters(environment, "us-east-1", "dropbatch") == before
    assert len(asked) == 1, asked
    assert sorted(path.name for path in checkout.glob("*.local.toml")) == [
        "samconfig.local.toml",
        "samconfig.team-b.local.toml",
    ]


def test_sam_deploys_with_defaults(environment, tmp_path):
    """Only the account's id is typed; the token is put in the secret afterwards."""
    aws.build()
    config = tmp_path / "samconfig.toml"  # SAM saves the answers in it.
    config.write_text((ROOT / "samconfig.toml").read_text())
    command = [str(ROOT / ".local/sam/bin/sam"), "deploy", "--guided", "--config-file", str(config)]
    command += ["--template-file", str(aws.BUILD / "template.yaml")]
    asked = []

    def answer(line):
        if not line.endswith(":"):
            return None
        assert asked[-1:] != [line], f"{line} is asked again"
        asked.append(line)
        return aws.LOCAL_ACCOUNT if line.startswith("Parameter CloudflareAccountId") else ""

    code, shown = converse(command, answer, tmp_path, environment, seconds=SECONDS)

    assert code == 0, shown
    assert "Successfully created/updated stack" in shown
    assert len(asked) > len(template()["Parameters"])
    port = int(environment["AWS_ENDPOINT_URL"].rpartition(":")[2])
    (stack,) = aws.client("cloudformation", port).describe_stacks(StackName="dropbatch")["Stacks"]
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    secrets = aws.client("secretsmanager", port)
    assert not secrets.get_secret_value(SecretId=outputs["ApiTokenSecretArn"])["SecretString"]
