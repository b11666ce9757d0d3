"""What the library says about AWS's errors, and how it sends an upload's parts."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from botocore import exceptions as botocore
from botocore.exceptions import ClientError

from dropbatch.client import aws
from dropbatch.client import upload as uploads
from dropbatch.errors import ConnectionLost, Error, NotPermitted, UsageError
from tests.support.aws.stubs import stubbed
from tests.support.terminal import run_alone, run_forked

KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
PLACE = {"AWS_REGION": "eu-west-1"}
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def server():
    """A web server that is not AWS; keeps the requests' signatures."""

    signatures = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            signatures.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>welcome</html")

        def log_message(self, *_):
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", signatures
        listening.shutdown()


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
        (
            "",
            PLACE | {"AWS_ACCESS_KEY_ID": "x"},
            4,
            ["not complete", "AWS_SECRET_ACCESS_KEY", "aws configure"],
        ),
        (SSO, PLACE, 4, ["aws sso login"]),
        (
            "[default]\ncredential_process = /bin/false\n",
            PLACE,
            4,
            ["no valid AWS credentials", "aws sso login"],
        ),
        ("[default\n", PLACE, 2, ["parse config file"]),
        (
            "",
            PLACE | KEYS | {"AWS_ENDPOINT_URL": "nonsense"},
            2,
            ["nonsense. Correct AWS_ENDPOINT_URL.\n"],
        ),
        (
            "",
            PLACE | KEYS | {"AWS_ENDPOINT_URL": NOBODY, "AWS_MAX_ATTEMPTS": "1"},
            1,
            ["not be reached", NOBODY],
        ),
        ("", KEYS | {"AWS_REGION": "the moon"}, 2, ["the moon"]),
        ("", KEYS, 2, ["No AWS region is configured", "AWS_REGION"]),
        ("", {"AWS_PROFILE": "somebody"}, 2, ["somebody"]),
    ],
    ids=[
        "none",
        "partial",
        "sso",
        "process",
        "config",
        "no-url",
        "nobody",
        "region",
        "no-region",
        "profile",
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
    token = {
        "accessToken": "x",
        "expiresAt": "2020-01-01T00:00:00Z",
        "startUrl": "https://example.awsapps.com/start",
    }
    for file in (name, "work"):
        (tmp_path / f".aws/sso/cache/{file}.json").write_text(json.dumps(token))

    done = run_alone("ls", home=tmp_path, **PLACE)

    assert done.returncode == 4
    assert "aws sso login" in done.stderr


def test_region_is_found_as_aws_cli_does(tmp_path, server):
    url, signatures = server
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(
        "[default]\nregion = eu-north-1\n[profile far]\nregion = sa-east-1\naws_access_key_id = x\n"
        "aws_secret_access_key = x\n"
    )
    for environment in (
        {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-east-1"},
        {"AWS_DEFAULT_REGION": "us-east-1"},
        {"AWS_REGION": "", "AWS_DEFAULT_REGION": "us-east-1"},
        {},
        {"AWS_PROFILE": "far"},
    ):
        done = run_forked("ls", home=tmp_path, AWS_ENDPOINT_URL=url, **KEYS, **environment)

        assert (done.returncode, "What answered is not AWS" in done.stderr) == (1, True)
        assert "Traceback" not in done.stderr
    regions = [one.split("/")[2] for one in signatures]
    assert regions == ["eu-west-1", "us-east-1", "us-east-1", "eu-north-1", "sa-east-1"]


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
        (
            "because no service control policy allows the s3:PutObject action",
            "of your organization",
        ),
        ("with an explicit deny in a resource control policy", "of your organization"),
        (
            "because no permissions boundary allows the s3:PutObject action",
            "the boundary must allow it too",
        ),
        ("with an explicit deny in a permissions boundary", "the boundary must allow it too"),
        ("because no session policy allows the s3:PutObject action", "another role"),
        ("because no VPC endpoint policy allows the s3:PutObject action", "VPC endpoint"),
    ],
)
def test_advice_fits_refusal(because, advice):
    said = (
        "User: arn:aws:iam::111122223333:user/ada is not authorized to perform: "
        f"s3:PutObject {because}"
    )

    with pytest.raises(NotPermitted) as raised, aws.explained():
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": said}}, "PutObject")

    assert advice in str(raised.value)
    assert "aws sso login" not in str(raised.value)
    assert ("UserPolicyArn" in str(raised.value)) == (advice == "UserPolicyArn")


OBJECT = {"Bucket": "bucket", "Key": "inbox/a.jsonl"}
UPLOAD = {**OBJECT, "UploadId": "u"}


def test_parts_have_the_checksum_that_was_announced():
    """S3 refuses a part's checksum that CreateMultipartUpload did not name."""
    part = {"ETag": '"e"', "ChecksumCRC32": "AAAAAA=="}
    with stubbed("s3") as s3:
        s3.add_response(
            "create_multipart_upload",
            {"UploadId": "u"},
            {**OBJECT, "Metadata": {"model": "m"}, "ChecksumAlgorithm": "CRC32"},
        )
        s3.add_response(
            "upload_part",
            part,
            {**UPLOAD, "PartNumber": 1, "Body": b"x", "ChecksumAlgorithm": "CRC32"},
        )
        s3.add_response(
            "complete_multipart_upload",
            {},
            {**UPLOAD, "MultipartUpload": {"Parts": [{"PartNumber": 1, **part}]}},
        )

        uploads._stream_parts(s3.client, OBJECT, iter([b"x"]), {"model": "m"}, lambda _: None)


def test_package_for_aws_login_is_named():
    with pytest.raises(UsageError, match=r"dropbatch\[login\]"), aws.explained():
        raise botocore.MissingDependencyException(
            msg='You will need to pip install "botocore[crt]".'
        )
