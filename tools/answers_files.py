"""One file of answers a stack, which `sam deploy` reads too.

samconfig.local.toml belongs to the first stack, samconfig.NAME.REGION.local.toml to another. Git
ignores them. Neither has the token. What a user adds to one stays, but for a parameter that the
stack has otherwise. samconfig.toml holds the project's defaults and is never written.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from local.aws import toml
from local.template import parse_parameters, write_parameters
from tools.account_stack import ROOT, DeployError, account_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FOLDER = ROOT
HEADER = """# `make deploy`: the defaults of samconfig.toml, and your answers. Git ignores this.
# `make deploy` keeps the values of the stack's parameters: change one with PARAMETERS=, not here.
version = 0.1

"""
NAME = r"[A-Za-z][A-Za-z0-9-]{0,127}"
REGION = r"[a-z]{2,4}(-[a-z]+)+-[0-9]"
ROLE = r"arn:aws[a-z-]*:iam::[0-9]{12}:role/.+"
REGIONS, PROFILES = ("AWS_REGION", "AWS_DEFAULT_REGION"), ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
TABLES = {"stack_name": "default.global.parameters", "aws_account": "default.dropbatch.parameters"}
"""Where a setting is; the others are in DEPLOY. SAM has no command of the second one's name."""
DEPLOY = "default.deploy.parameters"


@dataclass(frozen=True)
class AnswersFile:
    """The stack that a command works on, and the file of its answers.

    Attributes:
        path: the file; it need not exist.
        settings: of `sam deploy`: the project's defaults, then what the file says, then what the
            variables say.
    """

    path: Path
    settings: dict[str, Any]


def choose(given: Mapping[str, str], region_of: Callable[[Mapping[str, Any]], str]) -> AnswersFile:
    """The stack that the variables name; what they do not name is as in the first stack's file.

    Args:
        given: variables.
        region_of: returns the region of a stack that has no file and for which no variable names
            one.

    Raises:
        DeployError: a name is wrong, or several stacks fit.
    """
    explicit = _explicit(given)
    first = _read(FOLDER / "samconfig.local.toml")
    wanted = {
        "stack_name": first["stack_name"],
        **({} if "stack_name" in explicit else _place(first)),
        **explicit,
    }
    fitting = _fitting(wanted, explicit, given)
    if len(fitting) > 1:
        listed = ", ".join(f"{one.path.name} ({one.settings.get('region')})" for one in fitting)
        raise DeployError(
            f'Several stacks are named "{wanted["stack_name"]}": {listed}. Set AWS_REGION '
            "or AWS_PROFILE."
        )
    settings = {**(fitting[0].settings if fitting else _read(FOLDER / "samconfig.toml")), **wanted}
    settings["region"] = settings.get("region") or region_of({**_place(first), **explicit})
    return AnswersFile(fitting[0].path if fitting else _unused(settings), settings)


def save(file: AnswersFile, parameters: Mapping[str, str]) -> None:
    """Write what is not in the file yet.

    Name, region, profile, account, tags, role and the template's parameters.

    Args:
        file: the file and the settings that it must have.
        parameters: of the template.

    Raises:
        DeployError: a user wrote the file in a form that cannot be changed here.
    """
    text = file.path.read_text("utf-8") if file.path.exists() else _defaults()
    before = _settings(text)
    names = [*TABLES, "region", "tags", "role_arn", *([] if file.path.exists() else ["profile"])]
    wanted = {name: file.settings.get(name) for name in names}
    if parameters_of(before) != dict(parameters):
        wanted["parameter_overrides"] = write_parameters(dict(parameters))
    changed = {
        name: str(value) for name, value in wanted.items() if value and before.get(name) != value
    }
    for name, value in changed.items():
        text = _changed(text, TABLES.get(name, DEPLOY), name, value)
    if not _is_whole(text) or _settings(text) != before | changed:
        lines = "\n  ".join(f"{name} = {toml(value)}" for name, value in changed.items())
        raise DeployError(
            f"{file.path.name} has a form that cannot be changed here. Put in it "
            f"yourself:\n  {lines}"
        )
    file.path.write_text(text, "utf-8")


