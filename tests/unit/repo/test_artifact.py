"""What `sam build` ships."""

import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.version import Version

from dropbatch import __version__
from local import aws
from local.template import parse
from tests.support.shipped import ROOT
from tools import release
from tools.release import ReleaseError, build_release, release_template, write_sbom, write_zip

AARCH64 = 183
RUNTIME_BRINGS = ("boto3", "botocore", "s3transfer", "urllib3", "dateutil", "six")


@pytest.fixture(scope="module")
def here():
    """The artifact for this machine."""
    return aws.build()


@pytest.fixture(scope="module")
def release_folder(tmp_path_factory):
    """The folder of a release for arm64."""
    made = tmp_path_factory.mktemp("release") / "arm64"
    build_release("arm64", "arm64", made)
    return made


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
    locked = {
        (name.replace("-", "_"), version)
        for name, version, marker in lines_of("functions")
        if not marker or marker.evaluate()
    }
    folders = [path.stem.rsplit("-", 1) for path in here.glob("*.dist-info")]
    shipped = {(re.sub(r"[-.]", "_", name).lower(), Version(one)) for name, one in folders}

    assert shipped == locked
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
    there = environment("linux", "arm64", "3.13")

    for name, _, marker in lines_of("functions"):
        assert not marker or marker.evaluate(there), name


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

    folders = [folder.stem.rpartition("-") for folder in arm64.glob("*.dist-info")]
    packed = {plain(name): version for name, _, version in folders}
    assert told["bomFormat"] == "CycloneDX"
    assert {plain(one["name"]): one["version"] for one in told["components"]} == packed
    assert all(one["purl"].startswith("pkg:pypi/") for one in told["components"])
    assert all(one["externalReferences"][0]["hashes"] for one in told["components"])
    assert told["metadata"]["component"]["name"] == "dropbatch"


# ── the locks, for every machine that the project names ───────────────────────────────────────────
LOCKS = ("functions", "dev", "local", "sam", "vendors")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = list(itertools.product(("linux", "darwin"), ("x86_64", "arm64"), PYTHONS))


