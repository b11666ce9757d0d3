"""What `make deploy` asks, takes from variables, and keeps in one file a stack."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest

from local import template
from tools import answers, deploy, deploy_worker, destroy, plan
from tools.account_stack import ROOT, DeployError, Stack
from tools.plan import about_limit

ACCOUNT = "0123456789abcdef0123456789abcdef"
GIVEN = {"CLOUDFLARE_ACCOUNT_ID": ACCOUNT, "CLOUDFLARE_API_TOKEN": "the-token"}
FIRST = GIVEN | {"AWS_REGION": "eu-west-1"}
SAVED = {"stack_name": "dropbatch", "region": "eu-west-1", "aws_account": "111122223333"}


def test_variables_answer_everything():
    found = answers.ask(
        GIVEN | {"NOTIFICATION_EMAIL": "team@example.org", "PARAMETERS": "LogLevel=DEBUG"}, SAVED
    )
    told = {"CloudflareAccountId": ACCOUNT, "NotificationEmail": "team@example.org"}
    assert found.parameters == told | {"LogLevel": "DEBUG"}
    assert found.token == "the-token"
    assert "the-token" not in repr(found)


WRONG = [
    ({"CLOUDFLARE_ACCOUNT_ID": ""}, "set CLOUDFLARE_ACCOUNT_ID"),
    ({"CLOUDFLARE_API_TOKEN": ""}, "set CLOUDFLARE_API_TOKEN"),
    ({"CLOUDFLARE_ACCOUNT_ID": "mine"}, "CLOUDFLARE_ACCOUNT_ID must be"),
    ({"CLOUDFLARE_API_TOKEN": "two words"}, "CLOUDFLARE_API_TOKEN must be one token"),
    ({"NOTIFICATION_EMAIL": "team"}, "NOTIFICATION_EMAIL must be"),
    ({"PARAMETERS": "AiGatewayToken=x"}, "no parameter AiGatewayToken"),
    ({"PARAMETERS": "LogLevel=LOUD"}, "LogLevel must be one of"),
    ({"PARAMETERS": "ResultRetentionDays=90000"}, "must be a number from 0 to 36,500"),
    ({"PARAMETERS": "BatchDeadlineHours=nan"}, "must be a number from 0.001 to 168"),
    ({"PARAMETERS": "MaxBatchBytes=9_500_000"}, "must be a number from 1,000 to 9,999,999"),
    ({"PARAMETERS": f"DefaultModel=@cf/a/{'x' * 200}"}, "must have 0 to 200 characters"),
    ({"PARAMETERS": "LOUD"}, "PARAMETERS: .*LOUD"),
    ({"PARAMETERS": f"CloudflareAccountId={'f' * 32}"}, "and PARAMETERS differ"),
    ({"PARAMETERS": "Transport=gateway"}, r"gateway is gone since 0\.9"),
    *(
        ({"PARAMETERS": f"LogLevel=INFO {name}=1"}, rf"(?s){name} is gone since 0\.9.*PARAMETERS")
        for name in answers.GONE
    ),
]


def test_missing_or_wrong_is_named_by_variable(subtests):
    for given, named in WRONG:
        with subtests.test(given=given):
            with pytest.raises(DeployError, match=named) as found:
                answers.ask(GIVEN | given, SAVED)
            assert "two words" not in str(found.value)


def test_every_default_of_template_is_accepted():
    for name, value in template.defaults().items():
        assert answers.named_parameters({"PARAMETERS": f'{name}="{value}"'}) == {name: value}


def test_every_region_is_accepted():
    for partition in ("aws", "aws-cn", "aws-us-gov", "aws-eusc"):
        for region in boto3.Session().get_available_regions("lambda", partition):
            assert answers._named({"AWS_REGION": region}) == {"region": region}


def test_low_account_limit_is_explained():
    used = plan.concurrency()
    said = about_limit(10, "eu-west-1")
    assert f"may run 10 functions at once, and this stack alone up to {used}" in said
    assert "--quota-code L-B99A9384" in said
    assert "request-service-quota-increase" not in about_limit(1000, "eu-west-1")
    assert plan.concurrency(worker=True) > used


class Cloud:
    """AWS accounts with stacks, reached by profile, and the SAM CLI."""

    def __init__(self, folder):
        self.folder = folder
        self.accounts = {None: "111111111111", "prod": "222222222222"}
        self.stacks, self.deleted = {}, []

    def place(self, saved):
        return self.account_of(saved), saved["region"], saved["stack_name"]

    def account_of(self, saved):
        return self.accounts[saved.get("profile")]

    def find_stack(self, saved):
        parameters = self.stacks.get(place := self.place(saved))
        found = Stack(place[2], "arn", "UPDATE_COMPLETE", parameters, {})
        return None if parameters is None else found

    def delete(self, saved, _stack):
        self.deleted.append(self.place(saved))

    def sam(self, command, *options, **_):
        if command != "deploy":
            return
        given = dict(zip(options[1::2], options[2::2], strict=True))
        read = tomllib.loads(Path(given["--config-file"]).read_text())["default"]
        settings = read["global"]["parameters"] | read["deploy"]["parameters"]
        assert given["--region"] == settings["region"]
        assert given.get("--profile") == settings.get("profile")
        place = self.place(settings)
        self.stacks[place] = self.stacks.get(place, {}) | answers.parameters_of(settings)

    def text(self, name="samconfig.local.toml"):
        return (self.folder / name).read_text()


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    made = Cloud(tmp_path)
    (tmp_path / "samconfig.toml").write_text((ROOT / "samconfig.toml").read_text())
    for module, name, replacement in (
        (answers, "FOLDER", tmp_path),
        (answers, "account_of", made.account_of),
        (answers, "session", lambda saved: SimpleNamespace(region_name="eu-north-1")),
        *((module, "find_stack", made.find_stack) for module in (deploy, destroy)),
        (destroy, "physical_ids", lambda *_: {}),
        (destroy, "confirmed", lambda _: True),
        (destroy, "delete", made.delete),
        (destroy, "what_stays", lambda stack, names, file: file),
        (deploy, "_sam", made.sam),
        (deploy, "_limit", lambda saved, parameters: "enough"),
    ):
        monkeypatch.setattr(module, name, replacement)
    return made


def test_second_stack_has_another_name_and_file(cloud):
    deploy.deploy(FIRST)
    first, (place,) = cloud.text(), cloud.stacks
    second = {"STACK_NAME": "team-b", "AWS_REGION": "us-east-1", "AWS_PROFILE": "prod"}

    deploy.deploy(GIVEN | {"CLOUDFLARE_ACCOUNT_ID": "f" * 32} | second)
    deploy.deploy({"STACK_NAME": "team-b", "PARAMETERS": "LogLevel=DEBUG"})
    deploy.deploy({})

    other = ("222222222222", "us-east-1", "team-b")
    assert cloud.stacks == {
        place: {"CloudflareAccountId": ACCOUNT},
        other: {"CloudflareAccountId": "f" * 32, "LogLevel": "DEBUG"},
    }
    assert cloud.text() == first
    assert 'profile = "prod"' in cloud.text("samconfig.team-b.local.toml")
    assert "the-token" not in first
    destroy.destroy({"STACK_NAME": "team-b"})
    destroy.destroy({})
    assert cloud.deleted == [other, place]
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"samconfig.local.toml", "samconfig.*.local.toml"} <= set(ignored)


@pytest.mark.parametrize("elsewhere", [{"AWS_REGION": "us-east-1"}, {"AWS_PROFILE": "prod"}])
def test_file_of_a_stack_elsewhere_is_not_used(cloud, elsewhere):
    """The same command after `aws sso login` elsewhere updates nothing, and creates nothing."""
    deploy.deploy(FIRST)

    for command in (deploy.deploy, destroy.destroy):
        with pytest.raises(DeployError, match=r"local\.toml is of .* another STACK_NAME"):
            command(GIVEN | elsewhere)
    assert len(cloud.stacks) == 1


@pytest.mark.parametrize("name", ["my_stack", "9lives", "my stack", "x" * 129, "-a", "büro"])
def test_name_that_cloudformation_refuses_is_refused_first(cloud, name):
    for command in (deploy.deploy, destroy.destroy):
        with pytest.raises(DeployError, match=r"STACK_NAME is .* must be a letter"):
            command(FIRST | {"STACK_NAME": name})


ADDED = """
[default.logs.parameters]
tail = true

