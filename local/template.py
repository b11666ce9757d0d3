"""`template.yaml` as data: test resources, local deployments and costs follow what is deployed."""

import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).parents[1] / "template.yaml"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # In C where PyYAML was built so.
    """YAML with CloudFormation's short forms, kept as `{"Ref": …}` and the like."""


def _short_form(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        return {name: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _short_form)


def parse(text: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    return content


@cache
def template() -> dict[str, Any]:
    return parse(PATH.read_text())


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = template()["Resources"][name]["Properties"]
    return found


def defaults() -> dict[str, str]:
    """The defaults of all parameters that have one, as the environment would hold them."""
    parameters = template()["Parameters"]
    return {name: str(one["Default"]) for name, one in parameters.items() if "Default" in one}


def default(parameter: str) -> str:
    return defaults()[parameter]


def _variables() -> dict[str, Any]:
    found: dict[str, Any] = template()["Globals"]["Function"]["Environment"]["Variables"]
    return found


def default_variables() -> dict[str, str]:
    """The functions' own variables that are the default of a parameter."""
    own = {name: one for name, one in _variables().items() if not name.startswith("POWERTOOLS_")}
    named = {
        name: one["Ref"] for name, one in own.items() if isinstance(one, dict) and "Ref" in one
    }
    return {name: defaults()[one] for name, one in named.items() if one in defaults()}


def parse_parameters(text: str) -> dict[str, str]:
    """Parse `Name=value Other="a value"`.

    A word without a name continues the value, as in a prefix with a blank.
    """
    parameters: dict[str, str] = {}
    name = ""
    for word in shlex.split(text):
        if match := re.match(r"([A-Za-z][A-Za-z0-9]*)=", word):
            name = match[1]
            parameters[name] = word[match.end() :]
        elif name:
            parameters[name] += f" {word}"
        else:
            raise ValueError(f"parameters are written as Name=value; {word!r} has no name.")
    return parameters


def write_parameters(parameters: dict[str, str]) -> str:
    """Write parameters as `sam deploy` reads them: the reverse of `parse_parameters`."""
    return " ".join(f'{name}="{value}"' for name, value in parameters.items())


def toml(table: Mapping[str, Any], *path: str) -> list[str]:
    """The lines of a table and of those within it. JSON's plain values are also TOML's."""
    inner = {name: value for name, value in table.items() if isinstance(value, dict)}
    plain = [(name, value) for name, value in table.items() if name not in inner]
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in plain]
    if path and lines:
        lines = ["", f"[{'.'.join(path)}]", *lines]
    for name, value in inner.items():
        lines += toml(value, *path, name)
    return lines


def powertools_variables() -> dict[str, str]:
    """The variables that Powertools reads when it is imported."""
    texts = {name: one for name, one in _variables().items() if isinstance(one, str)}
    found = {name: one for name, one in texts.items() if name.startswith("POWERTOOLS_")}
    return found | {"POWERTOOLS_SERVICE_NAME": "dropbatch"}
