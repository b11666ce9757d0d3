"""`make deploy`: what each status of the stack asks for."""

import subprocess

import botocore.session
import pytest
from botocore.exceptions import ClientError

from shared.settings import MAX_CALLS
from tools import account_stack, answers_files, deploy, deploy_worker, destroy, plan
from tools.account_stack import NEVER_RAN, STEPS, DeployError, Stack, Step, next_step

STACK_ID = "arn:aws:cloudformation:eu-west-1:111122223333:stack/dropbatch/5f3a9c1e"
DEPLOYED = ("deploy", "--no-fail-on-empty-changeset")
GIVEN = {
    "CLOUDFLARE_ACCOUNT_ID": "0123456789abcdef0123456789abcdef",
    "CLOUDFLARE_API_TOKEN": "the-token",
    "AWS_REGION": "eu-west-1",
}
ANSWERED = (
    "[default.global.parameters]\nstack_name = "
    '"dropbatch"\n[default.deploy.parameters]\nresolve_s3 = true\n'
)


def stack_in(status, **parameters):
    return Stack("dropbatch", STACK_ID, status, parameters, {})


def statuses():
    model = botocore.session.get_session().get_service_model("cloudformation")
    return model.shape_for("StackStatus").enum


@pytest.mark.parametrize("status", statuses())
def test_every_cloudformation_status_has_step(status):
    assert status in STEPS
    step = next_step(stack_in(status))
    if status == "REVIEW_IN_PROGRESS":
        assert step is Step.CREATE
    elif status.endswith("_IN_PROGRESS"):
        assert step is Step.WAIT
    elif status in NEVER_RAN | {"DELETE_FAILED"}:
        assert step is Step.RECREATE
    elif status.endswith("ROLLBACK_FAILED"):
        assert step is Step.REPAIR
    elif status == "DELETE_COMPLETE":
        assert step is Step.CREATE
    else:
        assert step is Step.UPDATE


class Account:
    """An AWS account with at most one stack, a user who answers all questions."""

    def __init__(self, monkeypatch, tmp_path):
        self.stack = None
        self.after_deploy = stack_in("CREATE_COMPLETE", Architecture="arm64")
        self.sam_calls = []
        self.deleted = []
        self.says_yes = True
        self.questions = []
        self.tokens = []
        (tmp_path / "samconfig.toml").write_text("# The project's.\nversion = 0.1\n\n" + ANSWERED)
        monkeypatch.setattr(answers_files, "FOLDER", tmp_path)
        for module in (answers_files, deploy):
            monkeypatch.setattr(module, "account_of", lambda saved: "111122223333")
        for module in (deploy, destroy):
            monkeypatch.setattr(module, "find_stack", lambda saved: self.stack)
            monkeypatch.setattr(module, "confirmed", self._confirmed)
            monkeypatch.setattr(module, "delete", self._delete)
            monkeypatch.setattr(module, "physical_ids", lambda saved, stack, *names: {})
        monkeypatch.setattr(deploy, "_sam", self._sam)
        monkeypatch.setattr(deploy, "_limit", lambda saved, parameters: "Lambda: enough.")
        monkeypatch.setattr(
            deploy, "_put_token", lambda given, saved, stack, token: self.tokens.append(token)
        )
        self.folder = tmp_path

    def _confirmed(self, question):
        self.questions.append(question)
        return self.says_yes

    def _delete(self, saved, stack):
        self.deleted.append(stack.status)
        self.stack = None

    def _sam(self, *arguments, **environment):
        self.sam_calls.append((*arguments[:2], *environment.values()))
        if arguments[0] == "deploy":
            self.stack = self.after_deploy

    @property
    def saved(self):
        return answers_files._read(self.folder / "samconfig.local.toml")

    @property
    def created(self):
        return self.sam_calls == [("build", "arm64"), DEPLOYED] and self.tokens == [
            GIVEN["CLOUDFLARE_API_TOKEN"]
        ]


@pytest.fixture
def account(monkeypatch, tmp_path):
    return Account(monkeypatch, tmp_path)


@pytest.mark.parametrize("status", sorted(NEVER_RAN | {"DELETE_FAILED"}))
def test_failed_stack_is_deleted_if_agreed(account, status):
    account.stack = stack_in(status)

    deploy.deploy(GIVEN)

    assert account.deleted == [status]
    assert account.created


def test_nothing_is_done_without_agreement(account):
    account.stack, account.says_yes = stack_in("ROLLBACK_COMPLETE"), False

    with pytest.raises(DeployError, match="Nothing was changed"):
        deploy.deploy(GIVEN)

    assert account.deleted == account.sam_calls == []


