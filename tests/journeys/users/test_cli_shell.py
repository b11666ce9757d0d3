"""`put` in a real shell: pipes, process substitutions, a connection that stalls, Ctrl-C."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.support.aws.s3_server import S3Server
from tests.support.shipped import ROOT

GOOD = '{"text":"x","target_lang":"es"}\n'
DROPBATCH = f"{shlex.quote(sys.executable)} -m dropbatch --local"
M2M = "--model @cf/meta/m2m100-1.2b"
MAX_INTERRUPT_SECONDS = MAX_ID_SECONDS = 2.0


@pytest.fixture
def server(tmp_path):
    served = S3Server()
    listening = served.start(tmp_path)
    yield served
    served.over.set()
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def shell(server, tmp_path):
    def start(command):
        return subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "DROPBATCH_LOCAL": "stack.json", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return start


@pytest.mark.parametrize(
    "command",
    [
        f"printf '%s' '{GOOD * 3}' | {DROPBATCH} put - {M2M}",
        f"{DROPBATCH} put <(printf '%s' '{GOOD * 3}') {M2M}",
        f"mkfifo pipe; printf '%s' '{GOOD * 3}' > pipe & {DROPBATCH} put pipe {M2M}",
    ],
    ids=["stdin", "substitution", "fifo"],
)
def test_put_of_pipe_uploads_what_it_gives(server, shell, command):
    ended = shell(command)
    out, err = ended.communicate(timeout=180)

    assert (ended.returncode, err) == (0, b"")
    ((key, body),) = server.objects.items()
    assert key.startswith("inbox/stdin-20")
    assert body.decode() == GOOD * 3
    assert key in out.decode()


def seconds_to_id(shell):
    began = time.perf_counter()
    running = shell(f"{DROPBATCH} put a.jsonl {M2M} --wait")
    line = running.stdout.readline().decode()
    seconds = time.perf_counter() - began
    running.kill()
    running.communicate()
    assert "inbox/a.jsonl  job 20261121T093000Z-" in line
    return seconds


def test_job_id_is_printed_within_2_seconds(server, shell, tmp_path):
    """Before the job exists: the server makes none."""
    (tmp_path / "a.jsonl").write_text(GOOD)

    # On a machine that does other work too, one of three.
    assert any(seconds_to_id(shell) < MAX_ID_SECONDS for _ in range(3))


def interrupted(server, shell):
    """Press Ctrl-C while an upload is stalled; the seconds that the command took to end."""
    server.stalled.clear()
    running = shell(f"exec env --default-signal=INT {DROPBATCH} put a.jsonl b.jsonl {M2M}")
    assert server.stalled.wait(180)
    time.sleep(0.5)

    began = time.perf_counter()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=180)
    seconds = time.perf_counter() - began
    assert running.returncode == 130
    assert "Uploaded: a.jsonl. Not uploaded, or not confirmed: b.jsonl." in err.decode()
    assert "inbox/a.jsonl  job 20261121T093000Z-" in out.decode()
    assert b"Traceback" not in err
    return seconds


@pytest.mark.parametrize("size", [1, 40 << 20], ids=["small", "parts"])
def test_ctrl_c_on_stalled_connection_ends_within_2_seconds(server, shell, tmp_path, size):
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / "b.jsonl").write_text(GOOD * (size // len(GOOD) + 1))
    server.stalls = {"inbox/b.jsonl"}

    # On a machine that does other work too, one of two.
    assert any(interrupted(server, shell) < MAX_INTERRUPT_SECONDS for _ in range(2))


def test_reader_that_closes_pipe_is_no_error(server, shell, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(GOOD)

    ended = shell(f"{DROPBATCH} put *.jsonl {M2M} | head -1")
    out, err = ended.communicate(timeout=180)

    assert out.decode().count("\n") == 1
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
