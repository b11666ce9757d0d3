"""The command line as a package."""

import ast
import re
import resource
import sys
import tomllib

from tests.support.shipped import ROOT
from tests.support.terminal import run_alone

MODULES = sorted((ROOT / "dropbatch").rglob("*.py"))
MAX_HELP_SECONDS = 0.3


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_it_needs_three_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[\[>]", line)[0] for line in project["dependencies"]}

    found = [path for path in MODULES if path.parent.name != "serve"]
    needed = (
        {name for path in found for name in imports(path)} - sys.stdlib_module_names - {"dropbatch"}
    )

    assert declared == {"boto3", "click", "msgspec"}
    extras = {
        line.partition(">")[0]
        for lines in project["optional-dependencies"].values()
        for line in lines
    }
    # What the user has, and what unpacks zstd.
    optional = extras | {"polars", "backports", "compression"}
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
    assert all(
        f"\n  {verb} " in done.stdout
        for verb in ("put", "ls", "status", "wait", "get", "cancel", "retry")
    )
    assert min(seconds) < MAX_HELP_SECONDS
