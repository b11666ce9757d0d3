"""Credentials as the AWS CLI finds them."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from moto import mock_aws

from dropbatch.client import aws
from dropbatch.client.stack import find_stack
from dropbatch.client.upload import copy_parts
from dropbatch.errors import NotPermitted
from tests.support.aws import quick_moto

CONFIG = """[profile base]
aws_access_key_id = x
aws_secret_access_key = x
[default]
region = eu-west-1
role_arn = arn:aws:iam::111122223333:role/deployer
source_profile = base
mfa_serial = arn:aws:iam::111122223333:mfa/ada
"""


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A user whose role needs a code."""
    with mock_aws(config={"core": {"mock_credentials": False}}):
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_PROFILE",
        ):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "config").write_text(CONFIG)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("HOME", str(tmp_path))
        yield tmp_path


@pytest.fixture
def asked():
    return []


def signed_in(asked):
    """A process that is new; returns its key."""
    session = aws.sign_in()
    provider = session._session.get_component("credential_provider").get_provider("assume-role")
    provider._prompter = lambda question: asked.append(question) or "123456"
    return session.get_credentials().get_frozen_credentials().access_key


def test_code_is_asked_once(home, asked):
    assert signed_in(asked) == signed_in(asked)
    assert len(asked) == 1


def test_role_is_shared_with_aws_cli(home, asked):
    key = signed_in(asked)

    (file,) = (home / ".aws/cli/cache").iterdir()
    assert json.loads(file.read_text())["Credentials"]["AccessKeyId"] == key
    assert file.stat().st_mode & 0o077 == 0


def test_code_is_asked_again_when_role_has_ended(home, asked):
    signed_in(asked)
    (file,) = (home / ".aws/cli/cache").iterdir()
    ended = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    file.write_text(
        json.dumps(
            {"Credentials": {**json.loads(file.read_text())["Credentials"], "Expiration": ended}}
        )
    )

    signed_in(asked)

    assert len(asked) == 2


def test_user_without_home_signs_in_too(home, asked, monkeypatch):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", fail)

    assert signed_in(asked)


def test_without_terminal_missing_code_is_explained():
    with pytest.raises(NotPermitted, match=r"get-caller-identity"), aws.explained():
        raise EOFError


@pytest.mark.parametrize("key", ["", "arn:aws:kms:eu-west-1:123456789012:key/1a2b"])
def test_writes_say_how_they_are_encrypted(monkeypatch, key):
    """As the bucket would encrypt them anyway; organizations refuse writes that do not say it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    described = {
        "Outputs": [{"OutputKey": "BucketName", "OutputValue": "files"}],
        "Parameters": [{"ParameterKey": "KmsKeyArn", "ParameterValue": key}],
    }
    monkeypatch.setattr(quick_moto, "DIRECT", {})  # Over HTTP, of which there are headers.
    monkeypatch.setattr("dropbatch.client.stack._describe", lambda client, name: described)
    with mock_aws():
        stack, sent = find_stack("dropbatch", region="eu-west-1"), {}
        stack.s3.meta.events.register(
            "before-call.s3", lambda params, model, **_: sent.update({model.name: params})
        )
        stack.s3.create_bucket(
            Bucket="files", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
        )
        place = {"Bucket": stack.bucket, "Key": "inbox/a"}

        stack.s3.put_object(**place, Body=b"x")
        copy_parts(stack.s3, place, 1, {"Bucket": stack.bucket, "Key": "inbox/b"}, {})
        stack.s3.copy_object(CopySource=place, Bucket=stack.bucket, Key="inbox/c")

    for name in ("PutObject", "CreateMultipartUpload", "CopyObject"):
        headers = sent[name]["headers"]
        assert headers["x-amz-server-side-encryption"] == ("aws:kms" if key else "AES256")
        assert headers.get("x-amz-server-side-encryption-aws-kms-key-id", "") == key
