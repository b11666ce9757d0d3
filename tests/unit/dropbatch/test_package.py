"""The command line as a package, and ids and results of its server."""

import itertools
import re
import resource
import sys
import tomllib
from functools import cache

import pytest

import dropbatch
from dropbatch.serve.objects import (
    batch_of_result,
    created_at,
    is_batch,
    is_file,
    new_id,
    result_file,
)
from dropbatch.serve.results import _lines_of
from tests.support.shipped import ROOT
from tests.support.terminal import run_alone

MODULES = sorted((ROOT / "dropbatch").rglob("*.py"))
MAX_HELP_SECONDS = 0.3


@cache
def imports(path):
    statement = r"^ *(?:from (\w+)[\w.]* import|import (\w+)[\w.]*(?: as \w+)?$)"
    return {one or other for one, other in re.findall(statement, path.read_text(), re.MULTILINE)}


def test_it_needs_three_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[\[>]", line)[0] for line in project["dependencies"]}

    found = [path for path in MODULES if path.parent.name != "serve"]
    named = {name for path in found for name in imports(path)}
    needed = named - sys.stdlib_module_names - {"dropbatch"}

    assert declared == {"boto3", "click", "msgspec"}
    extras = [*itertools.chain(*project["optional-dependencies"].values())]
    # What the user has, and what unpacks zstd.
    optional = {line.partition(">")[0] for line in extras} | {"polars", "backports", "compression"}
    assert needed <= declared | optional | {"botocore"}


def test_only_server_needs_its_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {
        re.split("[>=]", line)[0].replace("-", "_")
        for line in project["optional-dependencies"]["serve"]
    }

    needed = {name for path in MODULES for name in imports(path) if path.parent.name == "serve"}

    others = sys.stdlib_module_names | {"dropbatch", "msgspec", "botocore", "anyio"}
    assert needed - others | {"python_multipart"} == extra  # Starlette's forms need it.


def test_a_clone_tells_its_version():
    assert run_alone("--version").stdout == f"dropbatch, version {dropbatch.__version__}\n"


def test_help_lists_verbs_quickly():
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run_alone("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time, which other work on the machine does not add to.
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if seconds[-1] < MAX_HELP_SECONDS:
            break

    assert done.returncode == 0
    verbs = ("put", "ls", "status", "wait", "get", "cancel", "retry")
    assert all(f"\n  {verb} " in done.stdout for verb in verbs)
    assert min(seconds) < MAX_HELP_SECONDS


ANSWERS = [
    b'{"custom_id":"%d","response":{"status_code":200,"body":{"a":"\\n"}},"error":null}\n' % n
    for n in range(5)
]
REFUSED = b'{"custom_id":"x","response":{"status_code":400,"body":{}},"error":null}\n'
LATE = b'{"custom_id":"y","response":null,"error":{"code":"batch_expired"}}\n'


@pytest.mark.parametrize("size", [1, 7, 60, 10_000])
def test_lines_are_separated_wherever_blocks_end(size):
    whole = b"".join([REFUSED, *ANSWERS[:2], LATE, *ANSWERS[2:], REFUSED])

    def blocks():
        return (whole[at : at + size] for at in range(0, len(whole), size))

    assert b"".join(_lines_of(blocks(), answered=True)) == b"".join(ANSWERS)
    assert b"".join(_lines_of(blocks(), answered=False)) == REFUSED + LATE + REFUSED


def test_later_ids_sort_first_and_hold_their_time():
    ids = [new_id(now) for now in (1_795_000_000.5, 1_795_000_000.502, 1_900_000_000)]

    assert sorted(ids) == ids[::-1]
    times = [created_at(f"file-{one}") for one in ids]
    assert times == [1_795_000_000, 1_795_000_000, 1_900_000_000]
    batch = f"batch_{ids[0]}"
    assert is_file(f"file-{ids[0]}")
    assert is_batch(batch)
    assert created_at(batch) == 1_795_000_000
    assert batch_of_result(result_file(batch, "error")) == (batch, "error")
    assert created_at(result_file(batch, "error")) == 1_795_000_000


@pytest.mark.parametrize(
    "text",
    ["", "file-", "file-../x", f"file-{'0' * 28}", f"batch_{'0' * 27}\n", f"file-{'G' * 27}"],
)
def test_what_has_not_the_form_is_no_id(text):
    assert (is_file(text), is_batch(text), batch_of_result(text)) == (False, False, None)