@pytest.mark.parametrize(
    "status", ["UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "CREATE_COMPLETE", "UPDATE_FAILED"]
)
def test_usable_stack_is_updated_without_questions(account, status):
    account.stack = stack_in(status, Architecture="arm64")

    deploy.deploy({"AWS_REGION": "eu-west-1"})

    assert account.sam_calls == [("build", "arm64"), DEPLOYED]
    assert "parameter_overrides" not in (account.folder / "samconfig.local.toml").read_text(), (
        "they keep their values"
    )


@pytest.mark.parametrize(
    "status", ["UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "UPDATE_ROLLBACK_FAILED"]
)
def test_busy_or_broken_stack_is_left_alone(account, status):
    account.stack = stack_in(status)

    with pytest.raises(DeployError, match=status):
        deploy.deploy(GIVEN)

    assert account.sam_calls == []


def test_declining_change_set_ends_with_sentence(account, capsys, monkeypatch):
    account.after_deploy = stack_in("REVIEW_IN_PROGRESS")
    monkeypatch.setattr(deploy.os, "environ", GIVEN)

    assert deploy.main() == 1

    assert "change set was not executed" in capsys.readouterr().err


def test_declining_without_stack_ends_with_advice(account):
    account.after_deploy = None

    with pytest.raises(DeployError, match=r"samconfig\.local\.toml"):
        deploy.deploy(GIVEN)


def test_failure_of_sam_cli_is_its_exit_code(account, monkeypatch, capsys):
    def fail(*arguments, **environment):
        raise subprocess.CalledProcessError(3, "sam")

    monkeypatch.setattr(deploy, "_sam", fail)
    monkeypatch.setattr(deploy.os, "environ", GIVEN)

    assert deploy.main() == 3
    assert "run the same command again" in capsys.readouterr().err


def test_answers_are_saved_without_token(account):
    before = (account.folder / "samconfig.toml").read_text()

    deploy.deploy(GIVEN | {"NOTIFICATION_EMAIL": "team@example.org", "STACK_NAME": "second"})

    assert (account.folder / "samconfig.toml").read_text() == before
    text = (account.folder / "samconfig.local.toml").read_text()
    assert "The project's" not in text
    assert "the-token" not in text
    saved = account.saved
    assert (saved["stack_name"], saved["region"], saved["resolve_s3"]) == (
        "second",
        "eu-west-1",
        True,
    )
    assert answers_files.parameters_of(saved) == {
        "CloudflareAccountId": GIVEN["CLOUDFLARE_ACCOUNT_ID"],
        "NotificationEmail": "team@example.org",
    }
    ignored = (account_stack.ROOT / ".gitignore").read_text().splitlines()
    assert {"samconfig.local.toml", "samconfig.*.local.toml"} <= set(ignored)


TWO_EMAILS = {
    "NOTIFICATION_EMAIL": "a@example.org",
    "PARAMETERS": "NotificationEmail=b@example.org",
}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"CLOUDFLARE_ACCOUNT_ID": "mine"}, "must be"),
        ({"CLOUDFLARE_API_TOKEN": "two words"}, "must be"),
        (TWO_EMAILS, "NOTIFICATION_EMAIL and PARAMETERS differ"),
    ],
)
def test_wrong_variable_is_refused_before_build(account, given, says):
    account.stack = stack_in("UPDATE_COMPLETE")

    with pytest.raises(DeployError, match=says):
        deploy.deploy({"AWS_REGION": "eu-west-1"} | given)

    assert account.sam_calls == []


@pytest.mark.parametrize(("calls", "transport"), [("241", ""), ("2400", " AiGatewayId=g")])
def test_calls_that_a_token_does_not_have_are_refused(account, calls, transport):
    account.stack = stack_in("UPDATE_COMPLETE")

    with pytest.raises(DeployError, match=f"ApiCallsPerMinute {calls}: .* 240 calls a minute"):
        deploy.deploy(
            {"AWS_REGION": "eu-west-1", "PARAMETERS": f"ApiCallsPerMinute={calls}{transport}"}
        )

    assert account.sam_calls == []
    assert plan.MAX_CALLS == MAX_CALLS


def test_environment_that_lambda_refuses_is_not_built(account):
    secret = f"arn:aws:secretsmanager:eu-west-1:111122223333:secret:{'s' * 500}-AbCdEf"
    values = {
        **dict.fromkeys(
            ("CloudflareApiTokenSecretArn", "AiGatewayTokenSecretArn", "WorkerSecretArn"), secret
        ),
        **dict.fromkeys(("WorkersAiBaseUrl", "WorkerUrl"), f"https://{'a' * 200}"),
        "SourcePrefix": "p" * 512,
    }
    parameters = " ".join(f"{name}={value}" for name, value in values.items())
    given = GIVEN | {"PARAMETERS": parameters, "STACK_NAME": "x" * 128}

    with pytest.raises(
        DeployError, match=r"would have 4,\d+ bytes, and Lambda takes 4,096.*SecretArn \(560\)"
    ):
        deploy.deploy(given)

    assert account.sam_calls == []
    assert not (account.folder / "samconfig.local.toml").exists()


