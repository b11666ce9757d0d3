"""The deployed thing, measured as its user sees it: `python -m bench.stack small`, `python -m bench.stack large`.

On the local stack, made from `template.yaml`, with real queues, real function processes and an HTTP API. `small` drops
small files, one after another, and takes the time until their batch was submitted. `large` drops one large file and
checks every line of its result; the functions' memory is read from outside, in /proc. With `--kill-every` one process
of the submit function is killed every so many seconds. With `--latency` AWS takes as long to answer as it is known to,
and each process of a function has the share of a processor that 512 MB have. `compare` sets one large file against
`bench/plain_script.py` on the same local API, with and without a kill half way. Each run is added to its table in
`bench/stack.md`. Not part of `make bench`: it takes minutes, and memory for the local AWS, which keeps objects in it
(about four times the upload).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import boto3
import msgspec

from bench.inputs import LONG
from bench.share import Share, cpu_seconds, share_of
from local import aws
from local.workers_ai import expected_result

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
ANSWER_TOKENS = 16
"""Answers are short, so that a large upload's result fits in the local AWS's memory."""
HOME = aws.Home(aws.ROOT / ".local/bench")
REPORT = Path(__file__).with_name("stack.md")
KEY = f"{MODEL}/large.jsonl"
PIECE = 64_000_000
WARMING = 3
"""Small uploads that come before those that are measured: the functions' processes start with the first."""
MARKER = "<!-- runs of {} -->\n"
GIVE_UP_SECONDS = 3_600.0
MEMORY = 512
"""MB of both functions, as the template has it."""
LATENCIES = {
    "s3": {"seconds": 0.020, "bytes_per_second": 80e6, "spread": 0.3},
    "dynamodb": {"seconds": 0.005, "spread": 0.3},
    "sqs": {"seconds": 0.010, "spread": 0.3},
}
"""What the services take to answer; see `local.fault_proxy.Latency`."""


def record(number: int) -> dict[str, Any]:
    """A request of about 1 KB that no other equals."""
    return {
        "prompt": f"{number}: {LONG[number % len(LONG)][:890]}",
        "max_tokens": ANSWER_TOKENS,
        "external_reference": f"row-{number}",
    }


def pieces(size: int) -> Iterator[tuple[bytes, int]]:
    """An upload of at least so many bytes in pieces, and how many records there were after each."""
    number, written = 0, 0
    while written < size:
        lines: list[bytes] = []
        length = 0
        while length < PIECE and written + length < size:
            lines.append(msgspec.json.encode(record(number)) + b"\n")
            length += len(lines[-1])
            number += 1
        written += length
        yield b"".join(lines), number


@dataclass
class Watch:
    """Looks at the functions' processes from outside, and kills those of one function if it is told to."""

    function: str
    kill_every: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)
    """Resident memory at its highest, in kB, of the largest process of each function."""
    computed: dict[int, float] = field(default_factory=dict)
    """Seconds that each process of both functions has computed."""
    killed: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look twice a second until it is over."""
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
                with suppress(ProcessLookupError, IndexError):  # None is there, or it ended by itself just now.
                    os.kill(dice.choice(mine), signal.SIGKILL)
                    self.killed += 1


def processes() -> Iterator[tuple[int, str, int]]:
    """Process id, function's name and peak resident memory in kB of each function process of this stack."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes()
            if b"_worker.py" not in words or str(HOME.scratch).encode() not in words:
                continue
            told = command.with_name("status").read_text()
        except OSError:
            continue
        function = words.decode().partition("ministack-lambda-")[2].rpartition("/")[0].rpartition("-")[0]
        peak = next((line.split()[1] for line in told.splitlines() if line.startswith("VmHWM")), "0")
        yield int(command.parent.name), function, int(peak)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    megabytes: float
    records: int
    batches: int
    seconds: float
    wrong: int
    codes: dict[str, int]
    kills: int
    unknowable: int
    paid_twice: int
    peak_submit: float
    peak_poll: float


