"""`make release`: write to dist/, for each processor, a folder from which `sam deploy` deploys without building.

Two builds from the same sources, lock files and Python give the same bytes: files are sorted, their times and modes
are fixed, and byte code does not depend on a random hash seed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from local.processes import ROOT

ARCHITECTURES = ("arm64", "x86_64")
DIST = ROOT / "dist"
ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold."""

SAMCONFIG = """# Defaults of `sam deploy` in this folder.
version = 0.1

[default.deploy.parameters]
stack_name = "dropbatch"
capabilities = "CAPABILITY_IAM"
resolve_s3 = true
"""

README = """# Dropbatch {version} for {architecture}

{description}

The functions are already built. With the AWS SAM CLI and AWS credentials, in this folder:

    sha256sum -c SHA256SUMS
    sam deploy --guided

`sbom.json` lists every package inside (CycloneDX).
"""

APPLICATION = """  AWS::ServerlessRepo::Application: # For `sam publish`.
    Name: dropbatch
    Description: {description}
    Author: Dropbatch contributors
    SpdxLicenseId: MIT
    LicenseUrl: LICENSE
    ReadmeUrl: README.md
    Labels: [cloudflare, workers-ai, batch, s3, lambda]
    SemanticVersion: {version}
"""


class ReleaseError(Exception):
    """Why the release failed; the message is for the user."""


def project() -> tuple[str, str]:
    """Version and description of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project["version"], project["description"]


def release_template(template: str, archive: str, architecture: str, version: str, description: str) -> str:
    """The template for one processor; its code is a zip beside it.

    Raises:
        ReleaseError: the template is not as expected.
    """
    changes = (
        ("    CodeUri: .\n", f"    CodeUri: {archive}\n", 1),
        ("      BuildMethod: makefile\n", "", 2),
        (
            "    Default: arm64\n    AllowedValues: [arm64, x86_64]\n",
            f"    Default: {architecture}\n    AllowedValues: [{architecture}]\n",
            1,
        ),
        ("Metadata:\n", f"Metadata:\n{APPLICATION.format(version=version, description=description)}", 1),
    )
    for old, new, times in changes:
        found = template.count(f"\n{old}")
        if found != times:
            raise ReleaseError(f"template.yaml holds {old!r} {found} times, not {times}.")
        template = template.replace(f"\n{old}", f"\n{new}")
    return template


def write_zip(folder: Path, archive: Path) -> None:
    """Pack a folder's files, sorted, with fixed times and modes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for path in sorted(folder.rglob("*"), key=lambda each: each.relative_to(folder).as_posix()):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3  # Unix: the mode below applies.
                entry.external_attr = 0o100644 << 16
                made.writestr(entry, path.read_bytes())


def _make(*arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "315532800"}
    command = ["make", "--no-print-directory", *arguments]
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        raise ReleaseError(f"`{' '.join(command)}` failed.")


def build_release(build: str, architecture: str, folder: Path) -> None:
    """Write one folder.

    Args:
        build: the value of `DROPBATCH_BUILD`: a processor of Lambda, or `local`, for tests on this machine.
        architecture: the processor.
        folder: it is created, and must be empty if it exists.

    Raises:
        ReleaseError: what failed.
    """
    version, description = project()
    archive = f"dropbatch-{version}-{architecture}.zip"
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ReleaseError(f"{folder} is not empty.")
    with tempfile.TemporaryDirectory() as packed:
        # One rule builds both functions, so one zip is enough for both.
        _make("build-SubmitFunction", f"ARTIFACTS_DIR={packed}", f"DROPBATCH_BUILD={build}")
        write_zip(Path(packed), folder / archive)
    _make("sbom", f"SBOM={folder / 'sbom.json'}")
    template = (ROOT / "template.yaml").read_text("utf-8")
    texts = {
        "template.yaml": release_template(template, archive, architecture, version, description),
        "samconfig.toml": SAMCONFIG,
        "README.md": README.format(version=version, architecture=architecture, description=description),
        "LICENSE": (ROOT / "LICENSE").read_text("utf-8"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums), "utf-8")


def main() -> int:
    """Write the folders; return the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description="Write a folder for each processor to dist/.")
    parser.add_argument("--folder", type=Path, default=DIST)
    folder = parser.parse_args().folder
    version, _ = project()
    try:
        for architecture in ARCHITECTURES:
            made = folder / f"dropbatch-{version}-{architecture}"
            build_release(architecture, architecture, made)
            print(f"{made}: deploy it with `sam deploy --guided` there, or publish it with `sam publish`.")
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