def environment(system, processor, python):
    return {
        "sys_platform": system,
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[system],
        "os_name": "posix",
        "platform_machine": "aarch64" if (system, processor) == ("linux", "arm64") else processor,
        "python_version": python,
        "python_full_version": f"{python}.6",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


@cache
def lines_of(lock):
    """Names, versions and markers of a lock."""
    text = (ROOT / f"requirements/{lock}.txt").read_text()
    lines = re.findall(r"^([a-z0-9-]+)==([^ ]+)(?: ; (.+))? \\$", text, re.MULTILINE)
    assert lines
    return [(name, Version(version), marker and Marker(marker)) for name, version, marker in lines]


@cache
def installed(lock, machine):
    """Versions by name, of what a lock installs on a machine."""
    known = environment(*machine)
    there = [one[:2] for one in lines_of(lock) if not one[2] or one[2].evaluate(known)]
    assert len({name for name, _ in there}) == len(there), "one version of each"
    return dict(there)


def test_intel_macs_get_last_wheels(subtests):
    first_without = {"cryptography": Version("49"), "lazy-object-proxy": Version("1.12")}
    for lock, machine in itertools.product(LOCKS, MACHINES):
        with subtests.test(lock=lock, machine=machine):
            there = installed(lock, machine)
            is_intel_mac = machine[:2] == ("darwin", "x86_64")
            for name in first_without.keys() & there.keys():
                assert (there[name] < first_without[name]) == is_intel_mac


def test_packages_are_where_they_have_wheels_and_are_needed(subtests):
    """Without awscrt, boto3 cannot use the credentials that `aws login` leaves."""
    for machine in MACHINES:
        *_, python = machine
        with subtests.test(machine=machine):
            for lock in ("functions", "dev"):
                assert ("backports-zstd" in installed(lock, machine)) == (python != "3.14")
            for lock in ("dev", "sam"):
                assert "awscrt" in installed(lock, machine)


def test_deploy_environment_is_small():
    there = installed("sam", ("linux", "x86_64", "3.13"))

    assert {"aws-sam-cli", "boto3", "httpx", "cyclonedx-bom"} <= there.keys()
    assert not {"pytest", "moto", "mypy", "ruff", "numpy"} & there.keys()


@pytest.mark.parametrize(
    ("folder", "wanted"),
    [
        ("worker", ("wrangler", "workerd", "typescript")),
        ("tests/vendors/javascript", ("ai", "openai")),
    ],
)
def test_lock_of_npm_pins_hashes_without_addresses(folder, wanted):
    text = (ROOT / folder / "package-lock.json").read_text("utf-8")
    packages = {name: one for name, one in json.loads(text)["packages"].items() if name}

    assert "://" not in text
    assert {f"node_modules/{name}" for name in wanted} <= {*packages}
    assert all(one["integrity"].startswith("sha512-") for one in packages.values())


# ── `make release`: folders that deploy without building, and whose bytes two builds agree on ─────
TEMPLATE = release.TEMPLATE.read_text("utf-8")


def test_release_template_needs_no_build():
    made, source = parse(release_template(TEMPLATE, "code.zip", "x86_64")), parse(TEMPLATE)
    assert made["Globals"]["Function"].pop("CodeUri") == "code.zip"
    assert made["Parameters"]["Architecture"]["Default"] == "x86_64"
    assert made["Parameters"].pop("Architecture")["AllowedValues"] == ["x86_64"]
    del source["Globals"]["Function"]["CodeUri"], source["Parameters"]["Architecture"]
    for function in ("SubmitFunction", "PollFunction"):
        assert source["Resources"][function]["Metadata"].pop("BuildMethod") == "makefile"
    assert made == release._long_forms(source), "nothing else differs"


def test_template_of_release_is_expanded():
    """CloudFormation's console does not go through SAM, which would expand anchors."""
    text = release_template(TEMPLATE, "code.zip", "arm64")
    assert any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(TEMPLATE))
    for event in yaml.parse(text):
        assert not getattr(event, "anchor", None)
        assert not str(getattr(event, "tag", "")).startswith("!")
    assert len(text.encode()) < 1_000_000, "CloudFormation's limit"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CodeUri: .", "CodeUri: src"),
        ("[arm64, x86_64]", "[arm64]"),
        ("BuildMethod: makefile", "BuildMethod: python3.13"),
    ],
)
def test_changed_template_form_is_noticed(old, new):
    with pytest.raises(ReleaseError, match="is expected"):
        release_template(TEMPLATE.replace(old, new), "code.zip", "arm64")


def test_zip_depends_on_names_and_content_alone(tmp_path):
    for name, order in (("one", ["a", "b/c"]), ("two", ["b/c", "a"])):
        for number, path in enumerate(order):
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(path)
            file.chmod(0o600 if number else 0o755)
            os.utime(file, (10**9 + number, 10**9))
        write_zip(tmp_path / name, tmp_path / f"{name}.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as made:
        assert made.namelist() == ["a", "b/c"]
        assert {entry.external_attr >> 16 & 0o777 for entry in made.infolist()} == {0o644}


@pytest.mark.slow
@pytest.mark.build
def test_two_builds_give_same_bytes(release_folder, tmp_path):
    build_release("arm64", "arm64", tmp_path / "again")
    assert {path.name: path.read_bytes() for path in release_folder.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()
    }


@pytest.mark.build
def test_sums_are_those_of_every_other_file(release_folder):
    text = (release_folder / "SHA256SUMS").read_text()
    sums = dict(re.findall(r"^([0-9a-f]{64})  (.+)$", text, re.MULTILINE))
    contents = {path.name: path.read_bytes() for path in release_folder.iterdir()}
    files = contents.keys() - {"SHA256SUMS"}
    assert {hashlib.sha256(contents[name]).hexdigest(): name for name in files} == sums
    zipped = f"dropbatch-{__version__}-arm64.zip"
    assert files == {zipped, "template.yaml", "samconfig.toml", "sbom.json", "README.md", "LICENSE"}
    with zipfile.ZipFile(release_folder / zipped) as made:
        assert {"functions/submit/handler.py", "shared/bootstrap.py"} <= {*made.namelist()}


@pytest.mark.build
def test_folder_in_use_is_left_alone(release_folder, tmp_path):
    kept = shutil.copytree(release_folder, tmp_path / "kept")
    with pytest.raises(ReleaseError, match="not empty"):
        build_release("arm64", "arm64", kept)
