"""What `make deploy` needs to know: from variables, a stack's file, or a person at the terminal.

A stack has one file, which `sam deploy` reads too: samconfig.local.toml, or
samconfig.NAME.local.toml of a stack with another name. Git ignores them. What a user adds to one
stays; the API token is never in it.
"""

import getpass
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from dropbatch.core.errors import ONE_A_STACK, holds_several
from local.template import parse_parameters, template, toml, write_parameters
from tools.account_stack import ROOT, DeployError, account_of, session

FOLDER = ROOT
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
REGION = r"[a-z]{2,4}(-[a-z]+)+-[0-9]"
REGIONS, PROFILES = ("AWS_REGION", "AWS_DEFAULT_REGION"), ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
FIRST = "dropbatch"
NAMED = (
    ("stack_name", ("STACK_NAME",), r"[A-Za-z][A-Za-z0-9-]{0,127}", "a letter, then at most 127"),
    ("region", REGIONS, REGION, "a region's name"),
    ("profile", PROFILES, ".+", "a profile"),
    ("role_arn", ("STACK_ROLE_ARN",), r"arn:aws[a-z-]*:iam::[0-9]{12}:role/.+", "a role's ARN"),
    ("tags", ("STACK_TAGS",), ".+=.*", "Key=Value, several with spaces between them"),
)
"""Settings of `sam deploy`: the variables that name each, its form, and the form in words."""
TABLES = {"stack_name": "global", "aws_account": "dropbatch"}
"""Where a setting is; the others are those of `deploy`. SAM has no command of the second name."""


@dataclass(frozen=True)
class AnswersFile:
    """The stack that a command works on, and the file of its answers, which need not exist."""

    path: Path
    settings: dict[str, Any]
    """Of `sam deploy`: the project's defaults, what the file says, then the variables."""


def choose(given: Mapping[str, str]) -> AnswersFile:
    """The stack that the variables name."""
    named = _named(given)
    name = named.get("stack_name", FIRST)
    path = FOLDER / ("samconfig.local.toml" if name == FIRST else f"samconfig.{name}.local.toml")
    before = _settings(_read(path))
    settings = {**before, **named, "stack_name": name}
    settings["region"] = settings.get("region") or _ask_region(given)
    settings["aws_account"] = account_of(settings)
    for one, what in (("region", "in region"), ("aws_account", "in AWS account")):
        if before.get(one, settings[one]) != settings[one]:
            raise DeployError(
                f"{path.name} is of a stack {what} {before[one]}; this is {settings[one]}. "
                "A stack elsewhere has another STACK_NAME here."
            )
    return AnswersFile(path, settings)


def save(file: AnswersFile, parameters: Mapping[str, str]) -> None:
    """Write what is not in the file yet, and the template's parameters."""
    tables = _read(file.path)
    own = ("stack_name", "aws_account", "region", "profile", "tags", "role_arn")
    wanted = {name: file.settings[name] for name in own if file.settings.get(name)}
    if parameters:
        wanted["parameter_overrides"] = write_parameters(dict(parameters))
    for name, value in wanted.items():
        table = tables.setdefault("default", {}).setdefault(TABLES.get(name, "deploy"), {})
        table.setdefault("parameters", {})[name] = value
    head = "# `make deploy`: the defaults of samconfig.toml, and your answers. Git ignores this.\n"
    file.path.write_text(head + "\n".join(toml(tables)) + "\n", "utf-8")


def _read(path: Path) -> dict[str, Any]:
    """The tables of a file; without it, the project's defaults."""
    path = path if path.exists() else FOLDER / "samconfig.toml"
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeployError(f"{path.name}: {error}") from error


def _settings(tables: Mapping[str, Any]) -> dict[str, Any]:
    inner = tables.get("default", {})
    return {
        name: value
        for table in ("global", "deploy", "dropbatch")
        for name, value in inner.get(table, {}).get("parameters", {}).items()
    }


