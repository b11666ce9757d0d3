"""One file of answers a stack: what the variables name is looked at and deployed."""

import tomllib

import pytest

from tools import answers_files, deploy, destroy
from tools.account_stack import DeployError

GIVEN = {"CLOUDFLARE_ACCOUNT_ID": "0" * 32, "CLOUDFLARE_API_TOKEN": "token"}
FIRST = GIVEN | {"AWS_REGION": "eu-west-1"}
ADDED = """profile = "prod" # Ours.
tags = "CostCenter=42 Owner=data"
role_arn = "arn:aws:iam::111122223333:role/cfn"
s3_bucket = "packages"
confirm_changeset = true

[default.logs.parameters]
tail = true

[staging.deploy.parameters]
stack_name = "not ours"
"""


def files(cloud):
    return sorted(path.name for path in cloud.folder.glob("*.local.toml"))


PLACES = {
    "name and region": ("STACK_NAME=team-b AWS_REGION=us-east-1", "111111111111 us-east-1 team-b"),
    "name": ("STACK_NAME=team-b", "111111111111 eu-west-1 team-b"),
    "region": ("AWS_REGION=us-east-1", "111111111111 us-east-1 dropbatch"),
    "default region": ("AWS_DEFAULT_REGION=us-east-1", "111111111111 us-east-1 dropbatch"),
    "profile": ("AWS_PROFILE=prod", "222222222222 eu-west-1 dropbatch"),
}


@pytest.mark.parametrize("second", PLACES)
def test_second_stack_is_created_beside_first(cloud, second):
    more = dict(one.split("=") for one in PLACES[second][0].split())
    place = tuple(PLACES[second][1].split())
    file = f"samconfig.{place[2]}.{place[1]}.local.toml"
    deploy.deploy(FIRST)
    first = (cloud.folder / "samconfig.local.toml").read_text()
    (deployed,) = cloud.stacks

    deploy.deploy(GIVEN | {"CLOUDFLARE_ACCOUNT_ID": "f" * 32} | more)

    assert list(cloud.stacks) == [deployed, place]
    assert cloud.stacks[deployed] == {"CloudflareAccountId": "0" * 32}
    assert (cloud.folder / "samconfig.local.toml").read_text() == first
    assert files(cloud) == sorted(["samconfig.local.toml", file])

    deploy.deploy(more | {"PARAMETERS": "LogLevel=DEBUG"})
    deploy.deploy({})

    assert [where for where, _ in cloud.deployed[2:]] == [place, deployed]
    assert cloud.stacks[place] == {"CloudflareAccountId": "f" * 32, "LogLevel": "DEBUG"}
    destroy.destroy(more)
    destroy.destroy({})
    assert cloud.deleted == [place, deployed]


def test_name_of_two_stacks_is_not_enough(cloud):
    for region in ("eu-west-1", "us-east-1"):
        deploy.deploy(GIVEN | {"STACK_NAME": "team-b", "AWS_REGION": region})

    with pytest.raises(
        DeployError, match=r"samconfig\.team-b\.us-east-1\.local\.toml.*Set AWS_REGION"
    ):
        deploy.deploy({"STACK_NAME": "team-b"})


def test_credentials_of_another_account_create_another_stack(cloud):
    """The same command after `aws sso login` elsewhere updates nothing of the first account."""
    deploy.deploy(FIRST | {"PARAMETERS": "LogLevel=DEBUG"})
    cloud.accounts[None] = "999999999999"

    with pytest.raises(DeployError, match="CLOUDFLARE_ACCOUNT_ID"):
        deploy.deploy({})
    deploy.deploy(GIVEN)

    assert cloud.stacks["999999999999", "eu-west-1", "dropbatch"] == {
        "CloudflareAccountId": "0" * 32
    }


def test_keys_and_profile_of_file_are_not_mixed(cloud, added):
    with pytest.raises(
        DeployError, match=r"AWS_ACCESS_KEY_ID is set, and samconfig\.local\.toml names .* prod"
    ):
        deploy.deploy({"AWS_ACCESS_KEY_ID": "x"})


@pytest.mark.parametrize("name", ["my_stack", "9lives", "my stack", "x" * 129, "-a", "büro"])
@pytest.mark.parametrize("command", [deploy.deploy, destroy.destroy])
def test_name_that_cloudformation_refuses_is_refused_first(cloud, name, command):
    with pytest.raises(DeployError, match=r"STACK_NAME is .* must begin with a letter"):
        command(FIRST | {"STACK_NAME": name})

    assert (cloud.deployed, files(cloud)) == ([], [])


