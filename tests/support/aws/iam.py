"""The functions' roles in `template.yaml`, evaluated as IAM evaluates them.

As far as the template uses IAM.

Every call of a function in the moto world is checked here. A call that its role does not allow is
denied as AWS denies it, and the used grants are recorded, so that a test finds those that nothing
needs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from local.template import properties

"""The only state machine."""
S3_WRITES = frozenset(
    {
        "PutObject",
        "CopyObject",
        "CreateMultipartUpload",
        "UploadPart",
        "UploadPartCopy",
        "CompleteMultipartUpload",
    }
)


@dataclass(frozen=True)
class Grant:
    """One action on one resource, allowed by one statement."""

    sid: str
    action: str
    resource: str
    condition: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Operator, key and allowed values."""

    def __str__(self) -> str:
        return f"{self.sid}: {self.action} on {self.resource}"

    def covers(self, need: Need) -> bool:
        """Whether it allows `need`."""
        return (
            self.action == need.action
            and like(need.resource, self.resource)
            and all(
                _holds(operator, values, need.value_of(key))
                for operator, key, values in self.condition
            )
        )


@dataclass(frozen=True)
class Need:
    """One action on one resource, with what IAM knows about the request."""

    action: str
    resource: str
    context: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.action} on {self.resource}"

    def value_of(self, key: str) -> str | None:
        """The value of a condition key; None if the request has none."""
        return dict(self.context).get(key)


@dataclass
class Permissions:
    """The roles of both functions, the function that runs, and the grants that were used.

    Attributes:
        granted: the grants by role.
        account: the account that owns all resources.
        role: the role of the function that runs; empty while the test itself calls.
        used: grants that allowed a call.
        shared: needs that two grants cover, one of which is unused.
        refused: calls that no grant covers.
        covering: the grants that cover what a role has needed so far.
        before: called with operation and arguments before a function's call: a test may act, or
            raise, in between.
    """

    granted: Mapping[str, tuple[Grant, ...]]
    account: str
    role: str = ""
    used: dict[str, set[Grant]] = field(default_factory=lambda: defaultdict(set))
    shared: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    covering: dict[tuple[str, Need], list[Grant]] = field(default_factory=dict)
    before: Callable[[str, dict[str, Any]], None] | None = None

    def call(
        self, service: str, operation: str, arguments: dict[str, Any], make_call: Callable[[], Any]
    ) -> Any:
        """Make a call if the role allows it."""
        role = self.role
        if not role:
            return make_call()
        for need in needs_of(service, operation, arguments, self.account):
            self._judge(role, operation, need)
        if self.before:
            self.role = ""
            try:
                self.before(operation, arguments)
            finally:
                self.role = role
        try:
            return make_call()
        except ClientError as error:
            if operation in {"GetObject", "HeadObject"} and error.response["Error"]["Code"] in {
                "404",
                "NoSuchKey",
            }:
                # AWS does not say whether S3 takes the key as the prefix: the role must get its 404
                # in either case.
                for prefix in (arguments["Key"], None):
                    self._judge(
                        role, operation, _listing(arguments["Bucket"], prefix, self.account)
                    )
            raise

    def _judge(self, role: str, operation: str, need: Need) -> None:
        covering = self.covering.get((role, need))
        if covering is None:
            covering = self.covering[role, need] = [
                grant for grant in self.granted[role] if grant.covers(need)
            ]
        if not covering:
            self.refused.append(f"{role}: {need}")
            message = f"{role} in template.yaml does not allow {need}"
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": message}}, operation)
        if len(covering) > 1:
            self.shared.add(f"{role}: {need}: {', '.join(map(str, covering))}")
        self.used[role].update(covering)


def needs_of(
    service: str, operation: str, arguments: Mapping[str, Any], account: str
) -> Iterator[Need]:
    """The permissions that a call needs, according to each service's authorization reference."""
    match service:
        case "s3":
            yield from _needs_of_s3(operation, arguments, account)
        case "dynamodb":
            name = arguments.get("TableName") or next(iter(arguments["RequestItems"]))
            index = f"/index/{arguments['IndexName']}" if "IndexName" in arguments else ""
            found = (
                arguments["Key"]["pk"]
                if "Key" in arguments
                else arguments.get("ExpressionAttributeValues", {})
            )
            leading = found.get("S") or found.get(":pk", {}).get("S")
            keys = [("dynamodb:LeadingKeys", leading)] if leading else []
            keys += [("dynamodb:Select", arguments["Select"])] if "Select" in arguments else []
            if "ProjectionExpression" in arguments:
                keys.append(
                    (
                        "dynamodb:Attributes",
                        ",".join(arguments["ExpressionAttributeNames"].values()),
                    )
                )
            yield Need(
                f"dynamodb:{operation}", f"arn:aws:dynamodb:::table/{name}{index}", tuple(keys)
            )
        case "sqs":
            name = arguments["QueueUrl"].rpartition("/")[2]
            yield Need(f"sqs:{operation.removesuffix('Batch')}", f"arn:aws:sqs:::{name}")
        case "events":
            for entry in arguments["Entries"]:
                context = (
                    ("events:source", entry["Source"]),
                    ("events:detail-type", entry["DetailType"]),
                )
                yield Need(
                    "events:PutEvents", f"arn:aws:events::{account}:event-bus/default", context
                )
        case "secretsmanager":
            yield Need(f"secretsmanager:{operation}", arguments["SecretId"])
        case _:
            yield Need(f"{service}:{operation}", "*")


