"""The soak test: `python -m tests.soak`, or `make soak`.

Hours of trouble in minutes, on its own deployed stack.

Uploads of every size and form arrive for SOAK_MINUTES (30) while 5 % of the functions' AWS calls
and 5 % of the API's answers go wrong and function processes are killed. A firewall blocks the text
of some records, one model stalls, and an item of the table cannot be read. Then every job may
finish, and every line of every job is compared with what it must be. It ends automatically, with a
summary, its figures in docs/reliability.md, and an error if anything was lost.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from local import aws
from local.workers_ai import expected_result
from tests.support.aws.stack import Stack, running_stack
from tests.support.fault_table import ROOT, write_between_marks

BGE, M2M = "@cf/baai/bge-small-en-v1.5", "@cf/meta/m2m100-1.2b"
STALLED = "@cf/baai/bge-large-en-v1.5"
STALLED_SECONDS = 900
"""How much longer than others the stalled model takes for each batch."""
BLOCKED = "a text that the firewall blocks"
LARGEST = 20_000
"""Records of the largest uploads.

Those of over `LONG` request short answers, since a local S3 keeps all in memory.
"""
LONG = 500
FINISH_SECONDS = 1_500
"""How long the jobs may take to finish.

A message whose function was killed is delivered again after 15 minutes.
"""

AWS_FAULTS = [
    {"kind": "throttle", "rate": 0.01},
    {"kind": "throttling_exception", "rate": 0.005},
    {"kind": "error_500", "rate": 0.01},
    {"kind": "reset", "rate": 0.005},
    {"kind": "lost", "rate": 0.005},
    {"kind": "cut", "rate": 0.005},
    {"kind": "latency", "rate": 0.01, "seconds": 2.0},
]
API_FAULTS = {
    "submit:3040": 0.01,
    "submit:json_500": 0.02,
    "bare": 0.002,
    "accept_then_reset": 0.005,
    "submit:reset": 0.005,
    "poll:html": 0.01,
    "poll:reset": 0.01,
    "poll:truncated_json": 0.01,
    "poll:truncated_body": 0.01,
    "poll:10013": 0.01,
}


@dataclass
class Upload:
    """One upload, described so that its content can be generated again."""

    number: int
    count: int
    form: str
    bad: bool
    stalled: bool
    blocked: bool
    """Whether one of its records has a text that the firewall blocks."""
    dropped_at: float

    @property
    def model(self) -> str:
        if self.stalled:
            return STALLED
        return M2M if self.count > LONG else BGE

    def is_blocked(self, number: int) -> bool:
        return self.blocked and number == self.count // 2

    @property
    def path(self) -> str:
        return f"{self.model}/soak/{self.number:05d}.{self.form}"

    def record(self, number: int) -> dict[str, Any] | None:
        """One record; None for a line that cannot be read."""
        if self.bad and number % 97 == 5:
            return None
        content = (
            f"upload {self.number} record "
            f"{number}{f', {BLOCKED}' if self.is_blocked(number) else ''}"
        )
        text = {"text": content, "external_reference": f"{self.number}/{number}"}
        return text | ({"target_lang": "es"} if self.model == M2M else {})

    def body(self) -> bytes:
        records = [self.record(number) for number in range(self.count)]
        if self.form == "json":
            return json.dumps({"requests": records}).encode()
        lines = "".join(
            '{"text": \n' if record is None else json.dumps(record) + "\n" for record in records
        )
        return gzip.compress(lines.encode(), 1) if self.form == "jsonl.gz" else lines.encode()


@dataclass
class Seen:
    """What the soak saw."""

    uploads: int = 0
    records: int = 0
    killed: int = 0
    lost: int = 0
    twice: int = 0
    wrong: list[str] = field(default_factory=list)
    unknown: int = 0
    """Records whose batch was submitted twice with an unknown outcome.

    They end `submit_unknown`, as promised.
    """
    again: int = 0
    unknowable: int = 0
    blocked: int = 0
    """Records that the firewall blocked: they end `rejected`, alone."""
    seconds: list[float] = field(default_factory=list)
    """From upload to manifest, of jobs of at most `LONG` records on a model that does not stall."""
    dead: dict[str, list[str]] = field(default_factory=dict)
    memory: dict[str, list[int]] = field(default_factory=dict)
    """By function: bytes that its largest process used, at each look."""

    def verify(self, upload: Upload, manifest: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        """Compare every line of a finished job with what it must be."""
        ids = Counter(line["id"] for line in lines)
        self.uploads += 1
        self.records += upload.count
        if upload.count <= LONG and not upload.stalled and not upload.blocked:
            self.seconds.append(time.time() - upload.dropped_at)
        self.lost += len(set(range(upload.count)) - set(ids))
        self.twice += len(lines) - len(ids)
        told = [batch["unknowable_submits"] for batch in manifest["batches"]]
        self.unknowable += sum(told)
        silent = {
            number
            for batch in manifest["batches"]
            if batch["unknowable_submits"] > 1
            for number in range(batch["first_id"], batch["first_id"] + batch["requests"])
        }
        if manifest["state"] != "completed" or [line["id"] for line in lines] != list(
            range(upload.count)
        ):
            self.wrong.append(
                f"{upload.path}: {manifest['state']}, {len(lines)} of {upload.count} lines"
            )
        for line in lines:
            fault = wrong(line, upload.record(line["id"]), upload.model)
            if upload.is_blocked(line["id"]) and fault == "rejected":
                self.blocked += 1
            elif fault == "submit_unknown" and line["id"] in silent:
                self.unknown += 1
            elif fault:
                self.wrong.append(f"{upload.path} line {line['id']}: {fault}")

    def sample(self, stack: Stack) -> None:
        """Record how much memory the functions' processes use."""
        now: dict[str, int] = {}
        for pid in stack.workers():
            with suppress(OSError, StopIteration, IndexError):
                told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                name = next(one for one in told if one.startswith(b"AWS_LAMBDA_FUNCTION_NAME="))
                function = "submit" if b"Submit" in name else "poll"
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf(
                    "SC_PAGE_SIZE"
                )
                now[function] = max(now.get(function, 0), resident)
        for function, resident in now.items():
            self.memory.setdefault(function, []).append(resident)


