"""What the library says about AWS's errors, and how it sends an upload's parts."""

import json
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from botocore import exceptions as botocore
from botocore.exceptions import ClientError
from moto import mock_aws

from dropbatch.cli.cloudflare import Api, check_token
from dropbatch.client import aws
from dropbatch.client import upload as uploads
from dropbatch.errors import ConnectionLost, Error, NotPermitted, UsageError
from tests.support.aws.resources import stubbed
from tests.support.terminal import run_forked
from tests.support.web_server import tls_of_localhost, web_server

KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
PLACE = {"AWS_REGION": "eu-west-1"}
NO_URL = PLACE | KEYS | {"AWS_ENDPOINT_URL": "nonsense"}
NOBODY = PLACE | KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}


SSO = """[default]
sso_session = work
sso_account_id = 111122223333
sso_role_name = user
region = eu-west-1
[sso-session work]
sso_start_url = https://example.awsapps.com/start
sso_region = eu-west-1
"""


@pytest.mark.parametrize(
    ("config", "environment", "code", "says"),
    [
        ("", PLACE, 4, ["No AWS credentials", "aws sso login", "aws configure"]),
        ("", PLACE | {"AWS_ACCESS_KEY_ID": "x"}, 4, ["not complete", "AWS_SECRET_ACCESS_KEY"]),
        (SSO, PLACE, 4, ["aws sso login"]),
        ("[default]\ncredential_process = /bin/false\n", PLACE, 4, ["no valid AWS credentials"]),
        ("[default\n", PLACE, 2, ["parse config file"]),
        ("", NO_URL, 2, ["nonsense. Correct AWS_ENDPOINT_URL.\n"]),
        ("", NOBODY, 1, ["not be reached", NOBODY["AWS_ENDPOINT_URL"]]),
        ("", KEYS | {"AWS_REGION": "the moon"}, 2, ["the moon"]),
        ("", KEYS, 2, ["No AWS region is configured", "AWS_REGION"]),
        ("", {"AWS_PROFILE": "somebody"}, 2, ["somebody"]),
    ],
)
def test_configuration_errors_say_what_to_do(tmp_path, config, environment, code, says):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(config)

    done = run_forked("ls", home=tmp_path, **environment)

    assert (done.returncode, done.stdout) == (code, "")
    assert [word for word in says if word not in done.stderr] == []
    assert "Traceback" not in done.stderr


def test_expired_sso_token_says_how_to_sign_in(tmp_path):
    # the SHA-1 of "work", as the AWS CLI names it
    name = "06cb5ab54d1c5d4ee3a4d38f7bd7ab7c84b9ba41"
    (tmp_path / ".aws/sso/cache").mkdir(parents=True)
    (tmp_path / ".aws/config").write_text(SSO)
    token = {"accessToken": "x", "expiresAt": "2020-01-01T00:00:00Z", "startUrl": "https://x"}
    for file in (name, "work"):
        (tmp_path / f".aws/sso/cache/{file}.json").write_text(json.dumps(token))

    done = run_forked("ls", home=tmp_path, **PLACE)

    assert done.returncode == 4
    assert "aws sso login" in done.stderr


