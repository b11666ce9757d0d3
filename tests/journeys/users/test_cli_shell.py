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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.shipped import ROOT

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


def etag_of(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


class S3Server(ThreadingHTTPServer):
    """A server of one bucket and one stack; what was put is in `objects`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.stalls: set[str] = set()  # Keys of which a write is never answered.
        self.stalled, self.over = threading.Event(), threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: S3Server
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
        if self.key() in self.server.stalls:
            self.server.stalled.set()
            self.server.over.wait()
            self.close_connection = True
            return
        if self.headers.get("Expect"):
            self.wfile.flush()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            size, _, rest = body.partition(b"\r\n")
            body = rest[: int(size.split(b";")[0], 16)]
        self.server.objects[self.key()] = body
        self.answer(200, ETag=etag_of(body))

    def do_DELETE(self) -> None:
        self.server.over.wait()

    def do_GET(self) -> None:
        self.answer(404, MISSING)

    def do_HEAD(self) -> None:
        body = self.server.objects.get(self.key())
        if body is None:
            return self.answer(404)
        put_at = "Sat, 21 Nov 2026 09:30:00 GMT"
        size = str(len(body))
        return self.answer(200, ETag=etag_of(body), Content_Length=size, Last_Modified=put_at)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


GOOD = '{"text":"x","target_lang":"es"}\n'
DROPBATCH = f"{shlex.quote(sys.executable)} -m dropbatch --local"
M2M = "--model @cf/meta/m2m100-1.2b"
MAX_INTERRUPT_SECONDS = MAX_ID_SECONDS = 2.0


@pytest.fixture
def server(tmp_path):
    """Described in a folder's `stack.json`, for DROPBATCH_LOCAL."""
    with S3Server() as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        told = {"endpoint_url": f"http://127.0.0.1:{served.server_port}", "region": "eu-west-1"}
        (tmp_path / "stack.json").write_text(json.dumps(told))
        yield served
        served.over.set()
        served.shutdown()


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


@pytest.mark.parametrize("size", [1, 20 << 20], ids=["small", "parts"])
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
