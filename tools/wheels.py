"""`make wheels`: write docs/platforms.md, a table of where the lock files install from wheels alone.

For each lock file, platform and Python, uv resolves the lock file without installing it and without source packages.
It reports one package without a wheel; that one is removed from a copy of the lock file, and uv runs again. Needs the
package index.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv/bin/uv"
PAGE = ROOT / "docs/platforms.md"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "Linux x86_64": "x86_64-manylinux_2_28",
    "Linux arm64": "aarch64-manylinux_2_28",
    "macOS x86_64": "x86_64-apple-darwin",
    "macOS arm64": "aarch64-apple-darwin",
}
OLDEST_MACOS = "14.0"
LOCKS = {
    "requirements.txt": "the functions' packages",
    "requirements-sam.txt": "`make build`, `make deploy`, `make destroy`",
    "requirements-local.txt": "the local AWS; with the locks above and below, `make demo`, `make up`, `make test`",
    "requirements-dev.txt": "the project's environment",
    "requirements-checkov.txt": "`make lint`",
    "requirements-vendors.txt": "`make test-slow`",
    "requirements-curator.txt": "`make test-slow`",
}
"""The lock files, and what needs them."""

_PINNED = re.compile(r"^([a-z0-9-]+==[^ ]+)", re.MULTILINE)


def fingerprint() -> str:
    """A digest of all lock files."""
    digest = hashlib.sha256()
    for lock in sorted(LOCKS):
        digest.update((ROOT / lock).read_bytes())
    return digest.hexdigest()[:16]


def without_wheel(lock: str, platform: str, python: str) -> list[str]:
    """The packages of a lock file, as name==version, that have no wheel for a platform and a Python.

    Args:
        lock: the lock file's name.
        platform: uv's name of the platform.
        python: the Python's version, such as 3.13.

    Raises:
        RuntimeError: uv failed for another reason.
    """
    text = (ROOT / lock).read_text()
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, lock)
        command = [
            *(str(UV), "pip", "install", "--dry-run", "--no-config", "--no-deps", "--require-hashes"),
            *("--only-binary", ":all:", "--target", folder, "--python-platform", platform, "--python-version", python),
            *("-r", str(copy)),
        ]
        while True:
            copy.write_text(text)
            environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": OLDEST_MACOS}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return found
            named = re.search(r"Because ([a-z0-9-]+==\S+) has no (?:usable )?wheels", " ".join(done.stderr.split()))
            if not named or named[1] not in _PINNED.findall(text):
                raise RuntimeError(f"{lock}, {platform}, Python {python}: {done.stderr}")
            found.append(named[1])
            text = re.sub(rf"^{re.escape(named[1])} .*\n(?:    --hash.*\n)+", "", text, flags=re.MULTILINE)


def table() -> dict[tuple[str, str, str], list[str]]:
    """What has no wheel, by lock, platform and Python."""
    places = list(itertools.product(LOCKS, PLATFORMS, PYTHONS))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda place: without_wheel(place[0], PLATFORMS[place[1]], place[2]), places)
        return dict(zip(places, found, strict=True))


def page(found: dict[tuple[str, str, str], list[str]]) -> str:
    """docs/platforms.md."""
    lines = [
        "# Platforms",
        "",
        "The machines on which each lock file installs from wheels alone, without a compiler. `make wheels` writes",
        "this page. It resolves every lock file against the package index (Linux with glibc 2.28 or later, macOS 14",
        "or later).",
        "",
        f"<!-- locks: {fingerprint()} -->",
        "",
        f"| lock file | for | {' | '.join(PLATFORMS)} |",
        f"| --- | --- |{' --- |' * len(PLATFORMS)}",
    ]
    for lock, purpose in LOCKS.items():
        cells = []
        for platform in PLATFORMS:
            missing = [(python, found[lock, platform, python]) for python in PYTHONS if found[lock, platform, python]]
            cells.append(
                "; ".join(f"Python {python}: no wheel of {', '.join(names)}" for python, names in missing)
                or f"{PYTHONS[0]} to {PYTHONS[-1]}"
            )
        lines.append(f"| `{lock}` | {purpose} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *NOTES, ""])


NOTES = (
    "Where a wheel is missing, pip builds the package from source. `watchdog`, which the SAM CLI pins, needs a C",
    "compiler for that. On macOS, the command line tools that include `make` include one too. Or use another Python:",
    "`make deploy PYTHON=python3.13`.",
    "",
    "Some packages differ by machine:",
    "",
    "- `backports.zstd` is installed with Python before 3.14; later versions have the module themselves.",
    "- `cryptography` and `lazy-object-proxy`, used by the local AWS and the tools: Intel Macs get the last versions",
    "  that have wheels for them. Neither package is packed into the functions.",
    "- `wordllama`, the small model of the local Workers AI, is installed on Linux x86_64 and on macOS, with Python",
    "  before 3.14. Elsewhere the local Workers AI makes vectors from hashes of words, and the demo says so.",
)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(table()))
    print(f"{PAGE.relative_to(ROOT)} is written.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
