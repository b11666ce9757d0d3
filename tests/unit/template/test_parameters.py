"""What the template asks for and tells: parameters, their checks, rules and outputs."""

import json
import re

import pytest


def test_parameters_have_defaults_and_limits(source):
    told = source["Parameters"]
    assert {name for name, parameter in told.items() if "Default" not in parameter} == {
        "CloudflareAccountId"
    }
    assert all(parameter["Description"] for parameter in told.values())
    defaults = [
        told[name]["Default"]
        for name in ("MaxRequestsPerBatch", "MaxBatchBytes", "ApiCallsPerMinute")
    ]
    assert defaults == [5_000, 9_500_000, 200]
    assert not [name for name, parameter in told.items() if "NoEcho" in parameter], (
        "SAM asks for it without end"
    )
    for name, parameter in told.items():
        limits = (
            {"AllowedPattern", "AllowedValues"}
            if parameter["Type"] == "String"
            else {"MinValue", "MaxValue"}
        )
        assert limits & set(parameter), f"{name} takes anything"


def test_every_partition_has_its_console(template):
    address, names = template["Outputs"]["DashboardUrl"]["Value"]["Fn::Sub"]

    assert address.startswith("https://${AWS::Region}.${Console}/cloudwatch/")
    assert names == {
        "Console": {"Fn::FindInMap": ["Consoles", {"Ref": "AWS::Partition"}, "Domain"]}
    }
    assert template["Mappings"]["Consoles"] == {
        "aws": {"Domain": "console.aws.amazon.com"},
        "aws-cn": {"Domain": "console.amazonaws.cn"},
        "aws-us-gov": {"Domain": "console.amazonaws-us-gov.com"},
        "aws-eusc": {"Domain": "console.amazonaws-eusc.eu"},
    }


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://api.cloudflare.com/client/v4", True),
        ("https://gateway.example.com:8443/v1/", True),
        ("http://127.0.0.1:8787/client/v4", True),
        ("http://localhost:8787", True),
        ("http://[::1]:8787/client/v4", True),
        ("http://169.254.169.254/", False),
        ("http://api.cloudflare.com/client/v4", False),
        ("https://api.cloudflare.com@evil.test/", False),
        ("http://127.0.0.1@evil.test/", False),
        ("http://localhost.evil.test/", False),
        ("https://evil.test/?a=b", False),
        ("ftp://127.0.0.1/", False),
        ("", False),
    ],
)
def test_token_goes_over_https_or_stays_here(source, url, taken):
    for name in ("WorkersAiBaseUrl", "WorkerUrl"):
        optional = name == "WorkerUrl" and not url
        assert bool(re.search(source["Parameters"][name]["AllowedPattern"], url)) is (
            taken or optional
        ), name


SECRET = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:cf/token"
KEYS = "arn:aws:kms:eu-west-1:123456789012"
TAKEN = {
    "CloudflareAccountId": ["0123456789abcdef0123456789abcdef"],
    "CloudflareApiTokenSecretArn": [f"{SECRET}-AbCdEf"],
    "AiGatewayId": ["my-gateway_1"],
    "WorkerSecretArn": [f"{SECRET}-AbCdEf"],
    "SourceBucketName": ["", "team.exports"],
    "SourcePrefix": ["exports/@cf/"],
    "DefaultModel": ["", "@cf/baai/bge-small-en-v1.5"],
    "BucketName": [""],
    "NotificationEmail": ["ops@example.com"],
    "KmsKeyArn": [f"{KEYS}:key/1234abcd-12ab-34cd-56ef-1234567890ab"],
    "PermissionsBoundaryArn": ["arn:aws:iam::123456789012:policy/boundary"],
}
REFUSED = {
    "CloudflareAccountId": ["0123456789ABCDEF0123456789ABCDEF"],
    "CloudflareApiTokenSecretArn": [SECRET],
    "AiGatewayId": ["a/b"],
    "WorkerSecretArn": ["worker"],
    "AiGatewayTokenSecretArn": ["gateway"],
    "SourceBucketName": ["arn:aws:s3:::team-exports"],
    "SourcePrefix": ["exports/*", "${aws:username}/"],
    "DefaultModel": ["@cf/../../x"],
    "BucketName": ["My_Bucket"],
    "NotificationEmail": ["ops"],
    "KmsKeyArn": [f"{KEYS}:alias/mine"],
    "PermissionsBoundaryArn": ["boundary"],
}


def test_parameters_are_checked_first(source, subtests):
    for values, taken in ((TAKEN, True), (REFUSED, False)):
        for name, value in [(one, value) for one, many in values.items() for value in many]:
            with subtests.test(name, value=value):
                pattern = source["Parameters"][name]["AllowedPattern"]
                assert bool(re.search(pattern, value)) is taken


def test_each_transport_must_be_given_what_it_needs(source):
    rules = source["Rules"]
    asked = {
        name: sorted(set(re.findall(r'"Ref": "(\w+)"', json.dumps(rules[name])))) for name in rules
    }
    assert asked == {
        "WorkerIsGiven": ["Transport", "WorkerUrl"],
    }
