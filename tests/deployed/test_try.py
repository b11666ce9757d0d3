"""`make try`: a job against another API than the local one.

And a token that is on no disk while it runs.
"""

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from local import aws, try_api
from local.workers_ai import Behaviour, WorkersAI
from local.workers_ai.server import Server
from tests.support.shipped import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.slow]

MODEL = "@cf/baai/bge-small-en-v1.5"


@pytest.fixture
def elsewhere():
    """A Workers AI that stands for the real one, with a token of its own."""
    token = f"planted-{secrets.token_hex(16)}"
    serving = Server(WorkersAI(Behaviour(embedder="hash", latency=1.0, tokens=(token,))))
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_address[1]}/client/v4", token
    serving.shutdown()
    serving.server_close()
    thread.join()


CODE = {".py", ".pyc", ".so"}
"""Suffixes of the functions' code, which is packed before the token is known."""


def files_with(token):
    """Files of the stack that hold the token; those that go away meanwhile hold nothing."""
    found = []
    for folder, _, names in os.walk(try_api.HOME.state):
        for path in (Path(folder, name) for name in names if Path(name).suffix not in CODE):
            with suppress(OSError):
                if path.is_file() and token.encode() in path.read_bytes():
                    found.append(path)
    return found


def test_token_of_try_is_on_no_disk(elsewhere, tmp_path):
    base_url, token = elsewhere
    upload = tmp_path / "july.jsonl"
    upload.write_text('{"text":"one"}\n{"text":"two"}\n{"text":"three"}\n')
    environment = os.environ | {
        "CLOUDFLARE_ACCOUNT_ID": aws.LOCAL_ACCOUNT,
        "CLOUDFLARE_API_TOKEN": token,
        "WORKERS_AI_BASE_URL": base_url,
    }
    command = [sys.executable, "-m", "local.try_api", str(upload), MODEL]
    seen, commands = [], b""

    with subprocess.Popen(command, cwd=ROOT, env=environment) as running:
        while running.poll() is None:
            seen += files_with(token)
            for line in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    commands += line.read_bytes()
            time.sleep(0.5)

    assert running.returncode == 0
    assert seen == files_with(token) == []
    assert token.encode() not in commands
    lines = [
        json.loads(line)
        for line in (max(try_api.RESULTS.glob("20*")) / "output.jsonl").read_text().splitlines()
    ]
    assert [line["success"] for line in lines] == [True] * 3