@contextmanager
def stack(parameters: str, *, latency: bool = False) -> Iterator[tuple[dict[str, str], Any]]:
    """A fresh stack while it is wanted: what it says of itself, and an S3 client."""
    aws.down(HOME)
    share = Share(share_of(MEMORY), lambda: [pid for pid, *_ in processes()])
    try:
        environment = {"LOCAL_PORT": str(aws.free_port()), "LOCAL_PARAMETERS": parameters}
        told = aws.up(environment | ({"LOCAL_FAULTS": "yes"} if latency else {}), HOME)
        if latency:
            ask(f"{told['fault_proxy_url']}/_latency", LATENCIES)
            share.start()
        yield (
            told,
            boto3.client(
                "s3",
                endpoint_url=told["endpoint_url"],
                region_name=told["region"],
                aws_access_key_id="test",
                aws_secret_access_key="test",  # noqa: S106 - the local AWS's
            ),
        )
    finally:
        if latency and share.ident:
            share.end()
        aws.down(HOME)


def ask(url: str, body: Any = None) -> Any:  # noqa: ANN401 - JSON
    """PUT some JSON, or GET it; the answer."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method="PUT" if data else "GET")) as reply:  # noqa: S310 - http
        return json.load(reply)


# ── small uploads ────────────────────────────────────────────────────────────────────────────────────────────────────


def small(drops: int) -> str:
    """Drop small files one after another; the report's line."""
    delays, whole = [], []
    with stack("") as (told, s3):
        for number in range(WARMING + drops):
            body = b"".join(msgspec.json.encode(record(number * 10 + n)) + b"\n" for n in range(10))
            key = f"{MODEL}/small-{number}.jsonl"
            began = time.time()
            s3.put_object(Bucket=told["bucket"], Key=f"inbox/{key}", Body=body)
            _, manifest = wait(s3, told["bucket"], key, quiet=True)
            if number >= WARMING:
                delays.append(local(told["workers_ai_base_url"], "accepted")[-1]["time"] - began)
                whole.append(time.time() - began)
            assert manifest["counts"]["succeeded"] == 10, manifest
    cells = (f"{drops}", *(f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})" for times in (delays, whole)))
    return "| " + " | ".join(cells) + " |\n"


# ── a large upload ───────────────────────────────────────────────────────────────────────────────────────────────────


def run(megabytes: int, kill_every: float, parameters: str, *, latency: bool) -> tuple[Outcome, dict[str, int]]:
    """One upload from drop to the last checked line; with latency also the calls of AWS by operation."""
    with stack(parameters, latency=latency) as (told, s3):
        outcome = _run(told, s3, megabytes, kill_every)
        return outcome, ask(f"{told['fault_proxy_url']}/_latency")["operations"] if latency else {}


def _run(told: dict[str, str], s3: Any, megabytes: int, kill_every: float) -> Outcome:  # noqa: ANN401 - boto3's client
    bucket = told["bucket"]
    watch = Watch(told["submit_function"], kill_every)
    watcher = threading.Thread(target=watch.run)
    try:
        size, records = upload(s3, bucket, megabytes * 1_000_000)
        watcher.start()
        began = time.monotonic()
        folder, manifest = wait(s3, bucket, KEY)
        seconds = time.monotonic() - began
        watch.over.set()
        print(f"over after {seconds:.0f} s; checking every line", flush=True)
        wrong, codes = check(s3, bucket, folder, manifest, records)
        accepted = local(told["workers_ai_base_url"], "accepted")
    finally:
        watch.over.set()
        if watcher.ident:
            watcher.join()
    bills = Counter(one["sha256"] for one in accepted)
    return Outcome(
        size / 1e6,
        records,
        len(bills),
        seconds,
        wrong,
        dict(codes),
        watch.killed,
        sum(batch["unknowable_submits"] for batch in manifest["batches"]),
        sum(bills.values()) - len(bills),
        watch.peaks.get("submit", 0) / 1000,
        watch.peaks.get("poll", 0) / 1000,
    )


