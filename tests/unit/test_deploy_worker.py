"""`make deploy-worker`: the secret reaches both places and nothing else, and running it again changes nothing."""

import os
from types import SimpleNamespace

import boto3
import pytest
from moto import mock_aws

from local import deploy_worker, worker
from local.account_stack import DeployError
from local.processes import LocalAwsError

URL = "https://dropbatch.team.workers.dev"
NPX = """#!/bin/sh
echo "$@" >> {folder}/calls
if [ "$4" = put ]; then cat > {folder}/secret; else echo "Deployed dropbatch triggers"; echo "  {url}"; exit {code}; fi
"""


@pytest.fixture
def cloudflare(monkeypatch, tmp_path):
    """A wrangler that notes what it is called with, an AWS account, and a Worker whose check is good."""

    def begin(*, code=0, url=URL):
        npx = tmp_path / "npx"
        npx.write_text(NPX.format(folder=tmp_path, url=url, code=code))
        npx.chmod(0o755)

    begin()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr(worker, "install", lambda: None)
    monkeypatch.setattr(worker, "WORKER", tmp_path)
    monkeypatch.setattr(deploy_worker, "saved_answers", lambda: {"stack_name": "dropbatch"})
    monkeypatch.setattr(deploy_worker, "session", lambda saved: boto3.Session(region_name="eu-west-1"))
    monkeypatch.setattr(deploy_worker, "check_worker", lambda url, secret: "")
    with mock_aws():
        client = boto3.client("secretsmanager", "eu-west-1")
        yield SimpleNamespace(begin=begin, folder=tmp_path, secrets=client)


def test_the_secret_is_in_secrets_manager_and_in_the_worker_and_is_not_printed(cloudflare, capfd):
    assert deploy_worker.main() == 0
    kept = cloudflare.secrets.get_secret_value(SecretId="dropbatch/worker")
    given = (cloudflare.folder / "secret").read_text()
    assert given == kept["SecretString"]
    assert len(given) >= 40
    printed = "".join(capfd.readouterr())
    assert given not in printed
    assert f"WorkerUrl        {URL}" in printed
    assert f"WorkerSecretArn  {kept['ARN']}" in printed
    calls = (cloudflare.folder / "calls").read_text().splitlines()
    assert calls == ["--no-install wrangler deploy", "--no-install wrangler secret put SHARED_SECRET"]


def test_a_second_deployment_keeps_the_secret(cloudflare):
    first = deploy_worker.deploy_worker()
    secret = (cloudflare.folder / "secret").read_text()
    assert deploy_worker.deploy_worker() == first
    assert (cloudflare.folder / "secret").read_text() == secret


def test_a_wrangler_that_fails_ends_it_before_the_secret_is_given(cloudflare, capsys):
    cloudflare.begin(code=1)
    assert deploy_worker.main() == 1
    assert not (cloudflare.folder / "secret").exists()
    assert "wrangler login" in capsys.readouterr().err


def test_a_worker_without_an_address_or_with_a_failing_check_is_reported(cloudflare, monkeypatch):
    cloudflare.begin(url="no address")
    with pytest.raises(DeployError, match="no workers"):
        deploy_worker.deploy_worker()
    cloudflare.begin()
    monkeypatch.setattr(deploy_worker, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(deploy_worker, "check_worker", lambda url, secret: "It is not there.")
    with pytest.raises(DeployError, match="It is not there"):
        deploy_worker.deploy_worker()


def test_without_node_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalAwsError, match=r"Node\.js 20"):
        worker.install()
