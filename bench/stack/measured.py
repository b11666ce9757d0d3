"""A local stack to measure.

Its uploads, its results checked line by line, and its functions' processes.

The functions' memory and processor time are read from outside, from /proc: Linux only.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.inputs import LONG
from bench.share import cpu_seconds
from dropbatch.client.sources import stream_of
from local import aws
from local.workers_ai import expected_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.aws.stack import Stack

MODEL = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
ANSWER_TOKENS = 16
"""Answers are short, so that a large upload's result fits in the local AWS's memory."""
HOME = aws.Home(aws.ROOT / ".local/bench")
KEY = f"{MODEL}/large.jsonl"
LOOK_SECONDS = 0.2
"""Seconds between two looks for a job's end.

As fine as what is timed, and a twentieth of a processor.
"""
MAX_WAIT_SECONDS = 3_600.0


def record(number: int) -> dict[str, Any]:
    """A request of about 1 KB, different from all others."""
    return {
        "prompt": f"{number}: {LONG[number % len(LONG)][:890]}",
        "max_tokens": ANSWER_TOKENS,
        "external_reference": f"row-{number}",
    }


def lines(size: int) -> Iterator[bytes]:
    """The lines of an upload of at least `size` bytes."""
    number, written = 0, 0
    while written < size:
        line = msgspec.json.encode(record(number)) + b"\n"
        number, written = number + 1, written + len(line)
        yield line


@dataclass
class Watch:
    """Watches the functions' processes, and kills one of the submit function at intervals.

    Attributes:
        poll_function: its name; the other processes are the submit function's.
        kill_every: seconds between two kills; 0: none.
        peaks: the highest resident memory, in kB, of a process of each function.
        computed: seconds of processor time of each process of both functions.
        killed: processes killed.
        over: set it to end the watch.
    """

    poll_function: str
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
                name = "poll" if function == self.poll_function else "submit"
                self.peaks[name] = max(self.peaks.get(name, 0), peak)
                with suppress(OSError):
                    self.computed[pid] = cpu_seconds(pid)
                if name == "submit":
                    mine.append(pid)
            if self.kill_every and time.monotonic() >= next_kill:
                next_kill += self.kill_every
                # There is none, or it has just ended.
                with suppress(ProcessLookupError, IndexError):
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
        function = (
            arguments.decode()
            .partition("ministack-lambda-")[2]
            .rpartition("/")[0]
            .rpartition("-")[0]
        )
        peak = next(
            (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), "0"
        )
        yield int(command.parent.name), function, int(peak)


def upload(stack: Stack, size: int, key: str = KEY) -> int:
    """Upload the large file in parts; return its records, at once when it was dropped."""
    records = sum(1 for _ in lines(size))
    stack.s3.upload_fileobj(stream_of(lines(size)), stack.bucket, f"inbox/{key}")
    print(f"dropped {size / 1e6:,.0f} MB, {records:,} records", flush=True)
    return records


def check(
    stack: Stack, folder: str, manifest: dict[str, Any], records: int
) -> tuple[int, Counter[str]]:
    """Read the output as a stream.

    Return how many lines do not answer their record, and the codes of failed ones.

    The number is -1 if the output is incomplete or does not match the manifest.
    """
    wrong, number = 0, 0
    codes: Counter[str] = Counter()
    digest = sha256()
    body = stack.s3.get_object(Bucket=stack.bucket, Key=f"{folder}/output.jsonl")["Body"]
    for line in body.iter_lines(chunk_size=8 << 20, keepends=True):
        digest.update(line)
        asked, answer = record(number), msgspec.json.decode(line)
        good = (
            answer["id"] == number and answer["external_reference"] == asked["external_reference"]
        )
        if answer["success"]:
            good = good and answer["result"] == expected_result(MODEL, asked)
        else:
            codes[answer["error"]["code"]] += 1
        wrong += not good
        number += 1
    (file,) = [one for one in manifest["files"] if one["name"] == "output.jsonl"]
    whole = (
        number == records == manifest["counts"]["total"] == file["lines"]
        and digest.hexdigest() == file["sha256"]
    )
    return wrong if whole else -1, codes