def wrong(line: dict[str, Any], record: dict[str, Any] | None, model: str) -> str:
    """What is wrong with a line: an error's code, or `another answer`; empty for the right one."""
    if record is None:
        return (
            ""
            if not line["success"] and line["error"]["code"] == "invalid_json"
            else "a bad line was answered"
        )
    if not line["success"]:
        return line["error"]["code"]
    request = {name: value for name, value in record.items() if name != "external_reference"}
    right = line["external_reference"] == record["external_reference"]
    return "" if right and line["result"] == expected_result(model, request) else "another answer"


def rain(
    stack: Stack, seconds: float, chance: random.Random, seen: Seen, waiting: dict[str, Upload]
) -> None:
    """Cause uploads, faults and deaths for this many seconds."""
    ends = time.monotonic() + seconds
    next_look = time.monotonic()
    next_kill = next_look + 10
    stack.local(
        "behaviour", "PUT", {"latency": 5.0, "latency_kind": "lognormal", "fault_rates": API_FAULTS}
    )
    stack.local("faults", "POST", {"kind": "missing", "share": 0.0003, "first": 1, "times": 0})
    stack.local(
        "faults",
        "POST",
        {"kind": "stuck", "model": STALLED, "seconds": STALLED_SECONDS, "times": 0},
    )
    stack.local(
        "faults",
        "POST",
        {"kind": "html", "on": "submit", "status": 403, "contains": BLOCKED, "times": 0},
    )
    put_unreadable_items(stack)
    stack.break_aws(*AWS_FAULTS)
    for number in range(1_000_000):
        form = chance.choice(["jsonl", "jsonl", "jsonl.gz", "json"])
        count = round(LARGEST ** chance.random())
        kind = chance.random()
        stalled = kind < 0.06
        upload = Upload(
            number,
            min(count, 50) if stalled else count,
            form,
            bad=form != "json" and chance.random() < 0.3,
            stalled=stalled,
            blocked=kind > 0.94,
            dropped_at=time.time(),
        )
        stack.drop(upload.path, upload.body())
        waiting[upload.path] = upload
        next_upload = time.monotonic() + chance.uniform(2, 14)
        while (now := time.monotonic()) < next_upload:
            if now >= ends:
                return
            if now >= next_kill:
                kill_one(stack, chance, seen)
                next_kill = now + chance.uniform(5, 20)
            if now >= next_look:
                look(stack, seen, waiting)
                next_look = now + 5
            time.sleep(0.2)


def put_unreadable_items(stack: Stack) -> None:
    """Put a job and batches that no version can read, due immediately, before all others."""
    for sort_key, work in (
        ("META", "v2#status"),
        ("BATCH#00000000", "v2#submit"),
        ("BATCH#00000001", "v2#poll"),
    ):
        stack.dynamodb.put_item(
            TableName=stack.table,
            Item={
                "pk": {"S": "JOB#unreadable"},
                "sk": {"S": sort_key},
                "work": {"S": work},
                "due_at": {"N": "1"},
                "state": {"S": "no such state"},
            },
        )


def kill_one(stack: Stack, chance: random.Random, seen: Seen) -> None:
    """Kill a process of a function, whatever it is doing."""
    if workers := stack.workers():
        with suppress(ProcessLookupError):  # It may just have ended.
            os.kill(chance.choice(workers), signal.SIGKILL)
            seen.killed += 1


