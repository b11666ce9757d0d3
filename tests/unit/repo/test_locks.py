"""The locks, for every machine that the project names.

Linux and macOS, x86_64 and arm64, Python 3.11 to 3.14.

What a lock says about a machine is read offline, from its markers.
"""

import itertools
import json
import re
from functools import cache

from packaging.markers import Marker
from packaging.version import Version

from tests.support.shipped import ROOT

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
    lines = re.findall(
        r"^([a-z0-9-]+)==([^ ]+)(?: ; (.+))? \\$",
        (ROOT / f"requirements/{lock}.txt").read_text(),
        re.MULTILINE,
    )
    assert lines
    return [(name, Version(version), marker and Marker(marker)) for name, version, marker in lines]


@cache
def installed(lock, machine):
    """Versions by name, of what a lock installs on a machine."""
    known = environment(*machine)
    there = [
        (name, version)
        for name, version, marker in lines_of(lock)
        if not marker or marker.evaluate(known)
    ]
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
