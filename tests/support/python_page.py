"""The walk in docs/python.md: its blocks of code, each with what the page shows below it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.shipped import ROOT

if TYPE_CHECKING:
    import pytest

BLOCK = re.compile(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", re.DOTALL)
BLOCKS = 7


def printed_and_shown(
    capsys: pytest.CaptureFixture[str],
) -> tuple[list[list[str]], list[list[str]]]:
    """Run the page in the current folder, on the stack that boto3 finds."""
    names: dict[str, object] = {}
    walk, _, _ = (ROOT / "docs/python.md").read_text("utf-8").partition("## Reference")
    blocks = BLOCK.findall(walk)

    printed = []
    for code, _ in blocks:
        capsys.readouterr()
        exec(compile(code, "docs/python.md", "exec"), names)
        lines = capsys.readouterr().out.splitlines()
        printed.append([line.rstrip() for line in lines if not line.startswith('{"')])

    assert len(blocks) == BLOCKS
    return printed, [[line.rstrip() for line in shown.splitlines()] for _, shown in blocks]
