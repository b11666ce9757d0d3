"""Print every policy of `template.yaml` as JSON by name.

With the default conditions and with every condition true.
"""

import json
import sys
from collections import defaultdict
from typing import Any

from tests.support.aws import iam
from tests.support.aws.translated_template import CHOICES, translated

HERE = "eu-west-1:123456789012"
PSEUDO = {
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::Region": "eu-west-1",
    "AWS::StackId": f"arn:aws:cloudformation:{HERE}:stack/dropbatch/0a1b2c3d-1111-2222-3333-444455556666",  # noqa: E501
    "AWS::StackName": "dropbatch",
    "AWS::URLSuffix": "amazonaws.com",
    "KmsKeyArn": f"arn:aws:kms:{HERE}:key/0a1b2c3d-1111-2222-3333-444455556666",
}
ARNS = {
    "AWS::DynamoDB::Table": f"arn:aws:dynamodb:{HERE}:table/",
    "AWS::Events::Rule": f"arn:aws:events:{HERE}:rule/",
    "AWS::Lambda::Function": f"arn:aws:lambda:{HERE}:function:",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{HERE}:log-group:",
    "AWS::S3::Bucket": "arn:aws:s3:::",
    "AWS::SNS::Topic": f"arn:aws:sns:{HERE}:",
    "AWS::SQS::Queue": f"arn:aws:sqs:{HERE}:",
    "AWS::Scheduler::Schedule": f"arn:aws:scheduler:{HERE}:schedule/default/",
    "AWS::SecretsManager::Secret": f"arn:aws:secretsmanager:{HERE}:secret:",
}
WHOSE_REF_IS_ITS_ARN = {"AWS::SecretsManager::Secret", "AWS::SNS::Topic"}


class _Names(dict[str, str]):
    """What references give: ARNs of the form that AWS would give, and names in small letters."""

    def __init__(self, types: dict[str, str]) -> None:
        super().__init__(PSEUDO)
        self.types = types

    def __missing__(self, reference: str) -> str:
        name, _, attribute = reference.partition(".")
        kind = self.types.get(name, "")
        if reference.endswith("SecretArn"):  # a parameter
            kind = "AWS::SecretsManager::Secret"
        is_arn = attribute in {"Arn", "Id"} or kind in WHOSE_REF_IS_ITS_ARN
        streams = ":*" if kind == "AWS::Logs::LogGroup" and is_arn else ""
        return (ARNS[kind] if is_arn else "") + name.lower() + streams


def policies() -> dict[str, Any]:
    """Every policy document by resource."""
    resources = translated()["Resources"]
    names, found = _Names({name: one["Type"] for name, one in resources.items()}), {}
    for title, choices in (
        ("", defaultdict(bool, CHOICES)),
        (" with every option", defaultdict(lambda: True)),
    ):
        for name, one in resources.items():
            own = one["Properties"]
            for holder in [own, *own.get("Policies", [])]:
                if document := holder.get("PolicyDocument"):
                    found[name + title] = iam.resolve(document, names, choices)
    return found


if __name__ == "__main__":
    json.dump(policies(), sys.stdout)
