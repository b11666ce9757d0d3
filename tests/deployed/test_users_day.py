"""A user on the deployed stack.

README's lines in a shell, a table that is embedded and searched, a notebook.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

import dropbatch
from local import aws
from local.demo import records
from local.workers_ai.models.embed import embedder
from tests.support import vendors
from tests.support.aws.stack import running_stack
from tests.support.shipped import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

MAX_DAY_SECONDS = 120
WORDS = embedder("words")
"""Makes embeddings of texts with like words that are near each other."""


@pytest.fixture(scope="module")
def running():
    with running_stack("test-users-day") as made:
        made.local("behaviour", "PUT", {"embedder": "words"})
        yield made


@pytest.fixture
def stack(running, tmp_path, monkeypatch):
    """A stack that the library, in an empty folder, finds as it finds AWS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.s3.meta.endpoint_url)
    for name, value in aws.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture(scope="module")
def frame():
    """1,200 rows: three batches, of which the cost limit allows one."""
    return pd.DataFrame(records()).rename(columns={"external_reference": "id"})[-1_200:]


def block(page, language, having=""):
    """The one code block of a page in a language that has some words."""
    found = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    (one,) = [code for code in found if having in code]
    return one


def embeddings(frame):
    return np.array([json.loads(one) for one in WORDS(list(frame["text"]), 384)], np.float32)


def assert_files_have_every_answer(folder, frame):
    """And that the cost limit stopped some, which have their answers from the retry."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    errors = [
        json.loads(line)["error"]["code"]
        for line in (folder / "errors.jsonl").read_text("utf-8").splitlines()
    ]
    assert 0 < manifest["counts"]["failed"] == errors.count("cost_limit") < len(frame)
    table = parquet.read_table(folder / "output.parquet")
    assert table.column("id").to_pylist() == list(frame["id"])
    assert np.array_equal(np.stack(table.column("embedding").to_numpy()), embeddings(frame))
    lines = [
        json.loads(line)
        for line in (folder / "output.vectorize.ndjson").read_text("utf-8").splitlines()
    ]
    assert [line["id"] for line in lines] == list(frame["id"])
    assert np.array_equal(
        np.array([line["values"] for line in lines], np.float32), embeddings(frame)
    )


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs the lines of a block, each in a shell of its own that finds the command line."""
    (tmp_path / "dropbatch").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dropbatch "$@"\n')
    (tmp_path / "dropbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(code):
        began = time.monotonic()
        commands = code.replace("\\\n", " ").splitlines()
        ended = [
            subprocess.run(["/bin/bash", "-c", one], capture_output=True, text=True, check=False)
            for one in commands
        ]
        assert time.monotonic() - began < MAX_DAY_SECONDS
        assert [one.returncode for one in ended] == [0] * len(commands), [
            one.stderr for one in ended
        ]
        return ended[-1].stdout

    return run


def test_readme_in_shell(stack, shell):
    rows = list(csv.reader(shell(block("README.md", "sh")).splitlines()))

    assert [row[:2] for row in rows] == [
        ["id", "text"],
        ["17", "The room was clean."],
        ["18", "We heard the lift all night."],
    ]
    assert all(answer for _, _, answer, *_ in rows)


def test_table_is_searched_in_python(stack, frame, tmp_path, capsys):
    code = block("docs/python.md", "python", "argmax()")
    names = {"client": dropbatch.Client(), "frame": frame.copy()}
    began = time.monotonic()
    exec(compile(code, "docs/python.md", "exec"), names)
    seconds = time.monotonic() - began

    assert seconds < MAX_DAY_SECONDS
    assert capsys.readouterr().out == "iam.UpdateLoginProfile\n"
    assert np.array_equal(np.stack(names["frame"]["embedding"]), embeddings(frame))
    assert_files_have_every_answer(tmp_path / "out", frame)


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
def test_table_is_searched_in_shell(stack, frame, tmp_path, shell):
    frame.to_parquet("operations.parquet")

    assert shell(block("docs/cli.md", "sh", "--slurpfile")) == "iam.UpdateLoginProfile\n"
    assert_files_have_every_answer(tmp_path / "out", frame)


def test_notebook_shows_one_line_that_changes(running, monkeypatch):
    """Each cell's outputs as it is saved."""
    monkeypatch.setenv("DROPBATCH_LOCAL", str(running.home.stack_file))
    cells = vendors.run("notebook_runs.py", python=vendors.VENDORS)

    waited, frame, interrupted, again = (
        cells[name] for name in ("wait", "frame", "interrupt", "again")
    )
    for over in (waited, again):
        line, returned = over
        assert line.endswith(" s")
        assert "  completed    [################] 100%  5 of 5 records  " in line
        assert "\n" not in line
        assert returned == "'completed'"
    (table,) = frame
    assert "success" in table
    assert table.count("True") == 5
    shown, error = interrupted
    assert "of 5 records" in shown
    assert error.startswith("Interrupted: \nInterrupted. Job 20")
    assert error.endswith(" continues. Wait for it, or cancel it.")
    assert not [
        text
        for name in cells
        if name != "frame"
        for text in cells[name]
        if "\r" in text or "\x1b" in text
    ]