def parameters_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The template's parameters in settings of `sam deploy`.

    In each form that the SAM CLI reads.
    """
    overrides = settings.get("parameter_overrides", "")
    if isinstance(overrides, dict):
        return {name: str(value) for name, value in overrides.items()}
    return parse_parameters(overrides if isinstance(overrides, str) else " ".join(overrides))


def _explicit(given: Mapping[str, str]) -> dict[str, str]:
    """The settings that variables name.

    A profile only if no variable has the keys themselves, which come first.
    """
    found = {}
    for name, variables, pattern, must in (
        (
            "stack_name",
            ("STACK_NAME",),
            NAME,
            "begin with a letter, and have at most 128 letters, digits and hyphens",
        ),
        ("region", REGIONS, REGION, "be a region's name"),
        ("profile", () if given.get("AWS_ACCESS_KEY_ID") else PROFILES, ".+", ""),
        ("role_arn", ("STACK_ROLE_ARN",), ROLE, "be a role's ARN"),
        ("tags", ("STACK_TAGS",), ".+=.*", "be Key=Value, several with spaces between them"),
    ):
        for variable in variables:
            if (value := given.get(variable, "").strip()) and name not in found:
                if not re.fullmatch(pattern, value):
                    raise DeployError(f"{variable} is {value!r}; it must {must}.")
                found[name] = value
    return found


def _place(settings: Mapping[str, Any]) -> dict[str, str]:
    return {"region": settings["region"]} if settings.get("region") else {}


def _fitting(
    wanted: Mapping[str, str], explicit: Mapping[str, str], given: Mapping[str, str]
) -> list[AnswersFile]:
    """The files of the stack that is wanted, of which there should be one.

    Without a variable it is the first stack's. A file with a profile is looked at last: its
    credentials may have ended.
    """
    paths = [FOLDER / "samconfig.local.toml", *sorted(FOLDER.glob("samconfig.*.local.toml"))]
    files = [AnswersFile(path, _read(path)) for path in paths if path.exists()]
    plain = [one for one in files if "profile" not in one.settings or "profile" in explicit]
    for group in ([] if explicit else files[:1], plain, [one for one in files if one not in plain]):
        if found := [one for one in group if _fits(one, wanted, given)]:
            return [one for one in found if "aws_account" in one.settings] or found
    return []


def _fits(file: AnswersFile, wanted: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Whether a file belongs to the stack of this name.

    In this region and in the account of the credentials.

    Raises:
        DeployError: the variables have keys, and the file names a profile: nothing says which of
            them counts.
    """
    settings = file.settings
    places = [(settings.get(name), wanted.get(name)) for name in ("stack_name", "region")]
    if any(one and other and one != other for one, other in places):
        return False
    if given.get("AWS_ACCESS_KEY_ID") and "profile" in settings:
        raise DeployError(
            f"AWS_ACCESS_KEY_ID is set, and {file.path.name} names the profile "
            f"{settings['profile']}. Unset the "
            "variable, or remove the line."
        )
    return settings.get("aws_account") in {None, account_of({**settings, **wanted})}


def _unused(settings: Mapping[str, Any]) -> Path:
    """A file that does not exist, for a stack that has none."""
    name = f"{settings['stack_name']}.{settings['region']}"
    for middle in ("", f".{name}", f".{name}.{account_of(settings)}"):
        if not (path := FOLDER / f"samconfig{middle}.local.toml").exists():
            return path
    raise DeployError(
        f"{path.name} belongs to another stack than its name says. Correct or remove it."
    )


def _read(path: Path) -> dict[str, Any]:
    """The settings in a file; without it, the project's defaults.

    Raises:
        DeployError: it is no TOML.
    """
    try:
        return _settings((path if path.exists() else FOLDER / "samconfig.toml").read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeployError(f"{path.name}: {error}") from error


def _settings(text: str) -> dict[str, Any]:
    tables = tomllib.loads(text).get("default", {})
    own = {"stack_name": "dropbatch"}
    return own | {
        name: value
        for table in ("global", "deploy", "dropbatch")
        for name, value in tables.get(table, {}).get("parameters", {}).items()
    }


def _defaults() -> str:
    """The text of a new file."""
    return (
        HEADER + (FOLDER / "samconfig.toml").read_text("utf-8").partition("\n\n")[2].rstrip() + "\n"
    )


def _changed(text: str, table: str, name: str, value: str) -> str:
    """Set one string in one table of a TOML file; everything else stays, comments too."""
    lines, line = text.splitlines(keepends=True), f"{name} = {toml(value)}\n"
    header = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]")
    begin = next((number for number, one in enumerate(lines) if header.match(one)), None)
    if begin is None:
        return f"{text.rstrip()}\n\n[{table}]\n{line}"
    end = last = begin + 1
    while end < len(lines) and not lines[end].lstrip().startswith("["):
        start, end = end, end + 1
        while not _is_whole("".join(lines[start:end])) and end < len(lines):
            end += 1  # A value of several lines.
        if name in tomllib.loads("".join(lines[start:end])):
            return "".join([*lines[:start], line, *lines[end:]])
        last = end if lines[end - 1].strip() else last
    return "".join([*lines[:last], line, *lines[last:]])


def _is_whole(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
