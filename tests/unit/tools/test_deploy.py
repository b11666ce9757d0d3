"""`make deploy` and `make destroy`: what each status of the stack asks for, and the token's way."""

import subprocess
from types import SimpleNamespace

import boto3
import botocore.session
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from dropbatch.cli.cloudflare import Reply
from dropbatch.errors import Error
from shared.settings import MAX_CALLS
from tests.support.aws.resources import stubbed
from tools import account_stack, answers, deploy, deploy_worker, destroy, plan
from tools.account_stack import NEVER_RAN, DeployError, Stack, Step, next_step

ACCOUNT = "0123456789abcdef0123456789abcdef"
STACK_ID = "arn:aws:cloudformation:eu-west-1:111122223333:stack/dropbatch/5f3a9c1e"
DEPLOYED = ("deploy", "--no-fail-on-empty-changeset")
REGION = {"AWS_REGION": "eu-west-1"}
GIVEN = {"CLOUDFLARE_ACCOUNT_ID": ACCOUNT, "CLOUDFLARE_API_TOKEN": "the-token"} | REGION
SAVED = {"stack_name": "dropbatch", "region": "eu-west-1"}
API = {"WORKERS_AI_BASE_URL": "https://api", "CLOUDFLARE_ACCOUNT_ID": ACCOUNT}
SETTINGS = {"BUCKET_NAME": "files", "TRANSPORT": "rest", **API}


def stack_in(status, **parameters):
    return Stack("dropbatch", STACK_ID, status, parameters, {})


STEPS = {
    "REVIEW_IN_PROGRESS": Step.CREATE,
    "DELETE_COMPLETE": Step.CREATE,
    **dict.fromkeys([*NEVER_RAN, "DELETE_FAILED"], Step.RECREATE),
    **dict.fromkeys(["UPDATE_ROLLBACK_FAILED", "IMPORT_ROLLBACK_FAILED"], Step.REPAIR),
    "UPDATE_FAILED": Step.UPDATE,
}


def test_every_cloudformation_status_has_step(subtests):
    model = botocore.session.get_session().get_service_model("cloudformation")
    for status in model.shape_for("StackStatus").enum:
        others = Step.WAIT if status.endswith("_IN_PROGRESS") else Step.UPDATE
        with subtests.test(status):
            assert next_step(stack_in(status)) is STEPS.get(status, others)
    assert next_step(stack_in("NEW_FAILED")) is Step.REPAIR


class Account:
    """An AWS account with at most one stack, a user who answers all questions."""

    def __init__(self, monkeypatch, tmp_path):
        self.stack = None
        self.after_deploy = stack_in("CREATE_COMPLETE", Architecture="arm64")
        self.sam_calls, self.deleted, self.questions = [], [], []
        self.says_yes = True
        (tmp_path / "samconfig.toml").write_text("[default.deploy.parameters]\nresolve_s3 = true\n")
        monkeypatch.setattr(answers, "FOLDER", tmp_path)
        monkeypatch.setattr(answers, "account_of", lambda saved: "111122223333")
        for module in (deploy, destroy):
            monkeypatch.setattr(module, "find_stack", lambda saved: self.stack)
            monkeypatch.setattr(module, "confirmed", self._confirmed)
            monkeypatch.setattr(module, "delete", self._delete)
        monkeypatch.setattr(destroy, "physical_ids", lambda saved, stack, *names: {})
        monkeypatch.setattr(deploy, "_sam", self._sam)
        monkeypatch.setattr(deploy, "_limit", lambda saved, parameters: "Lambda: enough.")
        monkeypatch.setattr(deploy, "check_token", self._check_token)
        self.refused = ()
        self.file = tmp_path / "samconfig.local.toml"

    def _check_token(self, api):
        if "unreachable" in self.refused:
            raise Error("Cloudflare cannot be reached.")
        return "Not known." if api.token in self.refused else ""

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


@pytest.fixture
def account(monkeypatch, tmp_path):
    return Account(monkeypatch, tmp_path)


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "DELETE_FAILED"])
def test_failed_stack_is_deleted_if_agreed(account, status):
    account.stack = stack_in(status)

    *_, token = deploy.deploy(GIVEN)

    assert account.deleted == [status]
    assert account.sam_calls == [("build", "arm64"), DEPLOYED]
    assert token == "the-token"
    assert "the-token" not in account.file.read_text()


