"""A local stack to measure: its uploads, its results checked line by line, and its functions' processes.

The functions' memory and processor time are read from outside, from /proc: Linux only.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.inputs import LONG
from bench.share import Share, cpu_seconds, memory_of, share_of
from bench.timing import AWS_SECONDS, S3_BYTES_A_SECOND
from local import aws
from local.workers_ai import expected_result

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
ANSWER_TOKENS = 16
"""Answers are short, so that a large upload's result fits in the local AWS's memory."""
HOME = aws.Home(aws.ROOT / ".local/bench")
KEY = f"{MODEL}/large.jsonl"
PIECE_BYTES = 64_000_000
MAX_WAIT_SECONDS = 3_600.0
LATENCIES = {
    service: {"seconds": seconds, "spread": 0.3, **({"bytes_per_second": S3_BYTES_A_SECOND} if service == "s3" else {})}
    for service, seconds in AWS_SECONDS.items()
}
"""How long each service takes to answer; see `local.fault_proxy.Latency`."""


def record(number: int) -> dict[str, Any]:
    """A request of about 1 KB, different from all others."""
    return {
        "prompt": f"{number}: {LONG[number % len(LONG)][:890]}",
        "max_tokens": ANSWER_TOKENS,
        "external_reference": f"row-{number}",
    }


def pieces(size: int) -> Iterator[tuple[bytes, int]]:
    """The pieces of an upload of at least `size` bytes, each with the number of records so far."""
    number, written = 0, 0
    while written < size:
        lines: list[bytes] = []
        length = 0
        while length < PIECE_BYTES and written + length < size:
            lines.append(msgspec.json.encode(record(number)) + b"\n")
            length += len(lines[-1])
            number += 1
        written += length
        yield b"".join(lines), number


@dataclass
class Watch:
    """Watches the functions' processes, and kills one of the submit function at intervals.

    Attributes:
        function: the submit function's name.
        kill_every: seconds between two kills; 0: none.
        peaks: the highest resident memory, in kB, of a process of each function.
        computed: seconds of processor time of each process of both functions.
        killed: processes killed.
        over: set it to end the watch.
    """

    function: str
    kill_every: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)
    computed: dict[int, float] = field(default_factory=dict)
    killed: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look at the processes twice a second, until `over` is set."""
        dice = random.Random(1)
        next_kill = time.monotonic() + self.kill_every
        while not self.over.wait(0.5):
            mine = []
            for pid, function, peak in processes():
                name = "submit" if function == self.function else "poll"
                self.peaks[name] = max(self.peaks.get(name, 0), peak)
                with suppress(OSError):
                    self.computed[pid] = cpu_seconds(pid)
                if name == "submit":
                    mine.append(pid)
            if self.kill_every and time.monotonic() >= next_kill:
                next_kill += self.kill_every
                with suppress(ProcessLookupError, IndexError):  # There is none, or it has just ended.
                    os.kill(dice.choice(mine), signal.SIGKILL)
                    self.killed += 1


def processes() -> Iterator[tuple[int, str, int]]:
    """Process id, function's name and peak resident memory in kB of each function process of this stack."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = command.read_bytes()
            if b"_worker.py" not in arguments or str(HOME.scratch).encode() not in arguments:
                continue
            status = command.with_name("status").read_text()
        except OSError:
            continue
        function = arguments.decode().partition("ministack-lambda-")[2].rpartition("/")[0].rpartition("-")[0]
        peak = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), "0")
        yield int(command.parent.name), function, int(peak)


@contextmanager
def running_stack(parameters: str, *, latency: bool = False) -> Iterator[tuple[dict[str, str], Any]]:
    """Start a fresh stack and stop it at the end; yield the content of its stack.json, and an S3 client.

    Args:
        parameters: parameters of the template, as `Name=value Other=value`.
        latency: whether AWS answers after the time it is known to take, and functions have their share of a processor.
    """
    aws.down(HOME)
    share = Share(share_of(memory_of("submit")), lambda: [pid for pid, *_ in processes()])
    try:
        environment = {"LOCAL_PORT": str(aws.free_port()), "LOCAL_PARAMETERS": parameters}
        stack = aws.up(environment | ({"LOCAL_FAULTS": "yes"} if latency else {}), HOME)
        if latency:
            ask(f"{stack['fault_proxy_url']}/_latency", LATENCIES)
            share.start()
        yield stack, aws.client("s3", int(stack["endpoint_url"].rpartition(":")[2]))
    finally:
        if latency and share.ident:
            share.end()
        aws.down(HOME)


def ask(url: str, body: Any = None) -> Any:  # noqa: ANN401 - JSON
    """PUT JSON, or GET without a body; return the decoded answer."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method="PUT" if data else "GET")) as reply:  # noqa: S310 - http
        return json.load(reply)


