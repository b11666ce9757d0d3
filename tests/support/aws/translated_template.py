"""`template.yaml` as CloudFormation receives it, and what its roles and policies allow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.aws import iam
from tests.support.shipped import ROOT

OfType = Callable[[str], dict[str, Any]]
"""Returns the properties of all resources of a type, by logical name."""

ROLES = ("SubmitRole", "PollRole", "PollTickRole")
CHOICES = {
    "MakesSecret": True,
    "NamesSecret": False,
    "UsesOwnKey": False,
    "ProtectsData": True,
    "SendsToken": True,
    "UsesWorker": False,
    "NamesWorkerSecret": False,
    "SendsGatewayToken": False,
    "UsesSource": False,
    "Notifies": False,
}
"""The conditions that policies depend on, as the defaults make them."""
WORKER = {"SendsToken": False, "UsesWorker": True}
"""The conditions that differ with `Transport` worker."""
JOB = "20261121T093000Z-5f3a9c1e"
NOT_TLS = {"Bool": {"aws:SecureTransport": "false"}}


class _NoPolicies:
    """The template uses no managed policy, so the translator needs to know none."""

    def load(self) -> dict[str, str]:
        return {}


class _Names(dict[str, str]):
    """Names that the template refers to; each represents itself."""

    def __missing__(self, name: str) -> str:
        return f"<{name}>"


def translated() -> dict[str, Any]:
    """The template without SAM's short forms."""
    # SAM requires a URL where the built code would be.
    text = (
        (ROOT / "template.yaml").read_text().replace("CodeUri: .", "CodeUri: s3://bucket/code.zip")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        # With it, jsonschema would compile 38 grammars of addresses, which takes 6 s; none of SAM's
        # schemas uses one.
        patch.setitem(sys.modules, "rfc3987_syntax", None)
        # Imported here because it takes a second, and only the tests of the template need it.
        from samtranslator.translator.transform import transform  # noqa: PLC0415
        from samtranslator.yaml_helper import yaml_parse  # noqa: PLC0415

        template: dict[str, Any] = transform(yaml_parse(text), {}, _NoPolicies())
    return template


def target(reference: dict[str, Any]) -> str:
    """The resource that a Ref or GetAtt refers to."""
    return str(reference.get("Ref") or reference["Fn::GetAtt"][0])


def as_list(value: Any) -> list[Any]:
    """A policy's member that may be one value or a list of them."""
    return value if isinstance(value, list) else [value]


def resolved(value: Any, **choices: bool) -> Any:
    """A part of the template with the default conditions, except those given."""
    return iam.resolve(value, _Names(), CHOICES | choices)


def grants(role: str, **choices: bool) -> list[iam.Grant]:
    """What a role may do with the default conditions, except those given."""
    return list(iam.grants(role, _Names(), CHOICES | choices))


def granted_on(role: str, action: str, **choices: bool) -> set[str]:
    """The resources on which a role may do something."""
    return {grant.resource for grant in grants(role, **choices) if grant.action == action}


def statements(of_type: OfType, policy: str, **choices: bool) -> list[dict[str, Any]]:
    """The statements of a managed policy."""
    document = of_type("AWS::IAM::ManagedPolicy")[policy]["PolicyDocument"]
    found: list[dict[str, Any]] = resolved(document["Statement"], **choices)
    return found


def allows(of_type: OfType, policy: str, action: str, key: str = "") -> bool:
    """Whether a managed policy allows an action on the object with this key, or on anything."""
    return any(
        action in as_list(one["Action"])
        and (
            not key
            or any(iam.like(f"<Bucket.Arn>/{key}", pattern) for pattern in as_list(one["Resource"]))
        )
        for one in statements(of_type, policy)
    )