def test_refused_token_is_asked_for_again_and_an_unchecked_one_is_kept(account, monkeypatch):
    typed = ["the-token", "good"]
    monkeypatch.setattr(deploy.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(answers, "ask_token", lambda _: typed.pop(0))
    given = answers.Answers({"CloudflareAccountId": ACCOUNT}, "the-token")
    for refused, token in ((("the-token",), "good"), (("unreachable",), "the-token")):
        account.refused = refused
        assert deploy._with_good_token(given).token == token


@pytest.mark.parametrize(
    ("status", "refused", "words"),
    [
        (None, ("the-token",), r"Not known\. Nothing was created"),
        ("ROLLBACK_COMPLETE", (), "Nothing was changed"),  # The user says no.
        ("UPDATE_IN_PROGRESS", (), "UPDATE_IN_PROGRESS"),
        ("DELETE_IN_PROGRESS", (), "DELETE_IN_PROGRESS"),
        ("UPDATE_ROLLBACK_FAILED", (), "UPDATE_ROLLBACK_FAILED"),
    ],
)
def test_nothing_is_done_without_a_token_an_agreement_and_an_idle_stack(
    account, status, refused, words
):
    account.stack, account.says_yes, account.refused = status and stack_in(status), False, refused

    with pytest.raises(DeployError, match=words):
        deploy.deploy(GIVEN)

    assert account.deleted == account.sam_calls == []


@pytest.mark.parametrize("status", ["UPDATE_COMPLETE", "UPDATE_FAILED"])
def test_usable_stack_is_updated_without_questions(account, status):
    account.stack = stack_in(status, Architecture="arm64")

    deploy.deploy(REGION)

    assert account.sam_calls == [("build", "arm64"), DEPLOYED]
    assert "parameter_overrides" not in account.file.read_text(), "they keep their values"


@pytest.mark.parametrize("after", [stack_in("REVIEW_IN_PROGRESS"), None])
def test_declining_change_set_ends_with_sentence(account, after):
    account.after_deploy = after

    with pytest.raises(DeployError, match=r"change set was not executed.*samconfig\.local\.toml"):
        deploy.deploy(GIVEN)


def test_failure_of_sam_cli_is_its_exit_code(account, monkeypatch, capsys):
    def fail(*arguments, **environment):
        raise subprocess.CalledProcessError(3, "sam")

    monkeypatch.setattr(deploy, "_sam", fail)
    monkeypatch.setattr(deploy.os, "environ", GIVEN)

    assert deploy.main() == 3
    assert "run the same command again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"CLOUDFLARE_ACCOUNT_ID": "mine"}, "must be"),
        ({"CLOUDFLARE_API_TOKEN": "two words"}, "must be"),
        ({"PARAMETERS": "ApiCallsPerMinute=241"}, "ApiCallsPerMinute 241: .* 240 calls a minute"),
        ({"PARAMETERS": "ApiCallsPerMinute=2400 AiGatewayId=g"}, "ApiCallsPerMinute 2400: "),
    ],
)
def test_wrong_variable_is_refused_before_build(account, given, says):
    account.stack = stack_in("UPDATE_COMPLETE")

    with pytest.raises(DeployError, match=says):
        deploy.deploy(REGION | given)

    assert account.sam_calls == []
    assert plan.MAX_CALLS == MAX_CALLS


def test_denied_call_is_not_missing_stack(monkeypatch):
    with stubbed("cloudformation") as stub:
        made = SimpleNamespace(client=lambda _: stub.client)
        monkeypatch.setattr(account_stack, "session", lambda saved: made)
        stub.add_client_error("describe_stacks", "ValidationError")
        assert account_stack.find_stack(SAVED) is None

        stub.add_client_error("describe_stacks", "AccessDenied")
        with pytest.raises(ClientError):
            account_stack.find_stack(SAVED)


def test_closing_words_say_what_was_checked():
    said = deploy.closing_words(SETTINGS, "", smoke=False)

    assert "may read Workers AI" in said
    assert "Not checked" in said
    assert "Workers AI - Edit" in said
    assert "Alarms" not in said
    told = deploy.closing_words(SETTINGS, "team@example.org", smoke=True)
    assert "Not checked" not in told, "the smoke job checks it"
    assert "team@example.org once the link" in told


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
    outputs = {"ApiTokenSecretArn": arn, "BucketName": "files"}
    return Stack("dropbatch", STACK_ID, "CREATE_COMPLETE", {}, outputs)


