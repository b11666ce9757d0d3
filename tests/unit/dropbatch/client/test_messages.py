"""Messages: the library's words are neutral; the command line adds its own options."""

import ast
import re

import pytest

from dropbatch.cli.context import said
from dropbatch.cli.put import validation_lines
from dropbatch.client.validate import validate
from dropbatch.errors import NoStack, NotFound, NotOver, Taken
from tests.support.shipped import ROOT

COMMAND_LINE = re.compile(r"(?<![\w`-])--[a-z]|(?<!\w)-o\b|`dropbatch (?!doctor`)")
IN_COMMANDS = ("cli/", "client/events.py", "serve/app.py")
"""What only commands use."""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NoStack("There is no stack."), "There is no stack. (--stack or DROPBATCH_STACK names it)"),
        (NotOver("It is not over."), "It is not over. (`dropbatch wait JOB` waits)"),
        (Taken("x exists."), "x exists. (-o names another place, --force replaces what is there)"),
        (NotFound("There is none."), "There is none."),
    ],
)
def test_command_line_has_hints_for_kinds_of_errors(error, says):
    assert said(error) == says


@pytest.mark.parametrize(
    ("records", "model", "says"),
    [
        (
            [{"text": "x"}],
            "@cf/baai/bge-m3",
            "7 input tokens, 0 output tokens, $0.00000008 at the prices of",
        ),
        ([{"text": "x"}], "@cf/some/model", "tokens, the model's price is unknown"),
        ([], "@cf/baai/bge-m3", "none: there is nothing to send"),
    ],
)
def test_estimate_says_what_is_unknown(records, model, says):
    (line,) = [
        one
        for one in validation_lines(validate(records, None, {"model": model, "task": "embeddings"}))
        if "estimate " in one
    ]

    assert says in line


def strings(path):
    """A module's strings that are no docstrings, each with its line."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
    ]


def test_library_does_not_name_options():
    folder = ROOT / "dropbatch"
    modules = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.py"))]
    found = [
        f"{name}:{line}: {text}"
        for name in modules
        if not name.startswith(IN_COMMANDS)
        for line, text in strings(folder / name)
        if COMMAND_LINE.search(text)
    ]
    assert found == []
