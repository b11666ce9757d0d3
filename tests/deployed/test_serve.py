"""`dropbatch serve` as a process on the local stack.

Others' programs, large uploads, a killed server.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from local import worker
from tests.support import vendors
from tests.support.aws.stack import running_stack
from tests.support.journeys.openai_server import requests

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

BGE = "@cf/baai/bge-m3"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
EMBEDDINGS = "/v1/embeddings"
MAX_MEGABYTES = 150
"""Of memory at the peak, whatever is uploaded: files lie on the disk until they are in S3."""


@pytest.fixture(scope="module")
def stack():
    with running_stack("test-serve") as made:
        yield made


@contextmanager
def served(stack, *options):
    """A server's process and its URL."""
    environment = os.environ | {"DROPBATCH_LOCAL": str(stack.home.stack_file)}
    command = [sys.executable, "-m", "dropbatch", "--local", "serve", "--port", "0", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(10) in {130, -signal.SIGKILL}


def client(url):
    return openai.OpenAI(base_url=url, api_key="none")


def wait(ai, batch):
    until = time.monotonic() + 120
    while batch.completed_at is None and time.monotonic() < until:
        time.sleep(0.5)
        batch = ai.batches.retrieve(batch.id)
    assert batch.status == "completed"
    return batch


def test_litellm_runs_its_batches(stack):
    with served(stack) as (_, url):
        assert vendors.run("litellm_serves.py", url, LLAMA, python=vendors.VENDORS) == {
            "completed": 3,
            "listed": 1,
            "tokens": True,
        }


def test_autobatchers_single_calls_become_batches(stack):
    models = BGE, "@cf/openai/gpt-oss-20b"
    with served(stack, "--model", LLAMA) as (_, url):
        assert vendors.run("autobatcher_batches.py", url, *models, python=vendors.VENDORS) == [
            "chat: ChatCompletion",
            "embeddings: CreateEmbeddingResponse",
            "responses: Response",
            "completion_window",
        ]


@pytest.mark.skipif(shutil.which("node") is None, reason="It needs Node.js.")
def test_ai_sdk_and_openais_javascript_run_their_batches(stack):
    worker.install(vendors.JAVASCRIPT)
    with served(stack, "--model", LLAMA) as (_, url):
        command = ["node", vendors.JAVASCRIPT / "batches.mjs", url, "@cf/openai/gpt-oss-20b"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "aiSdk": {"status": "completed", "texts": {"a": True, "b": True}, "listed": True},
        "official": {"status": "completed", "answers": 1, "refused": "batches_only"},
    }


def test_curl_of_openais_guide_runs(stack, tmp_path):
    file = tmp_path / "requests.jsonl"
    (line,) = requests(EMBEDDINGS, {"model": BGE, "input": "hello"})
    file.write_text(json.dumps(line) + "\n")

    def curl(*arguments):
        return subprocess.run(
            ["curl", "-sS", *arguments], capture_output=True, text=True, check=True
        ).stdout

    with served(stack) as (_, url):
        made = json.loads(curl(f"{url}/files", "-F", "purpose=batch", "-F", f"file=@{file}"))
        asked = {"input_file_id": made["id"], "endpoint": EMBEDDINGS, "completion_window": "24h"}
        batch = json.loads(
            curl(f"{url}/batches", "-H", "Content-Type: application/json", "-d", json.dumps(asked))
        )
        with client(url) as ai:
            wait(ai, ai.batches.retrieve(batch["id"]))
        batch = json.loads(curl(f"{url}/batches/{batch['id']}"))
        answered = curl(f"{url}/files/{batch['output_file_id']}/content")
    assert json.loads(answered)["custom_id"] == "r0"


def peak_megabytes(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's memory as Linux shows it")
def test_large_uploads_take_little_memory(stack, tmp_path):
    """300 MB by OpenAI's client, then four such files at the same time, sent by curl."""
    large = tmp_path / "large.jsonl"
    line = json.dumps(requests(EMBEDDINGS, {"model": BGE, "input": "x" * 900})[0]).encode() + b"\n"
    with large.open("wb") as file:
        while file.tell() < 300 << 20:
            file.write(line * 1_000)
    with served(stack) as (process, url), client(url) as ai:
        by_client = ai.files.create(file=large, purpose="batch")
        assert by_client.bytes == large.stat().st_size
        command = ["curl", "-sS", f"{url}/files", "-F", "purpose=batch", "-F", f"file=@{large}"]
        uploads = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        slowest = 0.0
        while any(upload.poll() is None for upload in uploads):
            began = time.monotonic()
            ai.models.list()
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.1)
        made = [json.loads(upload.communicate()[0]) for upload in uploads]
        assert {one["bytes"] for one in made} == {large.stat().st_size}
        with ai.files.with_streaming_response.content(made[0]["id"]) as content:
            assert sum(len(chunk) for chunk in content.iter_bytes()) == large.stat().st_size
        assert peak_megabytes(process) < MAX_MEGABYTES
        assert slowest < 30, "a short request waited for uploads"
        for file_id in (by_client.id, *(one["id"] for one in made)):
            ai.files.delete(file_id)


def test_killed_server_loses_nothing_that_it_answered(stack):
    lines = "".join(
        json.dumps(one) + "\n" for one in requests(EMBEDDINGS, *[{"model": BGE, "input": "a"}] * 3)
    )
    with served(stack) as (process, url), client(url) as ai:
        file = ai.files.create(file=lines.encode(), purpose="batch")
        batch = ai.batches.create(
            input_file_id=file.id, endpoint=EMBEDDINGS, completion_window="24h"
        )
        process.kill()
    with served(stack) as (_, url), client(url) as ai:
        assert ai.files.retrieve(file.id) == file
        assert ai.files.content(file.id).text == lines
        over = wait(ai, ai.batches.retrieve(batch.id))
        assert over.request_counts.completed == 3
