"""What `make deploy` asks, and takes from variables and files."""

import boto3
import pytest

from local import template
from tools import answers, answers_files, plan
from tools.account_stack import DeployError
from tools.plan import about_limit

ACCOUNT = "0123456789abcdef0123456789abcdef"
GIVEN = {"CLOUDFLARE_ACCOUNT_ID": ACCOUNT, "CLOUDFLARE_API_TOKEN": "the-token"}
SAVED = {"stack_name": "dropbatch", "region": "eu-west-1", "aws_account": "111122223333"}


def test_variables_answer_everything():
    found = answers.ask(
        GIVEN | {"NOTIFICATION_EMAIL": "team@example.org", "PARAMETERS": "LogLevel=DEBUG"}, SAVED
    )
    assert found.parameters == {
        "CloudflareAccountId": ACCOUNT,
        "NotificationEmail": "team@example.org",
        "LogLevel": "DEBUG",
    }
    assert found.token == "the-token"
    assert "the-token" not in repr(found)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "CLOUDFLARE_ACCOUNT_ID"),
        ({"CLOUDFLARE_ACCOUNT_ID": ACCOUNT}, "CLOUDFLARE_API_TOKEN"),
        (GIVEN | {"CLOUDFLARE_ACCOUNT_ID": "mine"}, "CLOUDFLARE_ACCOUNT_ID must be"),
        (
            GIVEN | {"CLOUDFLARE_API_TOKEN": "two words"},
            "CLOUDFLARE_API_TOKEN must be one token",
        ),
        (GIVEN | {"NOTIFICATION_EMAIL": "team"}, "NOTIFICATION_EMAIL must be"),
        (GIVEN | {"PARAMETERS": "AiGatewayToken=x"}, "no parameter AiGatewayToken"),
        (GIVEN | {"PARAMETERS": "LogLevel=LOUD"}, "LogLevel must be one of"),
        (
            GIVEN | {"PARAMETERS": "ResultRetentionDays=90000"},
            "ResultRetentionDays must be a number from 0 to 36,500",
        ),
        (GIVEN | {"PARAMETERS": "ResultRetentionDays="}, "ResultRetentionDays must be a number"),
        (
            GIVEN | {"PARAMETERS": "BatchDeadlineHours=nan"},
            "BatchDeadlineHours must be a number from 0.001 to 168",
        ),
        (
            GIVEN | {"PARAMETERS": "MaxBatchBytes=9_500_000"},
            "MaxBatchBytes must be a number from 1,000 to 9,999,999",
        ),
        (
            GIVEN | {"PARAMETERS": f"DefaultModel=@cf/a/{'x' * 200}"},
            "DefaultModel must have 0 to 200 characters",
        ),
        (GIVEN | {"PARAMETERS": "LOUD"}, "PARAMETERS: .*LOUD"),
        (
            GIVEN | {"PARAMETERS": f"CloudflareAccountId={'f' * 32}"},
            "CLOUDFLARE_ACCOUNT_ID and PARAMETERS differ",
        ),
    ],
)
def test_missing_or_wrong_is_named_by_variable(given, named):
    with pytest.raises(DeployError, match=named) as found:
        answers.ask(given, SAVED)
    assert "two words" not in str(found.value)


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov", "aws-eusc"])
def test_every_region_is_accepted(partition):
    for region in boto3.Session().get_available_regions("lambda", partition):
        assert answers.ask_region({"AWS_REGION": region}, {}) == region
        assert answers_files._explicit({"AWS_REGION": region}) == {"region": region}


def test_environment_precedes_file(tmp_path):
    file = tmp_path / "deploy.env"
    file.write_text('# mine\n\nexport CLOUDFLARE_API_TOKEN="from-file"\nSTACK_NAME=second\n')
    found = answers.variables({"ANSWERS": str(file), "STACK_NAME": "third"})
    assert (found["CLOUDFLARE_API_TOKEN"], found["STACK_NAME"]) == ("from-file", "third")


def test_every_default_of_template_is_accepted():
    for name, value in template.defaults().items():
        assert answers.given_parameters({"PARAMETERS": f'{name}="{value}"'}) == {name: value}


def test_bad_line_is_not_quoted(tmp_path):
    file = tmp_path / "deploy.env"
    file.write_text("SMOKE=no\nthe-token\n")
    with pytest.raises(DeployError, match=r"deploy\.env, line 2") as found:
        answers.variables({"ANSWERS": str(file)})
    assert "the-token" not in str(found.value)
    with pytest.raises(DeployError, match="cannot be read"):
        answers.variables({"ANSWERS": str(tmp_path / "none.env")})


def test_low_account_limit_is_explained():
    used = plan.concurrency()
    said = about_limit(10, "eu-west-1")
    assert f"may run 10 functions at once, and this stack alone up to {used}" in said
    assert "--quota-code L-B99A9384" in said
    assert "request-service-quota-increase" not in about_limit(1000, "eu-west-1")
    assert plan.concurrency(worker=True) > used


GONE = [*answers.GONE, "Transport"]


@pytest.mark.parametrize("name", GONE)
def test_parameter_that_is_gone_is_refused_by_name(name):
    value = "gateway" if name == "Transport" else "1"
    with pytest.raises(DeployError, match=rf"(?s){name}.* is gone since 0\.9: .*from PARAMETERS"):
        answers.given_parameters({"PARAMETERS": f"LogLevel=INFO {name}={value}"})
