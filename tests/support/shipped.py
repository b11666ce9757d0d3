"""The modules in the Lambda artifact: both functions, what they share, and the library's rules (`make build`)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
(_RULES,) = re.findall(r"^RULES := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
RULES = sorted(
    path
    for name in _RULES.split()
    for path in ((ROOT / "dropbatch" / name).rglob("*.py") if "." not in name else [ROOT / "dropbatch" / name])
    if path.suffix == ".py"
)
"""The part of the library that the functions use."""
SHIPPED = sorted(path for room in ("functions", "shared") for path in (ROOT / room).rglob("*.py")) + RULES
