"""`template.yaml` as data: test resources are made from it, so that no test can drift from what is deployed."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).parents[2] / "template.yaml"


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms, kept as `{"Ref": …}` and the like."""


def _short_form(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        return {name: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _short_form)


@cache
def template() -> dict[str, Any]:
    """The whole template."""
    return yaml.load(PATH.read_text(), _Loader)


def properties(name: str) -> dict[str, Any]:
    """One resource's properties."""
    return template()["Resources"][name]["Properties"]


def default(parameter: str) -> str:
    """One parameter's default, as the environment would hold it."""
    return str(template()["Parameters"][parameter]["Default"])
