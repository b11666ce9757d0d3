"""A release is deployed from its folder alone, on the local AWS."""

import shutil
import subprocess

import pytest
import yaml

from local import aws
from local.processes import ROOT, bare_environment
from tests.support.aws.stack import MODEL, requests, running_stack
from tools.release import build_release

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_release_deploys_from_its_folder_alone(tmp_path, monkeypatch):
    made, alone = tmp_path / "made", tmp_path / "alone"
    build_release("local", aws._machine_architecture(), made)
    shutil.copytree(made, alone)
    shutil.rmtree(made)
    monkeypatch.setattr(aws, "BUILD", alone)
    monkeypatch.setattr(aws, "_build", lambda home: "a release")

    with running_stack("test-release", "MaxRequestsPerBatch=20") as stack:
        records = requests(50, "release")
        stack.drop("day.jsonl", records, model=MODEL)
        stack.wait_for_all("day.jsonl", records)
        create_as_the_console_does(stack, alone, tmp_path / "packaged.yaml")


def create_as_the_console_does(stack, release, packaged):
    """Create a second stack from what `sam package` writes, by CloudFormation alone."""
    environment = {
        **bare_environment(),
        **aws.CREDENTIALS,
        "AWS_ENDPOINT_URL": stack.told["endpoint_url"],
        "SAM_CLI_TELEMETRY": "0",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
    command = [ROOT / ".local/sam/bin/sam", "package", "--s3-bucket", "dropbatch-packages"]
    command += ["--template-file", release / "template.yaml", "--output-template-file", packaged]
    subprocess.run(command, cwd=release, env=environment, check=True, capture_output=True)
    text = packaged.read_text()
    assert not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
    stack.s3.put_object(Bucket="dropbatch-packages", Key="packaged.yaml", Body=text.encode())
    formation = stack.client("cloudformation")
    formation.create_stack(
        StackName="console",
        # A body has 51,200 bytes at most.
        TemplateURL=f"{stack.told['endpoint_url']}/dropbatch-packages/packaged.yaml",
        Parameters=[{"ParameterKey": "CloudflareAccountId", "ParameterValue": aws.LOCAL_ACCOUNT}],
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
    )
    formation.get_waiter("stack_create_complete").wait(
        StackName="console", WaiterConfig={"Delay": 1}
    )
    (made,) = formation.describe_stacks(StackName="console")["Stacks"]
    outputs = {one["OutputKey"]: one["OutputValue"] for one in made["Outputs"]}
    assert {"BucketName", "ApiTokenSecretArn", "SubmitFunctionName"} <= set(outputs)
    submit = {"FunctionName": outputs["SubmitFunctionName"]}
    about = stack.client("lambda").get_function_configuration(**submit)
    variables = about["Environment"]["Variables"]
    assert variables["CLOUDFLARE_API_TOKEN_SECRET_ARN"] == outputs["ApiTokenSecretArn"]