[staging.deploy.parameters]
stack_name = "not ours"
"""
MANY = """parameter_overrides = [
  "CloudflareAccountId=%s", # [ours]
  "LogLevel=INFO",
]
confirm_changeset = true
"""


def test_what_user_added_stays(cloud):
    deploy.deploy(FIRST)
    lines = cloud.text().splitlines(keepends=True)
    own = [MANY % ACCOUNT if one.startswith("parameter_overrides") else one for one in lines]
    (cloud.folder / "samconfig.local.toml").write_text("".join(own) + ADDED)
    before = tomllib.loads(cloud.text())

    deploy.deploy({"PARAMETERS": "LogLevel=DEBUG"})

    after = tomllib.loads(cloud.text())
    changed = after["default"]["deploy"]["parameters"].pop("parameter_overrides")
    del before["default"]["deploy"]["parameters"]["parameter_overrides"]
    assert after == before
    assert changed == f'CloudflareAccountId="{ACCOUNT}" LogLevel="DEBUG"'


def test_broken_file_is_named(cloud):
    (cloud.folder / "samconfig.local.toml").write_text("[default\n")

    with pytest.raises(DeployError, match=r"samconfig\.local\.toml: "):
        deploy.deploy({})


@pytest.fixture
def place(cloud):
    """A stack with two parameters, which were changed in CloudFormation since."""
    deploy.deploy(FIRST | {"PARAMETERS": "InboxRetentionDays=7 SourcePrefix=100"})
    (place,) = cloud.stacks
    cloud.stacks[place] |= {"InboxRetentionDays": "0", "SourcePrefix": ""}
    return place


def test_value_of_stack_precedes_saved_one(cloud, place, capsys):
    before = dict(cloud.stacks[place])

    deploy.deploy({})

    assert cloud.stacks[place] == before
    said = capsys.readouterr().out
    assert "  InboxRetentionDays: 0 stays; samconfig.local.toml had 7. PARAMETERS changes" in said
    assert "  SourcePrefix: (empty) stays; samconfig.local.toml had 100." in said
    assert "->" not in said
    deploy.deploy({})
    assert "stays" not in capsys.readouterr().out
    deploy.deploy({"PARAMETERS": "InboxRetentionDays=7"})
    assert cloud.stacks[place]["InboxRetentionDays"] == "7"
    assert "  InboxRetentionDays: 0 -> 7\n" in capsys.readouterr().out


def test_saved_parameter_that_is_gone_is_refused(cloud, place):
    path = cloud.folder / "samconfig.local.toml"
    path.write_text(path.read_text().replace("SourcePrefix=", "MaxCostPerDay=5 SourcePrefix="))

    with pytest.raises(DeployError, match=r"(?s)MaxCostPerDay is gone.*max_cost.*local\.toml"):
        deploy.deploy({})


def test_interrupted_tool_ends_as_shells_commands_do(cloud, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    deploy.deploy(FIRST)
    for module in (deploy, destroy, deploy_worker):
        monkeypatch.setattr(module.os, "environ", FIRST)
        monkeypatch.setattr(module, "find_stack", interrupted)
        assert module.main() == 130
        assert capsys.readouterr().err.startswith("\nInterrupted. ")
