"""The modules in the Lambda artifact: both functions, `shared`, and the library's core."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = sorted((ROOT / "dropbatch/core").rglob("*.py"))
"""The part of the library that the functions use."""
SHIPPED = [
    *sorted(path for room in ("functions", "shared") for path in (ROOT / room).rglob("*.py")),
    *(ROOT / "dropbatch/__init__.py", *CORE),
]
