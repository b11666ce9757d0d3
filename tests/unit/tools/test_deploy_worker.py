"""`make deploy-worker`."""

import json
import os
from types import SimpleNamespace

import boto3
import pytest
from moto import mock_aws

from dropbatch.cli.cloudflare import Api, Reply, check_token
from dropbatch.errors import Error
from local import worker
from local.processes import LocalAwsError
from tools import account_stack, answers, deploy_worker
from tools.account_stack import Stack
from tools.answers import AnswersFile
from tools.deploy_worker import check_worker, worker_name

HOST = "dropbatch-eu-west-1.team.workers.dev"
ACCOUNT = "0123456789abcdef0123456789abcdef"
NPX = """#!/bin/sh
echo "$CLOUDFLARE_ACCOUNT_ID $@" >> {folder}/calls
echo "wrangler's own words"
if [ "$4" = put ]; then cat > {folder}/secret; exit {code}; fi
echo '{{"type": "wrangler-session"}}' >> "$WRANGLER_OUTPUT_FILE_PATH"
echo '{{"type": "deploy", "targets": {targets}}}' >> "$WRANGLER_OUTPUT_FILE_PATH"
exit {code}
"""


@pytest.fixture
def cloudflare(monkeypatch, tmp_path):
    """A wrangler that notes what it is called with, an AWS account with a stack."""
    parameters = {"Transport": "worker", "CloudflareAccountId": ACCOUNT}
    outputs = {"SubmitFunctionName": "submit"}
    stack = Stack("dropbatch", "arn", "UPDATE_COMPLETE", parameters, outputs)
    made = SimpleNamespace(stack=stack, folder=tmp_path, url=f"https://{HOST}")

    def begin(*, code=0, targets=(f"https://{HOST}",)):
        npx = tmp_path / "npx"
        npx.write_text(NPX.format(folder=tmp_path, targets=json.dumps(targets), code=code))
        npx.chmod(0o755)

    begin()
    made.begin = begin
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr(worker, "install", lambda: None)
    monkeypatch.setattr(worker, "WORKER", tmp_path)
    monkeypatch.setattr(deploy_worker, "CHECK_SECONDS", 0.0)
    chosen = AnswersFile(
        tmp_path / "samconfig.local.toml", {"stack_name": "dropbatch", "region": "eu-west-1"}
    )
    monkeypatch.setattr(answers, "choose", lambda given: chosen)
    monkeypatch.delenv("CLOUDFLARE_ACCOUNT_ID", raising=False)
    monkeypatch.setattr(deploy_worker, "find_stack", lambda saved: made.stack)
    monkeypatch.setattr(deploy_worker, "check_worker", lambda url, secret: "")
    with mock_aws():
        made.secrets = boto3.client("secretsmanager", "eu-west-1")
        secret = {"Name": "SharedSecret-1", "SecretString": "of-the-stack"}
        made.arn = made.secrets.create_secret(**secret)["ARN"]

        def configuration(**_):
            variables = {"WORKER_SECRET_ARN": made.arn, "WORKER_URL": made.url}
            return {"Environment": {"Variables": variables | {"TRANSPORT": "worker"}}}

        functions = SimpleNamespace(get_function_configuration=configuration)
        clients = {"lambda": functions, "secretsmanager": made.secrets}
        session = SimpleNamespace(client=clients.__getitem__)
        monkeypatch.setattr(account_stack, "session", lambda saved: session)
        yield made


def calls(cloudflare):
    return (cloudflare.folder / "calls").read_text().splitlines()


def test_worker_gets_stacks_secret_unprinted(cloudflare, capfd):
    """The Worker is the stack's own."""
    assert deploy_worker.main() == 0
    assert (cloudflare.folder / "secret").read_text() == "of-the-stack"
    printed = "".join(capfd.readouterr())
    assert "of-the-stack" not in printed
    assert "wrangler's own words" in printed
    assert calls(cloudflare) == [
        f"{ACCOUNT} --no-install wrangler deploy --name dropbatch-eu-west-1",
        f"{ACCOUNT} --no-install wrangler secret put SHARED_SECRET --name dropbatch-eu-west-1",
    ]


def test_two_stacks_have_two_workers():
    assert worker_name("dropbatch", "us-east-1") == "dropbatch-us-east-1"
    assert worker_name("B", "eu-west-1") == "b-eu-west-1"
    long = [worker_name("a" * 100 + end, "eu-west-1") for end in "xy"]
    assert len(set(long)) == 2
    assert {len(name) for name in long} == {63}