def upload(s3: Any, bucket: str, size: int) -> tuple[int, int]:  # noqa: ANN401 - boto3's client
    """Upload the large file in parts; return its bytes and records."""
    key = f"inbox/{KEY}"
    begun = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    parts: list[dict[str, Any]] = []
    written, records = 0, 0
    for piece, records in pieces(size):  # noqa: B007 - the last value is used
        number = len(parts) + 1
        answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=begun, PartNumber=number, Body=piece)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        written += len(piece)
    s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=begun, MultipartUpload={"Parts": parts})
    print(f"dropped {written / 1e6:,.0f} MB, {records:,} records", flush=True)
    return written, records


def wait(s3: Any, bucket: str, path: str, *, quiet: bool = False) -> tuple[str, dict[str, Any]]:  # noqa: ANN401 - boto3's client
    """Wait for the manifest of a path's only job; return its folder and the manifest.

    Raises:
        TimeoutError: there is none after `MAX_WAIT_SECONDS`.
    """
    shown, began = "", time.monotonic()
    while time.monotonic() - began < MAX_WAIT_SECONDS:
        found = s3.list_objects_v2(Bucket=bucket, Prefix=f"results/{path}/").get("Contents", [])
        names = {entry["Key"].rpartition("/")[2]: entry["Key"] for entry in found}
        if "manifest.json" in names:
            folder = names["manifest.json"].rpartition("/")[0]
            return folder, json.load(s3.get_object(Bucket=bucket, Key=names["manifest.json"])["Body"])
        if "status.json" in names:
            status = json.load(s3.get_object(Bucket=bucket, Key=names["status.json"])["Body"])
            now = f"{status['state']} {status['fraction_done']} {status['counts']} {status['waiting_for']}"
            if now != shown and not quiet:
                shown = now
                print(f"{time.monotonic() - began:6.0f} s  {shown}", flush=True)
        time.sleep(0.1 if quiet else 1.0)
    raise TimeoutError(f"no manifest after {MAX_WAIT_SECONDS} s: {shown}")


def check(s3: Any, bucket: str, folder: str, manifest: dict[str, Any], records: int) -> tuple[int, Counter[str]]:  # noqa: ANN401 - boto3's client
    """Read the output as a stream; return how many lines do not answer their record, and the codes of failed ones.

    The number is -1 if the output is incomplete or does not match the manifest.
    """
    wrong, number = 0, 0
    codes: Counter[str] = Counter()
    digest = sha256()
    body = s3.get_object(Bucket=bucket, Key=f"{folder}/output.jsonl")["Body"]
    for line in body.iter_lines(chunk_size=8 << 20, keepends=True):
        digest.update(line)
        asked, answer = record(number), msgspec.json.decode(line)
        good = answer["id"] == number and answer["external_reference"] == asked["external_reference"]
        if answer["success"]:
            good = good and answer["result"] == expected_result(MODEL, asked)
        else:
            codes[answer["error"]["code"]] += 1
        wrong += not good
        number += 1
    (file,) = [one for one in manifest["files"] if one["name"] == "output.jsonl"]
    whole = number == records == manifest["counts"]["total"] == file["lines"] and digest.hexdigest() == file["sha256"]
    return wrong if whole else -1, codes


def local(base_url: str, path: str) -> Any:  # noqa: ANN401 - JSON
    """The answer of one of the local Workers AI's `_local` routes: its bill, its counts."""
    return ask(f"{base_url.removesuffix('/client/v4')}/_local/{path}")