class Client:
    """CloudFormation, as far as `describe_stacks`."""

    def __init__(self, code):
        self.code = code

    def client(self, service):
        return self

    def describe_stacks(self, StackName):  # noqa: N803 - boto3's name
        raise ClientError({"Error": {"Code": self.code, "Message": ""}}, "DescribeStacks")


def test_missing_stack_is_none(monkeypatch):
    monkeypatch.setattr(account_stack, "session", lambda saved: Client("ValidationError"))

    assert account_stack.find_stack({"stack_name": "dropbatch"}) is None


def test_denied_call_is_not_missing_stack(monkeypatch):
    monkeypatch.setattr(account_stack, "session", lambda saved: Client("AccessDenied"))

    with pytest.raises(ClientError):
        account_stack.find_stack({"stack_name": "dropbatch"})


SETTINGS = {
    "BUCKET_NAME": "files",
    "CLOUDFLARE_ACCOUNT_ID": "0123456789abcdef0123456789abcdef",
    "TRANSPORT": "rest",
}


def test_closing_words_say_what_was_checked():
    said = deploy.closing_words(SETTINGS, "", smoke=False)

    assert "may read Workers AI" in said
    assert "Not checked" in said
    assert "Workers AI - Edit" in said
    assert "Confirm" not in said
    assert "Not checked" not in deploy.closing_words(SETTINGS, "", smoke=True), (
        "the smoke job checks it"
    )


class Topic:
    """SNS, as far as `list_subscriptions_by_topic`."""

    def __init__(self, subscription_arn):
        self.subscription_arn = subscription_arn

    def client(self, service):
        return self

    def list_subscriptions_by_topic(self, TopicArn):  # noqa: N803 - boto3's name
        if self.subscription_arn is None:
            raise ClientError(
                {"Error": {"Code": "AuthorizationError", "Message": ""}}, "ListSubscriptionsByTopic"
            )
        return {
            "Subscriptions": [
                {"Endpoint": "team@example.org", "SubscriptionArn": self.subscription_arn}
            ]
        }


@pytest.mark.parametrize(
    ("subscription_arn", "unconfirmed"),
    [
        ("PendingConfirmation", "team@example.org"),
        ("arn:aws:sns:eu-west-1:111122223333:topic:5f3a", ""),
        (None, "team@example.org"),
    ],
    ids=["pending", "confirmed", "may not look"],
)
def test_unconfirmed_subscription_is_named(monkeypatch, subscription_arn, unconfirmed):
    monkeypatch.setattr(
        deploy, "physical_ids", lambda saved, stack, *names: {"Notifications": "topic"}
    )
    monkeypatch.setattr(deploy, "session", lambda saved: Topic(subscription_arn))

    found = deploy._unconfirmed_email(
        {}, stack_in("CREATE_COMPLETE", NotificationEmail="team@example.org")
    )

    assert found == unconfirmed


def test_destroy_says_what_stays():
    names = {"Bucket": "files", "Table": "ledger", "ApiToken": "secret"}
    said = destroy.what_stays(stack_in("UPDATE_COMPLETE"), names, "samconfig.local.toml")

    for words in (
        'Bucket("files")',
        "--table-name ledger",
        "recovery window",
        "eu-west-1",
        "no-deletion-protection",
    ):
        assert words in said


def test_destroy_asks_first(account):
    account.stack, account.says_yes = stack_in("UPDATE_COMPLETE"), False

    with pytest.raises(DeployError, match="Nothing was deleted"):
        destroy.destroy(GIVEN)
    assert account.deleted == []

    account.says_yes = True
    destroy.destroy(GIVEN)
    assert account.deleted == ["UPDATE_COMPLETE"]
    assert "dropbatch" in account.questions[-1]


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("tool", "step"), [(deploy, "_sam"), (destroy, "confirmed"), (deploy_worker, "find_stack")]
)
def test_interrupted_tool_ends_as_shells_commands_do(account, monkeypatch, capsys, tool, step):
    account.stack = stack_in("UPDATE_COMPLETE")
    monkeypatch.setattr(deploy.os, "environ", GIVEN)
    monkeypatch.setattr(tool, step, interrupted)

    assert tool.main() == 130
    assert capsys.readouterr().err.startswith("\nInterrupted. ")


@pytest.mark.parametrize("status", [None, "UPDATE_IN_PROGRESS"])
def test_destroy_without_idle_stack_ends_with_advice(account, status):
    account.stack = stack_in(status) if status else None

    with pytest.raises(DeployError):
        destroy.destroy(GIVEN)
    assert account.questions == []