@pytest.mark.parametrize("transport", ["rest", None])
def test_missing_stack_names_next_step(cloudflare, capsys, transport):
    """Without a stack that uses a Worker, no secret is given."""
    other = Stack("dropbatch", "", "CREATE_COMPLETE", {"Transport": transport}, {})
    cloudflare.stack = transport and other
    assert deploy_worker.main() == 0
    assert not (cloudflare.folder / "secret").exists()
    following = f'make deploy PARAMETERS="Transport=worker WorkerUrl=https://{HOST}"'
    assert following in capsys.readouterr().out


def test_stack_with_another_address_is_reported(cloudflare, capsys):
    cloudflare.url = "https://old.example.com"
    assert deploy_worker.main() == 0
    assert f'make deploy PARAMETERS="WorkerUrl=https://{HOST}"' in capsys.readouterr().out


def test_secret_that_was_deleted_is_restored(cloudflare, capsys):
    cloudflare.secrets.delete_secret(SecretId=cloudflare.arn)
    assert deploy_worker.main() == 0
    assert (cloudflare.folder / "secret").read_text() == "of-the-stack"
    assert "restored" in capsys.readouterr().out
    assert "DeletedDate" not in cloudflare.secrets.describe_secret(SecretId=cloudflare.arn)


def test_failing_wrangler_says_what_it_needs(cloudflare, capsys):
    cloudflare.begin(code=1)
    assert deploy_worker.main() == 1
    assert not (cloudflare.folder / "secret").exists()
    said = capsys.readouterr().err
    assert all(words in said for words in ("npx wrangler login", "workers.dev subdomain"))


def test_failing_worker_check_is_reported(cloudflare, monkeypatch, capsys):
    cloudflare.begin(targets=())
    assert deploy_worker.main() == 1
    assert "no address" in capsys.readouterr().err
    cloudflare.begin()
    monkeypatch.setattr(deploy_worker, "check_worker", lambda url, secret: "It is not there.")
    assert deploy_worker.main() == 1
    assert "It is not there" in capsys.readouterr().err


def test_without_node_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalAwsError, match=r"Node\.js 20"):
        worker.install()


TOKEN = "secret-canary"
BASE = "https://api.cloudflare.com/client/v4"
REFUSED = {"success": False, "errors": [{"code": 10000, "message": "no"}]}
WORKER = "https://dropbatch.example.workers.dev"


@pytest.fixture
def answered(monkeypatch):
    """Sets what each path is answered with; returns the calls."""

    def answer(**statuses):
        def get(self, path):
            url = f"{self.base_url}{path}"
            asked.append((url, self.token))
            name = url.partition("?")[0].rpartition("/")[2]
            if name not in statuses:
                raise Error(f"{url} cannot be reached: no route")
            return Reply(statuses[name], REFUSED)

        asked = []
        monkeypatch.setattr(Api, "get", get)
        return asked

    return answer


@pytest.mark.parametrize(
    ("models", "verify", "words"),
    [(200, 401, ""), (403, 200, "Workers AI - Edit"), (401, 401, "does not accept this token")],
)
def test_says_what_is_wrong(answered, models, verify, words):
    asked = answered(search=models, verify=verify)

    told = check_token(Api(BASE, ACCOUNT, TOKEN))

    assert words in told
    assert bool(told) == bool(words)
    assert TOKEN not in told
    assert asked[0] == (f"{BASE}/accounts/{ACCOUNT}/ai/models/search?per_page=1", TOKEN)


@pytest.mark.parametrize("status", [302, 500])
def test_reply_about_something_else_proves_nothing(answered, status):
    answered(search=status, verify=401)

    with pytest.raises(Error, match="cannot check the token now"):
        check_token(Api(BASE, ACCOUNT, TOKEN))


@pytest.mark.parametrize("status", ["disabled", "expired"])
def test_verified_token_may_have_ended(monkeypatch, status):
    ended = Reply(200, {"success": True, "errors": [], "result": {"status": status}})
    refused = Reply(403, REFUSED)
    monkeypatch.setattr(Api, "get", lambda self, path: ended if "/verify" in path else refused)

    assert "does not accept this token" in check_token(Api(BASE, ACCOUNT, TOKEN))


@pytest.mark.parametrize("token", ["", "token\n", " token"])
def test_token_with_white_space_is_not_even_sent(answered, token):
    asked = answered()

    assert "space" in check_token(Api(BASE, ACCOUNT, token))
    assert asked == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (200, ""),
        (401, "make deploy-worker"),
        (404, "no such Worker"),
        (None, f"WorkerUrl ({WORKER})"),
    ],
)
def test_workers_free_check_says_what_is_wrong(answered, status, said):
    asked = answered(**({"check": status} if status else {}))

    told = check_worker(WORKER, "shared")

    assert said in told
    assert bool(told) == bool(said)
    assert asked == [(f"{WORKER}/check", "shared")]