def _named(given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, variables, pattern, must in NAMED:
        for variable in variables:
            value = given.get(variable, "").strip()
            if not value or name in found:
                continue
            if not re.fullmatch(pattern, value):
                raise DeployError(f"{variable} is {value!r}; it must be {must}.")
            found[name] = value
    return found


def parameters_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The template's parameters in settings of `sam deploy`, in each form that it reads."""
    overrides = settings.get("parameter_overrides", "")
    if isinstance(overrides, dict):
        return {name: str(value) for name, value in overrides.items()}
    return parse_parameters(overrides if isinstance(overrides, str) else " ".join(overrides))


def named_parameters(given: Mapping[str, str]) -> dict[str, str]:
    """The template's parameters in PARAMETERS, and in the variables that answer questions."""
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
        if not (value := given.get(variable, "").strip()):
            continue
        if parameters.get(name, value) != value:
            raise DeployError(f"{variable} and PARAMETERS differ in {name}. Unset one of them.")
        if wrong := _wrong(name, value):
            raise DeployError(f"{variable} {wrong}")
        parameters[name] = value
    return parameters


def refuse_gone(parameters: Mapping[str, str], place: str) -> None:
    """Refuse parameters that are gone; `place` names what has them."""
    found = [f"{name} is gone since 0.9: {GONE[name]}" for name in parameters if name in GONE]
    if parameters.get("Transport") == "gateway":
        found.append("Transport=gateway is gone since 0.9: AiGatewayId with Transport=rest.")
    if found:
        raise DeployError("\n".join([*found, f"Remove it from {place}."]))


def _wrong(parameter: str, value: str) -> str:
    """What is wrong with a parameter's value; empty if nothing is."""
    about = template()["Parameters"][parameter]
    if "AllowedPattern" in about and not re.search(about["AllowedPattern"], value):
        return str(about["ConstraintDescription"])
    if "AllowedValues" in about and value not in about["AllowedValues"]:
        return f"must be one of {', '.join(about['AllowedValues'])}."
    if about["Type"] == "Number":
        least, most = about.get("MinValue", -inf), about.get("MaxValue", inf)
        is_number = re.fullmatch(r"-?[0-9]*\.?[0-9]+", value, re.ASCII)
        is_right = is_number and least <= float(value) <= most
        return "" if is_right else f"must be a number from {least:,} to {most:,}."
    if not about.get("MinLength", 0) <= len(value) <= about.get("MaxLength", inf):
        return f"must have {about.get('MinLength', 0)} to {about.get('MaxLength', inf)} characters."
    return ""


@dataclass(frozen=True)
class Answers:
    """What a first deployment needs beside name and region."""

    parameters: dict[str, str]
    """Of the template; those not named have their defaults."""
    token: str = field(default="", repr=False)
    """Empty if the stack needs none."""


def ask(given: Mapping[str, str], saved: Mapping[str, Any]) -> Answers:
    """Everything that a first deployment needs; what no variable answers is asked.

    Saved answers of an earlier attempt become defaults.
    """
    parameters = parameters_of(saved) | named_parameters(given)
    account = _answer(
        given,
        "Cloudflare account id, 32 hexadecimal digits",
        ACCOUNT,
        parameters.get("CloudflareAccountId", ""),
        lambda value: _wrong("CloudflareAccountId", value),
    )
    own = parameters.get("Transport") == "worker" or parameters.get("CloudflareApiTokenSecretArn")
    token = "" if own else ask_token(given)
    email = _answer(
        given,
        "E-mail address for alarms (Enter: none)",
        EMAIL,
        parameters.get("NotificationEmail", ""),
        lambda value: value and _wrong("NotificationEmail", value),
    )
    parameters |= {"CloudflareAccountId": account} | ({"NotificationEmail": email} if email else {})
    return Answers(parameters, token)


def ask_token(given: Mapping[str, str]) -> str:
    text = "Cloudflare API token (Workers AI - Read and Edit), not shown"
    return _answer(given, text, TOKEN, "", _wrong_token, getpass.getpass)


def _ask_region(given: Mapping[str, str]) -> str:
    """The AWS region; that of the AWS CLI is the default."""
    known = session({}).region_name or ""
    return _answer(
        given,
        "AWS region",
        REGIONS[0],
        known,
        lambda value: "" if re.fullmatch(REGION, value) else "must be a region's name.",
    )


def _wrong_token(value: str) -> str:
    """What is wrong with the form of a token; empty if nothing is."""
    if holds_several(value):
        return f"must be one token. {ONE_A_STACK}"
    is_plain = value and value.isascii() and value.isprintable()
    return "" if is_plain else "must be the token alone."


def _answer(
    given: Mapping[str, str],
    text: str,
    variable: str,
    default: str,
    wrong: Callable[[str], str],
    read: Callable[[str], str] = input,
) -> str:
    """The answer to a question: the variable's value, else what is typed; Enter is the default."""
    is_asked = sys.stdin.isatty() and not given.get(variable, "").strip()
    value = given.get(variable, "").strip() or default
    hint = f" [{default}]" if default else ""
    while True:
        if is_asked:
            try:
                value = read(f"  {text}{hint}: ").strip() or default
            except EOFError:
                raise DeployError("\nNo answer was given.") from None
        if not (problem := wrong(value)):
            return value
        if not value and not is_asked:
            raise DeployError(f"There is no terminal to ask on: set {variable} ({text}).")
        if not is_asked:
            raise DeployError(f"{variable} {problem}")
        print(f"  It {problem}")