@pytest.fixture
def added(cloud):
    """The first stack's file, to which a user added what `sam deploy` takes."""
    deploy.deploy(FIRST)
    path = cloud.folder / "samconfig.local.toml"
    own, table, rest = path.read_text().partition("[default.dropbatch.parameters]")
    path.write_text(
        own.rstrip() + "\n" + ADDED + "\n" + table + rest.replace("111111111111", "222222222222")
    )
    cloud.stacks = {("222222222222", "eu-west-1", "dropbatch"): {"CloudflareAccountId": "0" * 32}}
    return path


def test_what_user_added_stays(cloud, added):
    before = tomllib.loads(added.read_text())

    deploy.deploy({"PARAMETERS": "LogLevel=DEBUG"})

    after = tomllib.loads(added.read_text())
    changed = after["default"]["deploy"]["parameters"].pop("parameter_overrides")
    before["default"]["deploy"]["parameters"].pop("parameter_overrides")
    assert after == before
    assert changed == f'CloudflareAccountId="{"0" * 32}" LogLevel="DEBUG"'
    assert 'profile = "prod" # Ours.\n' in added.read_text()
    assert "# One role for each function" in added.read_text()


def test_parameters_in_list_of_lines_are_changed(cloud, added):
    """The SAM CLI reads them in this form too."""
    lines = (
        f'parameter_overrides = [\n  "CloudflareAccountId={"0" * 32}", # [ours]\n  '
        '"LogLevel=INFO",\n]\n'
    )
    text = added.read_text().splitlines(keepends=True)
    added.write_text(
        "".join(lines if one.startswith("parameter_overrides") else one for one in text)
    )

    deploy.deploy({"PARAMETERS": "LogLevel=DEBUG"})

    assert cloud.stacks["222222222222", "eu-west-1", "dropbatch"]["LogLevel"] == "DEBUG"
    assert "tail = true" in added.read_text()


def test_file_of_odd_form_is_not_rewritten(cloud, added):
    odd = (
        "[default]\nglobal.parameters = {stack_name = 'dropbatch'}\ndeploy.parameters = "
        "{region = 'eu-west-1'}\n"
    )
    added.write_text(odd)
    cloud.stacks["111111111111", "eu-west-1", "dropbatch"] = {}

    with pytest.raises(DeployError, match=r"cannot be changed here"):
        deploy.deploy({"PARAMETERS": "LogLevel=DEBUG"})

    assert added.read_text() == odd


def test_broken_file_is_named(cloud, added):
    added.write_text("[default\n")

    with pytest.raises(DeployError, match=r"samconfig\.local\.toml: "):
        deploy.deploy({})


# ── what the stack has otherwise ──────────────────────────────────────────────────────────────────


@pytest.fixture
def place(cloud):
    """A stack with two parameters, which were changed in CloudFormation since."""
    deploy.deploy(FIRST | {"PARAMETERS": "InboxRetentionDays=7 SourcePrefix=100"})
    (place,) = cloud.stacks
    cloud.stacks[place] |= {"InboxRetentionDays": "0", "SourcePrefix": ""}
    return place


def saved(cloud):
    return answers_files.parameters_of(answers_files._read(cloud.folder / "samconfig.local.toml"))


def test_value_of_stack_precedes_saved_one(cloud, place, capsys):
    before = dict(cloud.stacks[place])

    deploy.deploy({})

    assert cloud.stacks[place] == saved(cloud) == before
    said = capsys.readouterr().out
    assert (
        "  InboxRetentionDays: 0 stays; samconfig.local.toml had 7. PARAMETERS changes it.\n"
        in said
    )
    assert "  SourcePrefix: (empty) stays; samconfig.local.toml had 100." in said
    assert "->" not in said
    deploy.deploy({})
    assert "stays" not in capsys.readouterr().out


def test_variable_precedes_value_of_stack(cloud, place, capsys):
    deploy.deploy({"PARAMETERS": "InboxRetentionDays=7"})

    assert (cloud.stacks[place]["InboxRetentionDays"], cloud.stacks[place]["SourcePrefix"]) == (
        "7",
        "",
    )
    assert "  InboxRetentionDays: 0 -> 7\n" in capsys.readouterr().out


def test_saved_parameter_that_is_gone_is_refused(cloud, place):
    path = cloud.folder / "samconfig.local.toml"
    path.write_text(path.read_text().replace("SourcePrefix=", "MaxCostPerDay=5 SourcePrefix="))

    with pytest.raises(DeployError, match=r"(?s)MaxCostPerDay is gone.*max_cost.*local\.toml"):
        deploy.deploy({})
