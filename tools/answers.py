"""What `make deploy` needs to know.

From variables, from a file of them, or from a person at the terminal.

What is saved, and where, is in `tools.answers_files`. The API token is never among it.
"""

from __future__ import annotations

import getpass
import re
import sys
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropbatch.core.errors import ONE_A_STACK, holds_several
from local.template import parse_parameters, template
from tools.account_stack import DeployError, session
from tools.answers_files import REGION, REGIONS, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ACCOUNT, TOKEN, EMAIL = "CLOUDFLARE_ACCOUNT_ID", "CLOUDFLARE_API_TOKEN", "NOTIFICATION_EMAIL"
GONE = {
    "AccessLogBucketName": "`aws s3api put-bucket-logging` has the bucket's accesses logged.",
    "AiGatewayBaseUrl": "AiGatewayId names a gateway, and Transport=rest reaches it.",
    "BucketEvents": "EventBridge is told of each job's end (docs/pipelines.md).",
    "MaxCostPerDay": "max_cost limits a job; Cloudflare's spend limits hold for an account.",
    "PollSchedule": "The poll function starts each minute.",
    "ReserveConcurrency": "The functions share the account's concurrency; ask AWS to raise it.",
    "StagingRetentionDays": "What a job stages is deleted soon after its end.",
    "StateMachineArn": "An execution waits for manifest.json (docs/pipelines.md).",
}
"""Parameters that once existed, with what there is instead; each is refused by name."""
PARAMETER_OF = {ACCOUNT: "CloudflareAccountId", EMAIL: "NotificationEmail"}


@dataclass(frozen=True)
class Answers:
    """What a first deployment needs beside name and region.

    Attributes:
        parameters: of the template; those not named have their defaults.
        token: the API token; empty if the stack needs none, or has it already.
    """

    parameters: dict[str, str]
    token: str = field(default="", repr=False)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, and below it the file of `NAME=value` lines that its variable ANSWERS names.

    A variable that is empty in the environment is not set.

    Raises:
        DeployError: the file cannot be read, or a line is something else.
    """
    if not (name := environment.get("ANSWERS", "")):
        return dict(environment)
    try:
        lines = Path(name).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"ANSWERS: {name} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        variable, separator, value = line.strip().removeprefix("export ").partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not separator or not variable.isidentifier():
            # Its content may be a token.
            raise DeployError(f"{name}, line {number}: write it as NAME=value.")
        found[variable] = value.strip().strip("\"'")
    return found | {variable: value for variable, value in environment.items() if value.strip()}


def given_parameters(given: Mapping[str, str]) -> dict[str, str]:
    """The template's parameters in the variable PARAMETERS.

    Raises:
        DeployError: the template has no such parameter, or accepts no such value; or a variable of
            its own has another.
    """
    try:
        parameters = parse_parameters(given.get("PARAMETERS", ""))
    except ValueError as error:
        raise DeployError(f"PARAMETERS: {error}") from error
    refuse_gone(parameters, "PARAMETERS")
    for name, value in parameters.items():
        if name not in template()["Parameters"]:
            raise DeployError(
                f"The template has no parameter {name}; docs/configuration.md lists all."
            )
        if wrong := _wrong(name, value):
            raise DeployError(f"{name} {wrong}")
    for variable, name in PARAMETER_OF.items():
        if name in parameters and given.get(variable, "").strip() not in {"", parameters[name]}:
            raise DeployError(f"{variable} and PARAMETERS differ in {name}. Unset one of them.")
    return parameters


def refuse_gone(parameters: Mapping[str, str], place: str) -> None:
    """Refuse parameters that are gone; `place` names what has them.

    Raises:
        DeployError: there is one, with what there is instead.
    """
    found = [f"{name} is gone since 0.9: {GONE[name]}" for name in parameters if name in GONE]
    if parameters.get("Transport") == "gateway":
        found.append("Transport=gateway is gone since 0.9: AiGatewayId with Transport=rest.")
    if found:
        raise DeployError("\n".join([*found, f"Remove it from {place}."]))


def named_parameters(given: Mapping[str, str]) -> dict[str, str]:
    """The template's parameters in all variables: PARAMETERS, and those that answer questions.

    Raises:
        DeployError: as for `given_parameters`.
    """
    parameters = given_parameters(given)
    for variable, parameter in PARAMETER_OF.items():
        if value := given.get(variable, "").strip():
            if wrong := _wrong(parameter, value):
                raise DeployError(f"{variable} {wrong}")
            parameters[parameter] = value
    return parameters


def needs_token(parameters: Mapping[str, str]) -> bool:
    """Whether the stack sends a token that is in its own secret."""
    return parameters.get("Transport") != "worker" and not parameters.get(
        "CloudflareApiTokenSecretArn"
    )


def _wrong(parameter: str, value: str) -> str:
    """What is wrong with a parameter's value; empty if nothing is."""
    about = template()["Parameters"][parameter]
    if "AllowedPattern" in about and not re.search(about["AllowedPattern"], value):
        return str(about["ConstraintDescription"])
    if "AllowedValues" in about and value not in about["AllowedValues"]:
        return f"must be one of {', '.join(about['AllowedValues'])}."
    if about["Type"] == "Number":
        return _wrong_number(value, about.get("MinValue", -inf), about.get("MaxValue", inf))
    if not about.get("MinLength", 0) <= len(value) <= about.get("MaxLength", inf):
        return f"must have {about.get('MinLength', 0)} to {about.get('MaxLength', inf)} characters."
    return ""