def upload(s3: Any, bucket: str, size: int) -> tuple[int, int]:  # noqa: ANN401 - boto3's client
    """Drop the file, a piece at a time; its bytes and records."""
    key = f"inbox/{KEY}"
    begun = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    parts, written, records = [], 0, 0
    for piece, records in pieces(size):  # noqa: B007 - the last is wanted
        number = len(parts) + 1
        answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=begun, PartNumber=number, Body=piece)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        written += len(piece)
    s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=begun, MultipartUpload={"Parts": parts})
    print(f"dropped {written / 1e6:,.0f} MB, {records:,} records", flush=True)
    return written, records


def wait(s3: Any, bucket: str, path: str, *, quiet: bool = False) -> tuple[str, dict[str, Any]]:  # noqa: ANN401 - boto3's client
    """The result's folder and the manifest, as soon as there is one."""
    told, began = "", time.monotonic()
    while time.monotonic() - began < GIVE_UP_SECONDS:
        found = s3.list_objects_v2(Bucket=bucket, Prefix=f"results/{path}/").get("Contents", [])
        names = {entry["Key"].rpartition("/")[2]: entry["Key"] for entry in found}
        if "manifest.json" in names:
            folder = names["manifest.json"].rpartition("/")[0]
            return folder, json.load(s3.get_object(Bucket=bucket, Key=names["manifest.json"])["Body"])
        if "status.json" in names:
            status = json.load(s3.get_object(Bucket=bucket, Key=names["status.json"])["Body"])
            now = f"{status['state']} {status['fraction_done']} {status['counts']} {status['waiting_for']}"
            if now != told and not quiet:
                told = now
                print(f"{time.monotonic() - began:6.0f} s  {told}", flush=True)
        time.sleep(0.1 if quiet else 1.0)
    raise TimeoutError(f"no manifest after {GIVE_UP_SECONDS} s: {told}")


def check(s3: Any, bucket: str, folder: str, manifest: dict[str, Any], records: int) -> tuple[int, Counter[str]]:  # noqa: ANN401 - boto3's client
    """Lines that are not the answer to their record, and the codes of failed ones; reads the output as a stream."""
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


def local(base_url: str, path: str) -> Any:  # noqa: ANN401 - whatever it tells
    """Ask the local Workers AI itself."""
    return ask(f"{base_url.removesuffix('/client/v4')}/_local/{path}")


# ── against a plain script ───────────────────────────────────────────────────────────────────────────────────────────


def compare(megabytes: int) -> str:
    """The report's lines: Dropbatch and a plain script, each undisturbed and killed half way and begun again."""
    lines = []
    for kill in (False, True):
        with stack("") as (told, s3):
            lines.append(_by_dropbatch(told, s3, megabytes, kill=kill))
        with stack("") as (told, _):
            lines.append(_by_script(told, megabytes, kill=kill))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _by_dropbatch(told: dict[str, str], s3: Any, megabytes: int, *, kill: bool) -> list[str]:  # noqa: ANN401 - boto3's client
    """Killed means: every process of both functions, when half of the batches have been accepted."""
    watch = Watch(told["submit_function"])
    watcher = threading.Thread(target=watch.run)
    _, records = upload(s3, told["bucket"], megabytes * 1_000_000)
    watcher.start()
    began = time.monotonic()
    if kill:
        _wait_for_half(told, records)
        for pid, *_ in processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    folder, manifest = wait(s3, told["bucket"], KEY, quiet=True)
    seconds = time.monotonic() - began
    watch.over.set()
    watcher.join()
    wrong, _ = check(s3, told["bucket"], folder, manifest, records)
    name = "Dropbatch" + (", all functions killed half way" if kill else "")
    peak = max(watch.peaks.values()) / 1000
    return _compared(told, name, records, seconds, sum(watch.computed.values()), peak, wrong)


