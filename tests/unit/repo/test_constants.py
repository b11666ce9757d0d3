"""One name, one meaning: no public constant of what is shipped, but for tables, has two values."""

import ast

from tests.support.shipped import ROOT, SHIPPED


def constants(path):
    """The public constants that a module defines, each with the source of its value."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign):
            names, values = node.targets[0], node.value
            several = isinstance(names, ast.Tuple) and isinstance(values, ast.Tuple)
            for name, value in (
                zip(names.elts, values.elts, strict=True) if several else [(names, values)]
            ):
                is_public = isinstance(name, ast.Name) and name.id.isupper()
                if is_public and name.id[0] != "_" and not isinstance(value, ast.Dict):
                    yield name.id, ast.unparse(value)


def test_constant_has_one_value():
    found = {}
    for path in SHIPPED:
        for name, value in constants(path):
            found.setdefault(name, {}).setdefault(value, str(path.relative_to(ROOT)))
    assert len(found) > 200
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