def kept(secrets, stack):
    return account_stack._secret_value(secrets, stack.outputs["ApiTokenSecretArn"])


@pytest.fixture
def deployed(monkeypatch, secrets, stack):
    """A deployment that is over, with a token that the API refuses unless it is good."""

    def play(held="", offered="", smoke="no"):
        if held:
            secret = stack.outputs["ApiTokenSecretArn"]
            secrets.put_secret_value(SecretId=secret, SecretString=held)
        monkeypatch.setenv(answers.TOKEN, offered)
        monkeypatch.setenv("SMOKE", smoke)
        return deploy.main()

    monkeypatch.setattr(deploy, "deploy", lambda given: (SAVED, stack, ""))
    monkeypatch.setattr(deploy, "settings_of", lambda *_: (SETTINGS, kept(secrets, stack)))
    monkeypatch.setattr(
        deploy, "check_token", lambda api: "" if api.token.startswith("good") else "Not known."
    )
    monkeypatch.setattr(deploy.smoke_job, "run", lambda made: "The smoke job was fine.")
    return play


@pytest.mark.parametrize(
    ("held", "offered", "stays", "says"),
    [
        ("", "good", "good", ""),
        ("good", "", "good", ""),
        ("refused", "good", "good", ""),
        ("good", "good-too", "good-too", ""),
        ("good", "of-another-tool", "good", "keeps its token, but the check of the token failed"),
        ("refused", "", "refused", "the check of the token failed. Not known."),
        ("", "", "", "set CLOUDFLARE_API_TOKEN"),
    ],
)
def test_secret_gets_token_that_is_accepted(
    deployed, secrets, stack, capsys, held, offered, stays, says
):
    assert deployed(held, offered) == bool(says)
    assert kept(secrets, stack) == stays
    shown = capsys.readouterr()
    assert says in shown.err
    assert not offered or offered not in shown.out


@pytest.mark.parametrize(
    ("token", "smoke", "ran"), [("good", "yes", 1), ("good", "no", 0), ("x", "yes", 0)]
)
def test_smoke_job_runs_with_good_token_alone(deployed, capsys, token, smoke, ran):
    deployed(token, smoke=smoke)
    assert capsys.readouterr().out.count("The smoke job was fine.") == ran


def test_deleted_secret_is_restored_with_token(secrets, stack, deployed):
    deployed("good")
    secrets.delete_secret(SecretId=stack.outputs["ApiTokenSecretArn"])
    assert deployed(offered="good-too") == 0
    assert kept(secrets, stack) == "good-too"


def test_unchecked_token_does_not_end_deployment(monkeypatch, secrets, stack, deployed, capsys):
    def fail(api):
        raise Error("api.cloudflare.com cannot be reached: certificate verify failed.")

    monkeypatch.setattr(deploy, "check_token", fail)

    assert deployed(offered="new", smoke="yes") == 0
    assert kept(secrets, stack) == "new"
    shown = capsys.readouterr().out
    assert "Its token could not be checked: api.cloudflare.com cannot be reached" in shown
    assert "The smoke job was fine." in shown
    assert "token is valid" not in shown


def test_worker_is_deployed_with_stacks_secret(monkeypatch, stack):
    given = []
    monkeypatch.setattr(
        deploy_worker, "deploy_code", lambda name, account: f"https://{name}.workers.dev"
    )
    monkeypatch.setattr(deploy_worker, "give_secret", lambda *what: given.append(what))
    monkeypatch.setattr(deploy_worker, "wait_until_accepted", lambda url, value: "")
    monkeypatch.setattr(deploy_worker, "check_worker", lambda *_: "" if given else "It does not.")
    worker = {"Transport": "worker", "CloudflareAccountId": ACCOUNT}
    url = deploy._worker_url(worker, SAVED)["WorkerUrl"]
    assert url == "https://dropbatch-eu-west-1.workers.dev"
    assert deploy._worker_url({"Transport": "worker", "WorkerUrl": url}, SAVED) == {}
    assert deploy._worker_url({}, SAVED) == {}

    settings = {**SETTINGS, "TRANSPORT": "worker", "WORKER_URL": url}
    assert deploy._checked(stack, settings, "shared") == ("", "")
    assert deploy._checked(stack, settings, "shared") == ("", "")
    # Only a Worker that rejects it gets it.
    assert given == [("dropbatch-eu-west-1", ACCOUNT, "shared")]