def _by_script(told: dict[str, str], megabytes: int, *, kill: bool) -> list[str]:
    """Killed means: when half of the batches have been accepted; then it is begun again, as its user would."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "upload.jsonl"), Path(folder, "output.jsonl")
        with source.open("wb") as file:
            for piece, records in pieces(megabytes * 1_000_000):  # noqa: B007 - the last is wanted
                file.write(piece)
        url = f"{told['workers_ai_base_url']}/accounts/{aws.LOCAL_ACCOUNT}/ai/run/{MODEL}"
        command = [sys.executable, "-m", "bench.plain_script", str(source), str(output), url, aws.LOCAL_TOKEN]
        began, computed, peak = time.monotonic(), 0.0, 0
        for killed in (True, False) if kill else (False,):
            with subprocess.Popen(command) as process:
                if killed:
                    _wait_for_half(told, records)
                    process.kill()
                _, _, used = os.wait4(process.pid, 0)
                process.returncode = 0
            computed += used.ru_utime + used.ru_stime
            peak = max(peak, used.ru_maxrss)
        seconds = time.monotonic() - began
        with output.open("rb") as lines:
            wrong = sum(
                answer["id"] != number or answer["result"] != expected_result(MODEL, record(number))
                for number, answer in enumerate(map(msgspec.json.decode, lines))
            )
    name = "plain script" + (", killed half way and begun again" if kill else "")
    return _compared(told, name, records, seconds, computed, peak * 1.024 / 1000, wrong)


def _wait_for_half(told: dict[str, str], records: int) -> None:
    while sum(one["count"] for one in local(told["workers_ai_base_url"], "accepted")) < records / 2:
        time.sleep(0.05)


def _compared(
    told: dict[str, str], name: str, records: int, seconds: float, computed: float, peak: float, wrong: int
) -> list[str]:
    accepted = local(told["workers_ai_base_url"], "accepted")
    calls = sum(sum(kind.values()) for kind in local(told["workers_ai_base_url"], "calls").values())
    paid = sum(one["count"] for one in accepted) - records
    measured = (f"{seconds:.0f}", f"{computed:.1f}", f"{peak:.0f}", f"{calls}", f"{paid:,}", f"{wrong}")
    return [name, f"{records:,}", *measured]


def row(outcome: Outcome, parameters: str) -> str:
    """The run as a line of the report's table."""
    wrong = "not whole" if outcome.wrong < 0 else f"{outcome.wrong}"
    codes = ", ".join(f"{count:,} {code}" for code, count in outcome.codes.items()) or "0"
    cells = (
        f"{outcome.megabytes:,.0f}",
        f"{outcome.records:,}",
        f"{outcome.batches:,}",
        parameters,
        f"{outcome.seconds:,.0f}",
        f"{outcome.kills}",
        wrong,
        codes,
        f"{outcome.unknowable}",
        f"{outcome.paid_twice}",
        f"{outcome.peak_submit:.0f}",
        f"{outcome.peak_poll:.0f}",
    )
    return "| " + " | ".join(cells) + " |\n"


def main() -> int:
    """Run once, add the run to the report; 0 if every line was there and right."""
    parser = argparse.ArgumentParser(prog="python -m bench.stack")
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_small = kinds.add_parser("small", help="small files: how soon they are submitted")
    of_small.add_argument("--drops", type=int, default=20)
    of_large = kinds.add_parser("large", help="a large file: every line checked, memory watched")
    of_large.add_argument("--megabytes", type=int, default=2_000)
    of_large.add_argument("--kill-every", type=float, default=0.0, help="seconds between two kills; 0: none")
    of_large.add_argument("--parameters", default="")
    of_large.add_argument("--latency", action="store_true", help="AWS's latencies, and a share of a processor")
    of_comparison = kinds.add_parser("compare", help="the same work by a plain script")
    of_comparison.add_argument("--megabytes", type=int, default=100)
    chosen = parser.parse_args()
    if chosen.kind == "small":
        line, wrong = small(chosen.drops), 0
    elif chosen.kind == "compare":
        line, wrong = compare(chosen.megabytes), 0
    else:
        outcome, operations = run(chosen.megabytes, chosen.kill_every, chosen.parameters, latency=chosen.latency)
        print(json.dumps(dict(sorted(operations.items())), indent=1))
        how = ", ".join(filter(None, (chosen.parameters, "latency" if chosen.latency else "")))
        line, wrong = row(outcome, how), outcome.wrong
    print(line)
    marker = MARKER.format(chosen.kind)
    REPORT.write_text(REPORT.read_text().replace(marker, line + marker))
    return int(wrong != 0)


if __name__ == "__main__":
    sys.exit(main())
