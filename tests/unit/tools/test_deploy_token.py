"""`make deploy`: where the token goes, and what happens to one that is refused."""

from types import SimpleNamespace

import boto3
import pytest
from moto import mock_aws

from dropbatch.errors import Error
from tools import answers, deploy, deploy_worker
from tools.account_stack import DeployError, Stack

ACCOUNT = "0123456789abcdef0123456789abcdef"
SAVED = {"stack_name": "dropbatch", "region": "eu-west-1"}
SETTINGS = {
    "TRANSPORT": "rest",
    "WORKERS_AI_BASE_URL": "https://api",
    "CLOUDFLARE_ACCOUNT_ID": ACCOUNT,
}


@pytest.fixture
def secrets(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        monkeypatch.setattr(deploy, "session", lambda saved: boto3.Session(region_name="eu-west-1"))
        yield boto3.client("secretsmanager", "eu-west-1")


@pytest.fixture
def stack(secrets):
    """A stack whose secret has no value yet."""
    arn = secrets.create_secret(Name="ApiToken-1")["ARN"]
    stack_id = "arn:aws:cloudformation:eu-west-1:111122223333:stack/dropbatch/5f3a"
    return Stack(
        "dropbatch",
        stack_id,
        "CREATE_COMPLETE",
        {},
        {"ApiTokenSecretArn": arn, "BucketName": "files"},
    )


def kept(secrets, stack):
    return secrets.get_secret_value(SecretId=stack.outputs["ApiTokenSecretArn"])["SecretString"]


def test_token_is_put_in_stacks_secret(secrets, stack):
    deploy._put_token({}, SAVED, stack, "the-token")
    assert kept(secrets, stack) == "the-token"


def test_update_leaves_token_alone(secrets, stack):
    deploy._put_token({}, SAVED, stack, "the-token")
    deploy._put_token({answers.TOKEN: "of-another-tool"}, SAVED, stack, "")
    assert kept(secrets, stack) == "the-token"


def test_deployment_without_token_asks_for_it(secrets, stack):
    with pytest.raises(DeployError, match="CLOUDFLARE_API_TOKEN"):
        deploy._put_token({}, SAVED, stack, "")
    deploy._put_token({answers.TOKEN: "the-token"}, SAVED, stack, "")
    assert kept(secrets, stack) == "the-token"


def test_deleted_secret_is_restored_with_token(secrets, stack):
    deploy._put_token({}, SAVED, stack, "old")
    secrets.delete_secret(SecretId=stack.outputs["ApiTokenSecretArn"])
    deploy._put_token({}, SAVED, stack, "new")
    assert kept(secrets, stack) == "new"


@pytest.fixture
def deployed(monkeypatch, secrets, stack):
    """A deployment that is over, with a token that the API refuses unless it is `good`."""
    deploy._put_token({}, SAVED, stack, "refused")
    monkeypatch.setattr(deploy, "deploy", lambda given: (SAVED, stack))
    monkeypatch.setattr(
        deploy,
        "_deployed_settings",
        lambda saved, stack: ({**SETTINGS, "BUCKET_NAME": "files"}, kept(secrets, stack)),
    )
    monkeypatch.setattr(deploy, "_unconfirmed_email", lambda saved, stack: "")
    monkeypatch.setattr(
        deploy, "check_token", lambda api: "" if api.token == "good" else "Not known."
    )
    monkeypatch.setattr(deploy.smoke_job, "run", lambda made: "The smoke job was fine.")
    for name in (answers.TOKEN, "SMOKE", "ANSWERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("deployed")
def test_refused_token_ends_it_without_smoke_job(capsys):
    assert deploy.main() == 1
    shown = capsys.readouterr()
    assert "the check of the token failed. Not known." in shown.err
    assert "smoke" not in shown.out


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize(("smoke", "ran"), [("yes", True), ("no", False)])
def test_refused_token_is_replaced_before_smoke_job(
    monkeypatch, secrets, stack, capsys, smoke, ran
):
    monkeypatch.setenv(answers.TOKEN, "good")
    monkeypatch.setenv("SMOKE", smoke)
    assert deploy.main() == 0
    assert kept(secrets, stack) == "good"
    shown = "".join(capsys.readouterr())
    assert ("The smoke job was fine." in shown) is ran
    assert "good" not in shown


@pytest.mark.usefixtures("deployed")
def test_refused_variable_leaves_good_token_in_place(monkeypatch, secrets, stack, capsys):
    deploy._put_token({}, SAVED, stack, "good")
    monkeypatch.setenv(answers.TOKEN, "of-another-tool")

    assert deploy.main() == 1
    assert kept(secrets, stack) == "good"
    assert "keeps its token; CLOUDFLARE_API_TOKEN was not put" in capsys.readouterr().err


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize("smoke", ["yes", "no"])
def test_unchecked_token_does_not_end_deployment(monkeypatch, secrets, stack, capsys, smoke):
    def fail(api):
        raise Error("api.cloudflare.com cannot be reached: certificate verify failed.")

    monkeypatch.setattr(deploy, "check_token", fail)
    monkeypatch.setenv(answers.TOKEN, "new")
    monkeypatch.setenv("SMOKE", smoke)

    assert deploy.main() == 0
    assert kept(secrets, stack) == "new"
    shown = capsys.readouterr().out
    assert "Its token could not be checked: api.cloudflare.com cannot be reached" in shown
    assert ("The smoke job was fine." in shown) == (smoke == "yes")
    assert "the token is valid" not in shown


def test_worker_is_deployed_with_stacks_secret(monkeypatch, stack):
    given = []
    monkeypatch.setattr(
        deploy_worker, "deploy_code", lambda name, account: f"https://{name}.workers.dev"
    )
    monkeypatch.setattr(deploy_worker, "give_secret", lambda *what: given.append(what))
    monkeypatch.setattr(deploy_worker, "wait_until_accepted", lambda url, value: "")
    monkeypatch.setattr(
        deploy, "check_worker", lambda url, value: "" if given else "The Worker does not accept it."
    )
    url = deploy._worker_url({"Transport": "worker", "CloudflareAccountId": ACCOUNT}, SAVED)[
        "WorkerUrl"
    ]
    assert url == "https://dropbatch-eu-west-1.workers.dev"
    assert deploy._worker_url({"Transport": "worker", "WorkerUrl": url}, SAVED) == {}
    assert deploy._worker_url({}, SAVED) == {}

    settings = {**SETTINGS, "TRANSPORT": "worker", "WORKER_URL": url}
    assert deploy._what_is_wrong(stack, settings, "shared") == ""
    assert deploy._what_is_wrong(stack, settings, "shared") == ""
    assert given == [("dropbatch-eu-west-1", ACCOUNT, "shared")], (
        "only a Worker that rejects it gets it"
    )


def test_sam_cli_is_run_without_token(monkeypatch):
    ran = []
    monkeypatch.setattr(deploy.os, "environ", {answers.TOKEN: "the-token", "PATH": "/bin"})
    monkeypatch.setattr(
        deploy,
        "subprocess",
        SimpleNamespace(run=lambda *command, **more: ran.append((command, more))),
    )
    deploy._sam("build", DROPBATCH_BUILD="arm64")
    assert "the-token" not in str(ran)
