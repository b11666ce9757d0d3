"""`make release`: write to dist/, for each processor, a folder to deploy without building.

Two builds from the same sources, lock files and Python give the same bytes: files are sorted, their
times and modes are fixed, and byte code does not depend on a random hash seed.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import yaml

from dropbatch import __version__
from local.processes import ROOT
from local.template import parse

ARCHITECTURES = ("arm64", "x86_64")
TEMPLATE = ROOT / "template.yaml"
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

Only `CloudflareAccountId` must be answered; press Enter at every other question. To deploy with
CloudFormation's console instead:

    sam package --s3-bucket <a bucket of yours> --output-template-file packaged.yaml

and upload `packaged.yaml` there (*Create stack*). After either, put the Cloudflare API token in
the secret that the output `ApiTokenSecretArn` names, as its whole value.

`sbom.json` lists every package inside (CycloneDX).
"""


class ReleaseError(Exception):
    """Why the release failed; the message is for the user."""


class _Dumper(yaml.SafeDumper):  # type: ignore[misc] # PyYAML has no types.
    """YAML without anchors, which CloudFormation's console may reject."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def release_template(template: str, archive: str, architecture: str) -> str:
    """The template for one processor, expanded; its code is a zip of this name beside it."""
    made = parse(template)
    functions = [
        one for one in made["Resources"].values() if one["Type"] == "AWS::Serverless::Function"
    ]
    shared, processor = made["Globals"]["Function"], made["Parameters"]["Architecture"]
    for what, expected in (
        (shared.get("CodeUri"), "."),
        (processor.get("AllowedValues"), list(ARCHITECTURES)),
        ([one.get("Metadata", {}).pop("BuildMethod", None) for one in functions], ["makefile"] * 2),
    ):
        if what != expected:
            raise ReleaseError(f"template.yaml holds {what!r} where {expected!r} is expected.")
    shared["CodeUri"] = archive
    processor |= {"Default": architecture, "AllowedValues": [architecture]}
    how = {"sort_keys": False, "width": 120, "allow_unicode": True, "default_flow_style": False}
    return str(yaml.dump(_long_forms(made), Dumper=_Dumper, **how))


def _long_forms(value: Any) -> Any:
    """Write each `Fn::GetAtt` as the list that its long form takes."""
    if isinstance(value, list):
        return [_long_forms(one) for one in value]
    if not isinstance(value, dict):
        return value
    if isinstance(one := value.get("Fn::GetAtt"), str):
        return {"Fn::GetAtt": one.split(".", 1)}
    return {name: _long_forms(one) for name, one in value.items()}


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


def write_sbom(file: Path) -> None:
    lock = ("--pyproject", "pyproject.toml", "requirements/functions.txt")
    options = ("requirements", "--output-reproducible", "--output-file", str(file))
    _run(sys.executable, "-W", "ignore", "-m", "cyclonedx_py", *options, *lock)


def _run(*command: str, **more: str) -> None:
    always = {"PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "315532800"}
    environment = {**os.environ, **always, **more}
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        raise ReleaseError(f"`{' '.join(command)}` failed.")


def build_release(build: str, architecture: str, folder: Path) -> None:
    """Write one folder, which must be empty if it exists; `build` is that of `tools/pack.py`."""
    archive = f"dropbatch-{__version__}-{architecture}.zip"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ReleaseError(f"{folder} is not empty.")
    with tempfile.TemporaryDirectory() as packed:
        # One rule builds both functions, so one zip is enough for both.
        _run(sys.executable, "tools/pack.py", ARTIFACTS_DIR=packed, DROPBATCH_BUILD=build)
        write_zip(Path(packed), folder / archive)
    write_sbom(folder / "sbom.json")
    texts = {
        "template.yaml": release_template(TEMPLATE.read_text("utf-8"), archive, architecture),
        "samconfig.toml": SAMCONFIG,
        "README.md": README.format(
            version=__version__, architecture=architecture, description=project["description"]
        ),
        "LICENSE": (ROOT / "LICENSE").read_text("utf-8"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums), "utf-8")


def main() -> int:
    try:
        for architecture in ARCHITECTURES:
            made = DIST / f"dropbatch-{__version__}-{architecture}"
            build_release(architecture, architecture, made)
            print(f"{made}: deploy it with `sam deploy --guided` there; its README.md has more.")
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
