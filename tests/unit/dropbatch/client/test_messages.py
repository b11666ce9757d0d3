"""Messages: the library speaks to programs; the command line says the same in its own words."""

import ast
import re

import pytest

from dropbatch.cli.exits import in_options
from dropbatch.cli.reports import validation_lines
from dropbatch.client.validate import validate
from tests.support.shipped import ROOT

ID, OTHER = "20261121T093000Z-0123abcd", "20261121T093000Z-4567abcd"
COMMAND_LINE = re.compile(r"(?<![\w`-])--[a-z]|(?<!\w)-o\b|`dropbatch (?!doctor`)")
IN_COMMANDS = ("cli/", "client/events.py", "serve/app.py")
"""What only commands use."""


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            f"Job {ID} is not over yet. Wait for it with `job.wait()`.",
            f"with `dropbatch wait {ID}`.",
        ),
        (
            f"Jobs {ID} {OTHER}: stop them with `job.cancel()`.",
            f"with `dropbatch cancel {ID} {OTHER}`.",
        ),
        ("No upload 'a' has a job. `client.jobs()` lists jobs.", "`dropbatch ls` lists jobs."),
        (
            "Choose another `folder`, or use `force=True`.",
            "Choose another folder with -o, or use --force.",
        ),
        ("Choose another `name`.", "Choose another --name."),
        ("No stack. Name it with `stack`.", "Name it with --stack or DROPBATCH_STACK."),
        ("`dropbatch doctor` looks; `jq -c`; `text`", "`dropbatch doctor` looks; `jq -c`; `text`"),
    ],
)
def test_command_line_says_it_in_options(message, says):
    assert in_options(message).endswith(says)


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
        for one in validation_lines(validate(records, None, {"model": model}))
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
