"""Compares Dropbatch with a plain script on the same local API.

One large file, with and without a kill half way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from bench.stack.measured import (
    HOME,
    KEY,
    LOOK_SECONDS,
    MAX_WAIT_SECONDS,
    MODEL,
    Watch,
    check,
    lines,
    processes,
    record,
    upload,
)
from local import aws
from local.workers_ai import expected_result
from tests.support.aws.stack import running_stack

if TYPE_CHECKING:
    from tests.support.aws.stack import Stack

SEEN_RECORDS = 600
"""Records of the upload before the measured one.

From which the stack knows how long the model takes.
"""


def compare(megabytes: int, *, kills: tuple[bool, ...] = (False, True)) -> str:
    """The report's lines.

    Dropbatch and a plain script, each undisturbed, and killed half way and restarted.
    """
    rows = []
    for kill in kills:
        with running_stack(HOME, "") as stack:
            rows.append(_by_dropbatch(stack, megabytes, kill=kill))
        with running_stack(HOME, "") as stack:
            rows.append(_by_script(stack, megabytes, kill=kill))
    return "".join(f"| {' | '.join(line)} |\n" for line in rows)


def rounds(megabytes: int, count: int) -> str:
    """The report's line.

    Both undisturbed on one stack, taking turns, and the ratio of their times in each round.
    """
    ours, theirs = [], []
    with running_stack(HOME, "") as stack:
        _see_model(stack)
        for number in range(count):
            key = f"{MODEL}/round-{number}.jsonl"
            records = upload(stack, megabytes * 1_000_000, key)
            began = time.monotonic()
            folder, manifest = stack.wait(key, MAX_WAIT_SECONDS, LOOK_SECONDS)
            ours.append(time.monotonic() - began)
            script = _run_script(stack, megabytes, kill=False)
            theirs.append(script.seconds)
            print(f"{ours[-1]:.1f} s, script {theirs[-1]:.1f} s", flush=True)
            wrong, _ = check(stack, folder, manifest, records)
            if wrong or script.wrong:
                raise RuntimeError(f"{wrong} and {script.wrong} wrong lines")
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    cells = (
        f"{median(some):.{digits}f} ({min(some):.{digits}f} to {max(some):.{digits}f})"
        for some, digits in ((ours, 1), (theirs, 1), (ratios, 2))
    )
    return f"| {records:,} | {count} | {' | '.join(cells)} |\n"


def _see_model(stack: Stack) -> None:
    """Run a job, so that the model has been seen before, and the functions have run."""
    seen = f"{MODEL}/seen-before.jsonl"
    stack.drop(
        seen,
        b"".join(msgspec.json.encode(record(number)) + b"\n" for number in range(SEEN_RECORDS)),
    )
    stack.wait(seen)


def _by_dropbatch(stack: Stack, megabytes: int, *, kill: bool) -> list[str]:
    """Run Dropbatch; `kill` kills every process of both functions when half of the records have been accepted."""
    _see_model(stack)
    before = _calls(stack)
    watch = Watch(stack.poll_function)
    watcher = threading.Thread(target=watch.run)
    records = upload(stack, megabytes * 1_000_000)
    watcher.start()
    began, began_at = time.monotonic(), time.time()
    if kill:
        _wait_for_half(stack, records)
        for pid, *_ in processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    folder, manifest = stack.wait(KEY, MAX_WAIT_SECONDS, LOOK_SECONDS)
    seconds = time.monotonic() - began
    watch.over.set()
    watcher.join()
    wrong, _ = check(stack, folder, manifest, records)
    name = "Dropbatch" + (", all functions killed half way" if kill else "")
    peak = max(watch.peaks.values()) / 1000
    if not kill:
        print(timeline(manifest, began_at), flush=True)
    measured = _compared(
        stack, name, records + SEEN_RECORDS, seconds, sum(watch.computed.values()), peak, wrong
    )
    measured[1], measured[5] = f"{records:,}", f"{_calls(stack) - before}"
    return measured


def timeline(manifest: dict[str, Any], began: float) -> str:
    """By second since the drop: how many batches were submitted and answered, as rows of a table.

    Args:
        manifest: the job's.
        began: Unix seconds of the drop.
    """
    times = [Counter[int](), Counter[int]()]
    for batch in manifest["batches"]:
        for counted, name in zip(times, ("submitted_at", "completed_at"), strict=True):
            counted[int(datetime.fromisoformat(batch[name]).timestamp() - began)] += 1
    rows = [f"| {at} | {times[0][at]} | {times[1][at]} |\n" for at in sorted(times[0] | times[1])]
    return "| second | submitted | collected |\n| --- | --- | --- |\n" + "".join(rows)


@dataclass(frozen=True, slots=True)
class _ScriptRun:
    """What a run of the script took: seconds, of processor too, most memory in MB.

    Its records, and wrong lines.
    """

    seconds: float
    computed: float
    peak: float
    records: int
    wrong: int


def _by_script(stack: Stack, megabytes: int, *, kill: bool) -> list[str]:
    one = _run_script(stack, megabytes, kill=kill)
    name = "plain script" + (", killed half way and begun again" if kill else "")
    return _compared(stack, name, one.records, one.seconds, one.computed, one.peak, one.wrong)


def _run_script(stack: Stack, megabytes: int, *, kill: bool) -> _ScriptRun:
    """Run the script; `kill` kills it when half of the records have been accepted.

    And restarts it as a user would.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "upload.jsonl"), Path(folder, "output.jsonl")
        with source.open("wb") as file:
            file.writelines(lines(megabytes * 1_000_000))
        records = sum(1 for _ in lines(megabytes * 1_000_000))
        url = f"{stack.api}/client/v4/accounts/{aws.LOCAL_ACCOUNT}/ai/run/{MODEL}"
        command = [
            sys.executable,
            "-m",
            "bench.stack.plain_script",
            str(source),
            str(output),
            url,
            aws.LOCAL_TOKEN,
        ]
        began, computed, peak = time.monotonic(), 0.0, 0
        for killed in (True, False) if kill else (False,):
            with subprocess.Popen(command) as process:
                if killed:
                    _wait_for_half(stack, records)
                    process.kill()
                _, _, used = os.wait4(process.pid, 0)
                process.returncode = 0
            computed += used.ru_utime + used.ru_stime
            peak = max(peak, used.ru_maxrss)
        seconds = time.monotonic() - began
        with output.open("rb") as answers:
            wrong = sum(
                answer["id"] != number or answer["result"] != expected_result(MODEL, record(number))
                for number, answer in enumerate(map(msgspec.json.decode, answers))
            )
    return _ScriptRun(seconds, computed, peak * 1.024 / 1000, records, wrong)


def _wait_for_half(stack: Stack, records: int) -> None:
    while sum(one["count"] for one in stack.bill()) < records / 2:
        time.sleep(0.05)


def _calls(stack: Stack) -> int:
    """Calls of the API until now."""
    return sum(sum(kind.values()) for kind in stack.local("calls").values())


def _compared(
    stack: Stack, name: str, records: int, seconds: float, computed: float, peak: float, wrong: int
) -> list[str]:
    accepted = stack.bill()
    paid = sum(one["count"] for one in accepted) - records
    measured = (
        f"{seconds:.1f}",
        f"{computed:.1f}",
        f"{peak:.0f}",
        f"{_calls(stack)}",
        f"{paid:,}",
        f"{wrong}",
    )
    return [name, f"{records:,}", *measured]
