"""The locks, for every machine that the project names.

Linux and macOS, x86_64 and arm64, Python 3.11 to 3.14.

What a lock says about a machine is read offline, from its markers.
"""

import itertools
import json
import re

import pytest
from packaging.markers import Marker
from packaging.version import Version

from tests.support.shipped import ROOT

LOCKS = ("functions", "dev", "local", "sam", "vendors")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = list(itertools.product(("linux", "darwin"), ("x86_64", "arm64"), PYTHONS))
NAMES = [f"{system}-{processor}-{python}" for system, processor, python in MACHINES]


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


def installed(lock, machine):
    """Versions by name, of what a lock installs on a machine."""
    lines = re.findall(
        r"^([a-z0-9-]+)==([^ ]+)(?: ; (.+))? \\$",
        (ROOT / f"requirements/{lock}.txt").read_text(),
        re.MULTILINE,
    )
    assert lines
    there = [
        (name, Version(version))
        for name, version, marker in lines
        if not marker or Marker(marker).evaluate(environment(*machine))
    ]
    assert len({name for name, _ in there}) == len(there), "one version of each"
    return dict(there)


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
@pytest.mark.parametrize("lock", LOCKS)
def test_intel_macs_get_last_wheels(lock, machine):
    there = installed(lock, machine)
    first_without = {"cryptography": Version("49"), "lazy-object-proxy": Version("1.12")}

    for name in first_without.keys() & there.keys():
        assert (there[name] < first_without[name]) == (machine[:2] == ("darwin", "x86_64"))


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
def test_wordllama_needs_wheels(machine):
    system, processor, python = machine
    has_wheels = python != "3.14" and (system, processor) != ("linux", "arm64")

    assert ("wordllama" in installed("dev", machine)) == has_wheels


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
def test_zstd_backport_is_only_before_3_14(machine):
    for lock in ("functions", "dev"):
        assert ("backports-zstd" in installed(lock, machine)) == (machine[2] != "3.14")


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
@pytest.mark.parametrize("lock", ["dev", "sam"])
def test_what_aws_login_needs_is_everywhere(lock, machine):
    """Without it boto3 cannot use the credentials that `aws login` leaves."""
    assert "awscrt" in installed(lock, machine)


def test_deploy_environment_is_small():
    there = installed("sam", ("linux", "x86_64", "3.13"))

    assert {"aws-sam-cli", "boto3", "httpx", "cyclonedx-bom"} <= there.keys()
    assert not {"pytest", "moto", "mypy", "ruff", "numpy", "wordllama"} & there.keys()


def test_deploy_needs_no_other_environment():
    makefile = (ROOT / "Makefile").read_text()

    for verb in ("deploy", "destroy"):
        assert re.search(rf"^{verb}: \.local/sam/\.stamp ##", makefile, re.MULTILINE)
    assert re.search(r"^\.local/sam/\.stamp: requirements/sam\.txt$", makefile, re.MULTILINE)


def test_worker_lock_pins_hashes_without_addresses():
    text = (ROOT / "worker/package-lock.json").read_text("utf-8")
    packages = {name: one for name, one in json.loads(text)["packages"].items() if name}

    assert "://" not in text
    assert {"node_modules/wrangler", "node_modules/workerd", "node_modules/typescript"} <= set(
        packages
    )
    assert [
        name for name, one in packages.items() if not one["integrity"].startswith("sha512-")
    ] == []
