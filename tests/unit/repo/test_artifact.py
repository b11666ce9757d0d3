"""What `sam build` ships."""

import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker

from local import aws
from tests.support.shipped import ROOT
from tools.release import write_sbom

AARCH64 = 183
RUNTIME_BRINGS = ("boto3", "botocore", "s3transfer", "urllib3", "dateutil", "six")


@pytest.fixture(scope="module")
def here():
    """The artifact for this machine."""
    return aws.build()


@pytest.fixture(scope="module")
def arm64(release_folder, tmp_path_factory):
    """The artifact for Lambda, as a release holds it."""
    folder = tmp_path_factory.mktemp("arm64")
    (archive,) = release_folder.glob("*.zip")
    shutil.unpack_archive(archive, folder)
    return folder


@pytest.fixture(scope="module")
def lambda_runtime(tmp_path_factory):
    """A folder with what the Lambda runtime itself brings."""
    folder = tmp_path_factory.mktemp("runtime")
    for name in RUNTIME_BRINGS:
        origin = Path(importlib.util.find_spec(name).origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        (folder / found.name).symlink_to(found)
    return folder


@pytest.mark.parametrize("room", ["submit", "poll"])
@pytest.mark.build
def test_handler_imports_from_artifact_alone(here, lambda_runtime, room):
    program = (
        f"import sys; sys.path[:0] = [{str(here)!r}]; sys.path.append({str(lambda_runtime)!r});"
        f"from functions.{room}.handler import lambda_handler; assert callable(lambda_handler);"
        "import shared; print(shared.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        cwd=here,
        env={"AWS_DEFAULT_REGION": "us-east-1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(here))


@pytest.mark.build
def test_artifact_holds_code_and_locked_packages(here):
    lines = re.findall(
        r"^([a-z0-9-]+)==([^ ]+)(?: ; (.+))? ",
        (ROOT / "requirements/functions.txt").read_text(),
        re.MULTILINE,
    )
    locked = [
        (name, version)
        for name, version, marker in lines
        if not marker or Marker(marker).evaluate()
    ]
    metadata = {
        tuple(path.name.removesuffix(".dist-info").rsplit("-", 1))
        for path in here.glob("*.dist-info")
    }

    assert {(name.replace("-", "_"), version) for name, version in locked} == {
        (re.sub(r"[-.]", "_", name).lower(), version) for name, version in metadata
    }
    for name in ("tests", "local", "bench", "bin", "template.yaml", "boto3", "botocore"):
        assert not (here / name).exists()


@pytest.mark.build
def test_artifact_has_byte_code_and_no_machine_name(here):
    assert not list(here.rglob("RECORD"))
    compiled = list(here.rglob("*.pyc"))
    assert compiled
    for file in compiled:
        # Flags 1: checked by hash, and never against a source whose date differs in /var/task.
        assert struct.unpack("<4xI", file.read_bytes()[:8]) == (1,), file


@pytest.mark.build
def test_artifact_is_for_arm64_and_its_python(arm64):
    libraries = list(arm64.rglob("*.so*"))

    assert {path.parent.name for path in libraries} >= {"msgspec", "zstd"}
    for path in libraries:
        assert struct.unpack("<18xH", path.read_bytes()[:20]) == (AARCH64,), path
        assert "cpython-313-aarch64" in path.name
    for file in arm64.rglob("*.pyc"):
        assert "cpython-313" in file.name
    for wheel in arm64.glob("*.dist-info/WHEEL"):
        tags = re.findall(r"^Tag: (.+)$", wheel.read_text(), re.MULTILINE)
        assert all(tag.endswith("-any") or "aarch64" in tag for tag in tags), wheel


def test_every_line_of_runtime_lock_is_for_lambda():
    """Packing drops the markers. `pip install --platform` would ask this machine what they mean."""
    lock = (ROOT / "requirements/functions.txt").read_text()
    there = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    there |= {
        "python_version": "3.13",
        "python_full_version": "3.13.0",
        "platform_machine": "aarch64",
    }
    there |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}

    for line, marker in re.findall(r"^([a-z0-9-]+==[^ ]+) ; (.+) \\$", lock, re.MULTILINE):
        assert Marker(marker).evaluate(there), line


def test_locks_hold_hashes_and_no_address():
    locks = list(ROOT.glob("requirements/*.txt"))

    assert len(locks) == 5
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text
        assert text.count("--hash=sha256:") >= len(re.findall("^[a-z]", text, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.build
def test_sbom_names_each_packed_package(arm64, tmp_path):
    write_sbom(tmp_path / "sbom.json")
    told = json.loads((tmp_path / "sbom.json").read_text())

    def plain(name):
        return re.sub("[-_.]+", "-", name).lower()

    folders = [
        folder.name.removesuffix(".dist-info").rpartition("-")
        for folder in arm64.glob("*.dist-info")
    ]
    packed = {plain(name): version for name, _, version in folders}
    assert told["bomFormat"] == "CycloneDX"
    assert {plain(one["name"]): one["version"] for one in told["components"]} == packed
    assert all(one["purl"].startswith("pkg:pypi/") for one in told["components"])
    assert all(one["externalReferences"][0]["hashes"] for one in told["components"])
    assert told["metadata"]["component"]["name"] == "dropbatch"