def look(stack: Stack, seen: Seen, waiting: dict[str, Upload]) -> None:
    """Verify the jobs that are over, and record how much memory the functions use."""
    seen.sample(stack)
    for path in list(waiting):
        if found := stack.over(path):
            seen.verify(waiting.pop(path), found[1], stack.lines(found[0]))


def dry(stack: Stack, seen: Seen, waiting: dict[str, Upload]) -> None:
    """Stop all faults, let every job finish, and compare the bill."""
    stack.break_aws()
    stack.local("behaviour", "PUT", {"fault_rates": {}})
    ends = time.monotonic() + FINISH_SECONDS
    while waiting and time.monotonic() < ends:
        look(stack, seen, waiting)
        stack.tick()
        time.sleep(5)
    seen.wrong += [f"{path}: not over after {FINISH_SECONDS} s" for path in waiting]
    seen.lost += sum(upload.count for upload in waiting.values())
    bill = Counter(one["sha256"] for one in stack.bill())
    seen.again = sum(bill.values()) - len(bill)
    if seen.again > seen.unknowable:
        seen.wrong.append(
            f"{seen.again} batches were billed twice, of which the manifests "
            f"count {seen.unknowable}"
        )
    seen.dead = {queue: bodies for queue, bodies in stack.dead_letters().items() if bodies}
    seen.wrong += [
        f"dead in {queue}: {body[:200]}" for queue, bodies in seen.dead.items() for body in bodies
    ]


def memory_told(samples: list[int]) -> str:
    """The most memory a function's processes used, and whether it grew.

    Medians of the first and the last third.
    """
    third = max(len(samples) // 3, 1)
    first, last = (median(part) / 1e6 for part in (samples[:third], samples[-third:]))
    return f"at most {max(samples) / 1e6:.0f} MB, {first:.0f} MB at first, {last:.0f} MB at last"


def main() -> int:
    """Run the soak test, print what it saw, and keep its table."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # So that the stack is stopped too.
    minutes = float(os.environ.get("SOAK_MINUTES") or 30)
    seed = int(os.environ.get("SOAK_SEED") or time.time())
    print(f"{minutes:g} minutes with seed {seed}", flush=True)
    with running_stack(
        aws.Home(ROOT / ".local/soak"), "MaxRequestsPerBatch=200", faults=True
    ) as stack:
        began = time.monotonic()
        seen, waiting = Seen(), {}
        rain(stack, 60 * minutes, random.Random(seed), seen, waiting)
        print(f"{minutes:g} minutes are over; {len(waiting)} jobs may finish", flush=True)
        dry(stack, seen, waiting)
        took = time.monotonic() - began
        calls, broken = stack.broken_calls()
        struck = sum(stack.local("struck").values())
        batches = len(stack.bill())
        return tell(
            seen,
            minutes,
            took,
            {
                "AWS calls, broken": f"{calls:,}, {broken:,}",
                "batches paid, API faults": f"{batches:,}, {struck:,}",
            },
        )


def tell(seen: Seen, minutes: float, took: float, other_side: dict[str, str]) -> int:
    """Print the summary, and keep it in the document if all is well.

    Return the process's exit code.
    """
    waits = (
        f"median {median(seen.seconds):.0f}, at most {max(seen.seconds):.0f}"
        if seen.seconds
        else ""
    )
    memory = "; ".join(
        f"{name}: {memory_told(samples)}" for name, samples in sorted(seen.memory.items())
    )
    row = {
        "minutes": f"{minutes:g}, and {max(took / 60 - minutes, 0):.1f} to finish",
        "uploads": f"{seen.uploads:,}",
        "records": f"{seen.records:,}",
        **other_side,
        "functions killed": f"{seen.killed:,}",
        "records that the firewall blocked, ended `rejected`": f"{seen.blocked:,}",
        "seconds from upload to manifest, small jobs": waits,
        "lost": f"{seen.lost:,}",
        "answered twice": f"{seen.twice:,}",
        "submits beyond one per batch": (
            f"{seen.again:,}, of {seen.unknowable:,} ambiguous ones counted in manifests"
        ),
        "ended `submit_unknown`": f"{seen.unknown:,}",
        "dead letters": f"{sum(map(len, seen.dead.values())):,}",
        "memory of functions": memory,
    }
    for name, value in row.items():
        print(f"{name:50} {value}", flush=True)
    for fault in seen.wrong[:20]:
        print(f"WRONG: {fault}", flush=True)
    if seen.wrong or seen.lost or seen.twice:
        return 1
    write_between_marks(
        "soak", "\n".join(["| | |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in row.items())])
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
