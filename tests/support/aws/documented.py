"""The commands of the AWS CLI in the documents, as a reader would run them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tests.support.shipped import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SHELL = {"", "sh"}
_INLINE = re.compile(r"`(aws [a-z][^`]*)`")
_COMMAND = re.compile(r"(?<![\w-])aws [a-z0-9]+ ")
_SIGNS_IN = "aws sso login"
"""Opens a browser; and the first version of the AWS CLI has no such command."""
_NAMES = "With the AWS CLI"
"""The section of docs/operations.md whose first block gives the names that the others use."""


class Lines(NamedTuple):
    """Commands that belong together.

    Attributes:
        where: the document, and the first line.
        script: for bash.
    """

    where: str
    script: str


def documents() -> list[Path]:
    """Everything that a reader may copy commands from."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/README.md"]


def aws_lines() -> list[Lines]:
    """Every block, and every command in a text, that calls the AWS CLI."""
    found = []
    for path in documents():
        text = path.read_text("utf-8")
        blocks = [
            (one.start(2), _script(one[2])) for one in _BLOCK.finditer(text) if one[1] in _SHELL
        ]
        outside = _BLOCK.sub(lambda one: " " * len(one[0]), text)
        blocks += [
            (one.start(1), one[1].replace("\n", " "))
            for one in _INLINE.finditer(outside)
            if " " in one[1][4:]
        ]
        for at, script in sorted(blocks):
            if _COMMAND.search(script) and "()" not in script and script != _SIGNS_IN:
                line = text.count("\n", 0, at) + 1
                found.append(Lines(f"{path.relative_to(ROOT)}:{line}", script))
    return found


def names() -> str:
    """The block that gives the names which the others use."""
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    return str(_BLOCK.findall(text[text.index(f"## {_NAMES}") :])[0][1])


def _script(block: str) -> str:
    """The commands of a block."""
    if not re.search(r"^\$ ", block, re.MULTILINE):
        return block
    kept: list[str] = []
    goes_on = False
    for line in block.splitlines():
        if line.startswith("$ ") or goes_on:
            kept.append(line.removeprefix("$ "))
            is_open = _count(kept, r"; do$") > _count(kept, r"^\s*done$")
            goes_on = is_open or kept[-1].endswith(("\\", "|", "&&"))
    return "\n".join(kept) + "\n"


def _count(lines: list[str], pattern: str) -> int:
    return sum(bool(re.search(pattern, line)) for line in lines)