def test_region_is_found_as_aws_cli_does(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(
        "[default]\nregion = eu-north-1\n[profile far]\nregion = sa-east-1\naws_access_key_id = x\n"
        "aws_secret_access_key = x\n"
    )
    environments = {
        "eu-west-1": {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-east-1"},
        "us-east-1": {"AWS_REGION": "", "AWS_DEFAULT_REGION": "us-east-1"},
        "eu-north-1": {},
        "sa-east-1": {"AWS_PROFILE": "far"},
    }
    with web_server() as server:
        server.body = b"<html>welcome</html"
        for region, environment in environments.items():
            at = KEYS | {"AWS_ENDPOINT_URL": server.url}
            done = run_forked("ls", home=tmp_path, **at, **environment)

            assert (done.returncode, "What answered is not AWS" in done.stderr) == (1, True)
            assert "Traceback" not in done.stderr
            assert server.requests.pop()[1].split("/")[2] == region


def every_error():
    for name, kind in sorted(vars(botocore).items()):
        if isinstance(kind, type) and issubclass(kind, botocore.BotoCoreError):
            made = kind.__new__(kind)
            Exception.__init__(made, name)
            yield made


def test_no_botocore_error_is_traceback():
    for error in every_error():
        with pytest.raises(Error), aws.explained():
            raise error


@pytest.mark.parametrize(
    ("code", "operation", "kind", "says"),
    [
        ("ExpiredToken", "GetObject", NotPermitted, "aws sso login"),
        ("InvalidClientTokenId", "DescribeStacks", NotPermitted, "aws configure"),
        ("AccessDenied", "AssumeRole", NotPermitted, "aws sso login"),
        ("AccessDenied", "GetObject", NotPermitted, "UserPolicyArn"),
        ("RequestTimeTooSkewed", "GetObject", NotPermitted, "clock"),
        ("SlowDown", "GetObject", ConnectionLost, "SlowDown"),
    ],
)
def test_answers_of_aws_say_what_to_do(code, operation, kind, says):
    with pytest.raises(kind, match=says), aws.explained():
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, operation)


@pytest.mark.parametrize(
    ("because", "advice"),
    [
        ("because no identity-based policy allows the s3:PutObject action", "UserPolicyArn"),
        ("with an explicit deny in an identity-based policy", "must be changed"),
        ("with an explicit deny in a resource-based policy", "must be changed"),
        ("with an explicit deny", "must be changed"),
        ("with an explicit deny in a service control policy", "of your organization"),
        ("with an explicit deny in a resource control policy", "of your organization"),
        ("because no permissions boundary allows the action", "the boundary must allow it too"),
        ("with an explicit deny in a permissions boundary", "the boundary must allow it too"),
        ("because no session policy allows the s3:PutObject action", "another role"),
        ("because no VPC endpoint policy allows the s3:PutObject action", "VPC endpoint"),
    ],
)
def test_advice_fits_refusal(because, advice):
    said = f"User: arn:aws:iam::111122223333:user/ada is not authorized to perform: x {because}"

    with pytest.raises(NotPermitted) as raised, aws.explained():
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": said}}, "PutObject")

    assert advice in str(raised.value)
    assert "aws sso login" not in str(raised.value)
    assert ("UserPolicyArn" in str(raised.value)) == (advice == "UserPolicyArn")


OBJECT = {"Bucket": "bucket", "Key": "inbox/a.jsonl"}
UPLOAD = {**OBJECT, "UploadId": "u"}


def test_parts_have_the_checksum_that_was_announced():
    """S3 refuses a part's checksum that CreateMultipartUpload did not name."""
    part, crc = {"ETag": '"e"', "ChecksumCRC32": "AAAAAA=="}, {"ChecksumAlgorithm": "CRC32"}
    first = {"PartNumber": 1, "Body": b"x"}
    parts = {"Parts": [{"PartNumber": 1, **part}]}
    with stubbed("s3") as s3:
        for call, answer, asked in (
            ("create_multipart_upload", {"UploadId": "u"}, OBJECT | crc | {"Metadata": {"m": "m"}}),
            ("upload_part", part, UPLOAD | crc | first),
            ("complete_multipart_upload", {}, UPLOAD | {"MultipartUpload": parts}),
        ):
            s3.add_response(call, answer, asked)

        uploads._stream_parts(s3.client, OBJECT, iter([b"x"]), {"m": "m"}, lambda _: None)


def test_package_for_aws_login_is_named():
    with pytest.raises(UsageError, match=r"dropbatch\[login\]"), aws.explained():
        raise botocore.MissingDependencyException(
            msg='You will need to pip install "botocore[crt]".'
        )


# ── credentials as the AWS CLI finds them ─────────────────────────────────────────────────────────
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
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
            monkeypatch.delenv(f"AWS_{name}", raising=False)
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


def test_code_is_asked_once_and_role_is_shared_with_aws_cli(home, asked):
    key = signed_in(asked)
    assert signed_in(asked) == key
    assert len(asked) == 1

    (file,) = (home / ".aws/cli/cache").iterdir()
    assert json.loads(file.read_text())["Credentials"]["AccessKeyId"] == key
    assert file.stat().st_mode & 0o077 == 0


def test_code_is_asked_again_when_role_has_ended(home, asked):
    signed_in(asked)
    (file,) = (home / ".aws/cli/cache").iterdir()
    ended = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    held = json.loads(file.read_text())["Credentials"]
    file.write_text(json.dumps({"Credentials": held | {"Expiration": ended}}))

    signed_in(asked)

    assert len(asked) == 2


def test_without_terminal_missing_code_is_explained():
    with pytest.raises(NotPermitted, match=r"get-caller-identity"), aws.explained():
        raise EOFError


# ── the check of the token trusts whom boto3 trusts ───────────────────────────────────────────────
VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


@pytest.fixture(scope="module")
def company(tmp_path_factory):
    """An API behind a company's proxy, and the company's own authority."""
    context, file = tls_of_localhost(tmp_path_factory.mktemp("company"))
    with web_server(context) as server:
        server.body = b'{"success": true, "result": []}'
        yield server.url, file


@pytest.fixture(autouse=True)
def _no_authorities(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def check(url):
    return check_token(Api(f"{url}/", "a" * 32, "token"))


def test_unknown_authority_is_refused(company):
    with pytest.raises(Error, match="CERTIFICATE_VERIFY_FAILED"):
        check(company[0])


@pytest.mark.parametrize("name", VARIABLES)
def test_authority_of_variable_is_trusted(company, monkeypatch, name):
    url, file = company
    monkeypatch.setenv(name, str(file))

    assert check(url) == ""


def test_boto3s_authorities_are_trusted_last(company, monkeypatch):
    """As on a Mac, where Python from python.org comes without any."""
    url, file = company
    monkeypatch.setattr("botocore.httpsession.where", lambda: str(file))
    monkeypatch.setattr(
        ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )

    assert check(url) == ""
