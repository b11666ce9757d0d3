"""Packs a function: `sam build` calls this through the Makefile's rules.

functions/, shared/, dropbatch/core and the locked packages, with byte code. DROPBATCH_BUILD chooses
the target: arm64 or x86_64 in Lambda, or local: this Python, this processor. The packages are
checked by hash. It runs before anything is installed, so it uses the standard library alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAMBDA_PYTHON = "3.13"
PROCESSORS = {"arm64": "aarch64", "x86_64": "x86_64"}
GLIBC = ("manylinux_2_28", "manylinux2014", "manylinux_2_17")
"""Lambda's runtimes are Amazon Linux 2023 (glibc 2.34); pip accepts only the tags listed here."""
LEFT_OUT = ("__pycache__", "*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED")
"""What names this machine, or is for another version of Python."""
PIP = (
    *("-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile", "--no-deps"),
    *("--require-hashes", "--only-binary=:all:"),
)


def main() -> None:
    """Pack the function whose artifact goes to ARTIFACTS_DIR."""
    target = os.environ.get("DROPBATCH_BUILD") or "arm64"
    if target not in {*PROCESSORS, "local"}:
        sys.exit(f'DROPBATCH_BUILD is "{target}"; it must be arm64, x86_64 or local')
    folder = Path(os.environ["ARTIFACTS_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    python = _with_pip()
    _install(python, target, folder)
    for source in ("functions", "shared", "dropbatch/core"):
        shutil.copytree(ROOT / source, folder / source, dirs_exist_ok=True)
    shutil.copy(ROOT / "dropbatch/__init__.py", folder / "dropbatch")
    shutil.rmtree(folder / "bin", ignore_errors=True)  # Scripts name this machine's Python.
    for pattern in LEFT_OUT:
        for path in list(folder.rglob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _compile(folder, _version_of(python) if target == "local" else LAMBDA_PYTHON, python)


def _with_pip() -> str:
    """A Python that has pip: that of the project's environment, or of the SAM CLI's."""
    environments = (ROOT / ".venv/bin", ROOT / ".local/sam/bin")
    found = (str(one / "python") for one in environments if (one / "pip").exists())
    return next(found, sys.executable)


def _install(python: str, target: str, folder: Path) -> None:
    lock = (ROOT / "requirements/functions.txt").read_text("utf-8")
    options: list[str] = []
    if target in PROCESSORS:
        # pip evaluates markers for this machine; for Lambda all lines apply (a test checks that).
        lock = re.sub(r" ; .* \\$", r" \\", lock, flags=re.MULTILINE)
        options = ["--implementation", "cp", "--python-version", LAMBDA_PYTHON]
        for glibc in GLIBC:
            options += ["--platform", f"{glibc}_{PROCESSORS[target]}"]
    locked = folder / "locked.txt"
    locked.write_text(lock, "utf-8")
    subprocess.run([python, *PIP, *options, "--target", folder, "-r", locked], check=True)
    locked.unlink()


def _compile(folder: Path, wanted: str, python: str) -> None:
    """Write byte code: /var/task is read-only, and each cold start would compile everything."""
    for one in (python, sys.executable, f"python{wanted}"):
        if _version_of(one) == wanted:
            how = ("-q", "--invalidation-mode", "unchecked-hash", "-s", folder, "-p", "/var/task")
            subprocess.run([one, "-m", "compileall", *how, folder], check=True)
            return
    print(f"Python {wanted} was not found: without byte code cold starts are slower.")


def _version_of(python: str) -> str:
    """Such as 3.13; empty if there is no such Python."""
    program = 'import sys; print("%d.%d" % sys.version_info[:2])'
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    main()
