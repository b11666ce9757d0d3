"""The walk in docs/python.md: its code runs on a whole stack, block after block, and prints what the page shows."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", re.DOTALL)


def test_page_prints_what_it_shows(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))

    printed = []
    for code, _ in blocks:
        capsys.readouterr()
        exec(compile(code, "docs/python.md", "exec"), names)
        lines = capsys.readouterr().out.splitlines()
        printed.append([line.rstrip() for line in lines if not line.startswith('{"')])

    assert printed == [[line.rstrip() for line in shown.splitlines()] for _, shown in blocks]
    assert len(blocks) == 5
