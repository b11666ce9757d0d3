"""Scripts of tests/vendors; those of the vendors' packages run in an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
VENDORS = ROOT / ".local/vendors/bin/python"
JAVASCRIPT = ROOT / "tests/vendors/javascript"


def run(script: str, *arguments: Path | str, python: str | Path = sys.executable) -> Any:
    """What a script printed."""
    command: list[str | Path] = [
        python,
        "-W",
        "ignore",
        ROOT / "tests/vendors" / script,
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


def vendors_read(format_: str, lines: Iterable[object]) -> dict[str, int]:
    """How many of a format's result lines each of the vendors' types took."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lines.json"
        path.write_text(json.dumps([[format_, line] for line in lines]), "utf-8")
        counted: dict[str, int] = run("vendors_types.py", path, python=VENDORS)
        return counted
