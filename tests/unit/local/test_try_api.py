"""`make try`: what it starts and which command it runs.

That it works at all is seen by running it.
"""

import subprocess
from types import SimpleNamespace

import pytest

from local import aws, try_api

ENVIRONMENT = {"CLOUDFLARE_ACCOUNT_ID": "account", "CLOUDFLARE_API_TOKEN": "token"}


@pytest.fixture
def commands(monkeypatch):
    """The commands that were run, without a stack."""
    run = []
    monkeypatch.setattr(try_api, "check_token", lambda _: "")
    monkeypatch.setattr(aws, "up", lambda *_: {})
    monkeypatch.setattr(aws, "put_secret", lambda *_: None)
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **_: run.append(command) or SimpleNamespace(returncode=len(run)),
    )
    return run


def test_each_run_has_its_own_folder(commands, tmp_path):
    """A folder of results takes one job, and each run's stack makes a new one.

    Also of the same file.
    """
    for _ in range(2):
        try_api.run(tmp_path / "a.jsonl", "", ENVIRONMENT)

    first, second = (command[command.index("--get") + 1] for command in commands)
    assert first != second
    assert all(folder.startswith(f"{try_api.RESULTS}/") for folder in (first, second))