def _needs_of_s3(operation: str, arguments: Mapping[str, Any], account: str) -> Iterator[Need]:
    ours = (("aws:ResourceAccount", account),)
    if operation in {"ListObjects", "ListObjectsV2"}:
        yield _listing(arguments["Bucket"], arguments.get("Prefix"), account)
        return
    if operation == "ListObjectVersions":
        yield _listing(
            arguments["Bucket"], arguments.get("Prefix"), account, "s3:ListBucketVersions"
        )
        return
    if operation == "DeleteObjects":
        for one in arguments["Delete"]["Objects"]:
            place = f"arn:aws:s3:::{arguments['Bucket']}/{one['Key']}"
            # S3's API reference: "you must always specify" it.
            yield Need("s3:DeleteObject", place, ours)
            if "VersionId" in one:
                yield Need("s3:DeleteObjectVersion", place, ours)
        return
    if operation in S3_WRITES:
        action = "PutObject"
    elif operation == "ListParts":
        action = "ListMultipartUploadParts"
    elif operation in {"GetObject", "HeadObject"}:
        action = "GetObjectVersion" if "VersionId" in arguments else "GetObject"
    else:
        action = operation
    if source := arguments.get("CopySource"):
        yield Need("s3:GetObject", f"arn:aws:s3:::{source['Bucket']}/{source['Key']}", ours)
    yield Need(f"s3:{action}", f"arn:aws:s3:::{arguments['Bucket']}/{arguments['Key']}", ours)


def _listing(bucket: str, prefix: str | None, account: str, action: str = "s3:ListBucket") -> Need:
    """The need to list a bucket, or to get the error for a missing key."""
    prefixes = (("s3:prefix", prefix),) if prefix is not None else ()
    return Need(action, f"arn:aws:s3:::{bucket}", (("aws:ResourceAccount", account), *prefixes))


def grants(
    role: str, names: Mapping[str, Any], conditions: Mapping[str, bool]
) -> tuple[Grant, ...]:
    """The grants of one role, or of one managed policy, in the template.

    Args:
        role: its logical name.
        names: the values of `Ref` and `GetAtt`, by name.
        conditions: the values of the template's conditions.
    """
    found = []
    for policy in properties(role).get("Policies", [properties(role)]):
        for statement in resolve(policy["PolicyDocument"]["Statement"], names, conditions):
            assert statement["Effect"] == "Allow"
            condition = tuple(
                (operator, key, tuple(_as_list(values)))
                for operator, keys in statement.get("Condition", {}).items()
                for key, values in keys.items()
            )
            found += [
                Grant(statement["Sid"], action, resource, condition)
                for action in _as_list(statement["Action"])
                for resource in _as_list(statement["Resource"])
            ]
    return tuple(found)


_NOTHING = object()
_OF_TEXTS: dict[str, Callable[[Any, Any], Any]] = {
    "Fn::Join": lambda between, parts: between.join(parts),
    "Fn::Select": lambda index, parts: parts[int(index)],
    "Fn::Split": lambda between, text: text.split(between),
    "Fn::Sub": lambda text, own: {
        "Fn::Sub": re.sub(r"\$\{(\w+)\}", lambda match: own.get(match[1], match[0]), text)
    },
}


def resolve(value: Any, names: Mapping[str, Any], conditions: Mapping[str, bool]) -> Any:
    """A part of the template with its intrinsic functions resolved, as far as it uses them."""

    def again(inner: Any) -> Any:
        return resolve(inner, names, conditions)

    match value:
        case {"Ref": "AWS::NoValue"}:
            return _NOTHING
        case {"Fn::GetAtt": [name, attribute]}:
            return names[f"{name}.{attribute}"]
        case {"Ref": name} | {"Fn::GetAtt": name}:
            return names[name]
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{([^}]+)\}", lambda match: str(names[match[1]]), text)
        case {"Fn::If": [condition, yes, no]}:
            return again(yes if conditions[condition] else no)
        case dict() if (function := "".join(value)) in _OF_TEXTS:
            return again(_OF_TEXTS[function](*again(value[function])))
        case dict():
            return {
                key: made for key, inner in value.items() if (made := again(inner)) is not _NOTHING
            }
        case list():
            return [made for inner in value if (made := again(inner)) is not _NOTHING]
    return value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def like(text: str, pattern: str) -> bool:
    """Whether a text matches an IAM pattern, in which a star matches slashes too."""
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _holds(operator: str, values: tuple[str, ...], given: str | None) -> bool:
    match operator:
        case "StringEquals":
            return given in values
        case "StringLike":
            return given is not None and any(like(given, value) for value in values)
        case "StringLikeIfExists":
            return given is None or any(like(given, value) for value in values)
        case "ForAllValues:StringEquals":
            return given is None or set(given.split(",")) <= set(values)
        case "ForAllValues:StringLike":
            return given is None or any(like(given, value) for value in values)
    raise AssertionError(
        f"the template uses an operator that this matcher does not know: {operator}"
    )
