"""`put` in a real shell: pipes, process substitutions, a connection that stalls, Ctrl-C."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.shipped import ROOT

# ── A small S3 and CloudFormation on a port, for commands in processes of their own ───────────────


STACK = (
    "<DescribeStacksResponse "
    'xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStacksResult><Stacks>'
    "<member><StackName>dropbatch</StackName><CreationTime>2026-01-01T00:00:00Z</CreationTime>"
    "<StackStatus>CREATE_COMPLETE</StackStatus><Outputs><member><OutputKey>BucketName</OutputKey>"
    "<OutputValue>bucket</OutputValue></member></Outputs></member></Stacks></DescribeStacksResult>"
    "</DescribeStacksResponse>"
)
BEGUN = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
MISSING = "<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"


@dataclass
class S3Server:
    """A server that is running.

    Attributes:
        url: of the endpoint.
        objects: their bytes by key.
        stalls: keys of which a write is never answered.
        stalled: set when such a write has begun.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    stalls: set[str] = field(default_factory=set)
    stalled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def start(self, folder: Path) -> ThreadingHTTPServer:
        """Listen, and describe the stack in a folder's `stack.json`, for DROPBATCH_LOCAL."""
        listening = _Listening(self)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{listening.server_port}"
        (folder / "stack.json").write_text(
            json.dumps({"endpoint_url": self.url, "region": "eu-west-1"})
        )
        return listening


class _Listening(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, served: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.served = served


class _Handler(BaseHTTPRequestHandler):
    server: _Listening
    protocol_version = "HTTP/1.1"

    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(200, BEGUN if "uploads" in self.path else STACK)

    def do_PUT(self) -> None:
        if self.key() in self.server.served.stalls:
            self.server.served.stalled.set()
            self.server.served.over.wait()
            self.close_connection = True
            return
        if self.headers.get("Expect"):
            self.wfile.flush()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            size, _, rest = body.partition(b"\r\n")
            body = rest[: int(size.split(b";")[0], 16)]
        self.server.served.objects[self.key()] = body
        self.answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_DELETE(self) -> None:
        self.server.served.over.wait()

    def do_GET(self) -> None:
        self.answer(404, MISSING)

    def do_HEAD(self) -> None:
        body = self.server.served.objects.get(self.key())
        if body is None:
            return self.answer(404)
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        return self.answer(
            200,
            ETag=etag,
            Content_Length=str(len(body)),
            Last_Modified="Sat, 21 Nov 2026 09:30:00 GMT",
        )

    def log_message(self, *_: object) -> None:
        """Print nothing."""


# ── pipes, process substitutions, a connection that stalls, Ctrl-C ────────────────────────────────


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