def test_sam_cli_is_run_without_token(monkeypatch):
    ran = []
    monkeypatch.setattr(deploy.os, "environ", {answers.TOKEN: "the-token", "PATH": "/bin"})
    run = SimpleNamespace(run=lambda *command, **more: ran.append((command, more)))
    monkeypatch.setattr(deploy, "subprocess", run)
    deploy._sam("build", DROPBATCH_BUILD="arm64")
    assert "the-token" not in str(ran)


def test_destroy_says_what_stays():
    names = {"Bucket": "files", "Table": "ledger", "ApiToken": "secret"}
    said = destroy.what_stays(stack_in("UPDATE_COMPLETE"), names, "samconfig.local.toml")

    assert 'Bucket("files")' in said
    assert "delete-table --region eu-west-1 --table-name ledger" in said
    assert "no-deletion-protection" in said
    assert "ledger" not in destroy.what_stays(stack_in("UPDATE_COMPLETE"), {}, "")


def test_destroy_asks_first_if_there_is_an_idle_stack(account):
    account.stack, account.says_yes = stack_in("UPDATE_COMPLETE"), False

    with pytest.raises(DeployError, match="Nothing was deleted"):
        destroy.destroy(GIVEN)
    assert account.deleted == []

    account.says_yes = True
    destroy.destroy(GIVEN)
    assert account.deleted == ["UPDATE_COMPLETE"]
    assert "dropbatch" in account.questions[-1]

    for stack in (None, stack_in("UPDATE_IN_PROGRESS")):
        account.stack, account.questions = stack, []
        with pytest.raises(DeployError):
            destroy.destroy(GIVEN)
        assert account.questions == []


OUTPUTS = {"BucketName": "files", "TableName": "ledger", "SubmitFunctionName": "submit"}
VARIABLES = API | {"CLOUDFLARE_API_TOKEN_SECRET_ARN": "arn", "EVENTS_QUEUE_NAME": "dropbatch-x"}
SUBSCRIBED = [{"id": id_, "destination": {"queue_id": queue}} for id_, queue in ("71", "82")]


@pytest.fixture
def ended(monkeypatch):
    monkeypatch.setattr(destroy, "settings_of", lambda *_: (VARIABLES, "token"))
    return Stack("dropbatch", "arn", "UPDATE_COMPLETE", {}, OUTPUTS)


@pytest.fixture
def called(monkeypatch):
    """The calls, with the queues of the account and their status."""

    def play(queues, status=200):
        calls = []

        def call(api, method, path, _body=None):
            calls.append(f"{method} {path}")
            assert (api.base_url, api.token) == (f"https://api/accounts/{ACCOUNT}", "token")
            result = queues if "/queues?" in path else SUBSCRIBED if method == "GET" else None
            error = [] if status == 200 else [{"code": 10000, "message": "no"}]
            return Reply(status, {"success": not error, "errors": error, "result": result})

        monkeypatch.setattr(destroy.Api, "call", call)
        return calls

    return play


@pytest.mark.parametrize("name", ["dropbatch-x", "another"])
def test_subscriptions_and_queue_are_removed_if_they_are_the_stacks(ended, called, name):
    calls = called([{"queue_name": name, "queue_id": "1"}])
    assert destroy.remove_events({}, ended) == []
    removed = [f"DELETE {destroy.SUBSCRIPTIONS}/7", "DELETE /queues/1"]
    assert [one for one in calls if one[:6] == "DELETE"] == removed * (name == "dropbatch-x")
    assert len(calls) > 1 or name == "another"


def test_queue_that_stays_is_told(ended, called):
    called([], status=403)
    (said,) = destroy.remove_events({}, ended)
    assert "stays" in said
    assert "HTTP 403, code 10000: no" in said
    assert destroy.remove_events({}, stack_in("ROLLBACK_COMPLETE")) == [], "it never ran"