def _wrong_number(value: str, least: float, most: float) -> str:
    """What is wrong with a number's text, as CloudFormation reads it; empty if nothing is."""
    is_number = re.fullmatch(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)", value, re.ASCII)
    return (
        ""
        if is_number and least <= float(value) <= most
        else f"must be a number from {least:,} to {most:,}."
    )


def _wrong_token(value: str) -> str:
    """What is wrong with the form of a token; empty if nothing is."""
    if holds_several(value):
        return f"must be one token. {ONE_A_STACK}"
    return "" if value.isascii() and value.isprintable() else "must be the token alone."


@dataclass(frozen=True)
class _Question:
    """One question.

    Attributes:
        text: for a person.
        names: the variables that answer it, the first one first.
        default: what Enter means; empty: it must be answered, unless it is optional.
        wrong: returns what is wrong with an answer.
        optional: whether it may stay empty.
        secret: whether the answer is not shown.
    """

    text: str
    names: tuple[str, ...]
    default: str
    wrong: Callable[[str], str]
    optional: bool = False
    secret: bool = False

    def answer(self, given: Mapping[str, str]) -> str:
        """The answer, from a variable or from the terminal.

        Raises:
            DeployError: there is none, or the variable's value is wrong.
        """
        for name in self.names:
            if value := given.get(name, "").strip():
                if wrong := self.wrong(value):
                    raise DeployError(f"{name} {wrong}")
                return value
        if not sys.stdin.isatty():
            if self.default or self.optional:
                return self.default
            raise DeployError(f"There is no terminal to ask on: set {self.names[0]} ({self.text}).")
        return self._ask()

    def _ask(self) -> str:
        hint = f" [{self.default}]" if self.default else " (Enter: none)" if self.optional else ""
        while True:
            try:
                read = getpass.getpass if self.secret else input
                value = read(f"  {self.text}{hint}: ").strip() or self.default
            except EOFError:
                raise DeployError("\nNo answer was given.") from None
            wrong = self.wrong(value)
            if not value:
                wrong = "" if self.optional else "is needed."
            if not wrong:
                return value
            print(f"  It {wrong}")


def ask(given: Mapping[str, str], saved: Mapping[str, Any]) -> Answers:
    """Everything that a first deployment needs; what no variable answers is asked.

    Args:
        given: `variables`.
        saved: answers of an earlier attempt, which become defaults.

    Raises:
        DeployError: an answer is missing or wrong.
    """
    before = parameters_of(saved)
    parameters = before | given_parameters(given)
    account = _Question(
        "Cloudflare account id, 32 hexadecimal digits",
        (ACCOUNT,),
        parameters.get("CloudflareAccountId", ""),
        lambda value: _wrong("CloudflareAccountId", value),
    ).answer(given)
    token = ask_token(given) if needs_token(parameters) else ""
    email = _Question(
        "E-mail address for alarms",
        (EMAIL,),
        parameters.get("NotificationEmail", ""),
        lambda value: _wrong("NotificationEmail", value),
        optional=True,
    ).answer(given)
    parameters |= {"CloudflareAccountId": account} | ({"NotificationEmail": email} if email else {})
    return Answers(parameters, token)


def ask_region(given: Mapping[str, str], saved: Mapping[str, Any]) -> str:
    """The AWS region; the first stack's is the default.

    Else the one that is configured for the AWS CLI.

    Raises:
        DeployError: there is none, or it is none.
    """
    known = saved.get("region") or session(saved).region_name or ""
    wrong: Callable[[str], str] = lambda value: (  # noqa: E731
        "" if re.fullmatch(REGION, value) else "must be a region's name."
    )
    return _Question("AWS region", REGIONS, known, wrong).answer(given)


def ask_token(given: Mapping[str, str]) -> str:
    """The API token.

    Raises:
        DeployError: there is none, or it has a wrong form.
    """
    text = "Cloudflare API token (Workers AI - Read and Edit), not shown"
    return _Question(text, (TOKEN,), "", _wrong_token, secret=True).answer(given)
