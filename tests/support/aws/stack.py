"""The deployed stack for tests: a user's and an operator's actions, and the check of a job."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.config import Config

from dropbatch.core.names import CONTROL_PK
from local import aws
from local.workers_ai import expected_result

MODEL = "@cf/baai/bge-small-en-v1.5"
PATIENT = Config(retries={"total_max_attempts": 4, "mode": "standard"})


def requests(count: int, word: str) -> list[dict[str, Any]]:
    """Records of `MODEL`."""
    return [
        {"text": f"{word} number {n}", "external_reference": f"{word}-{n}"} for n in range(count)
    ]


def as_lines(records: list[dict[str, Any]]) -> bytes:
    """An upload of JSON Lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


@dataclass
class Stack:
    """A running stack, and what a user and an operator do with it."""

    home: aws.Home
    told: dict[str, str]
    """What its `stack.json` says."""

    def __post_init__(self) -> None:
        self.port = int(self.told["endpoint_url"].rpartition(":")[2])
        self.s3, self.sqs = self.client("s3"), self.client("sqs")
        self.bucket = self.told["bucket"]

    def client(self, service: str) -> Any:
        """A client of the local AWS."""
        return aws.client(service, self.port, PATIENT)

    # ── a user ────────────────────────────────────────────────────────────────────────────────────

    def drop(self, path: str, body: bytes | list[dict[str, Any]], **metadata: str) -> None:
        """Upload a file, or records as JSON Lines."""
        content = body if isinstance(body, bytes) else as_lines(body)
        place = {"Bucket": self.bucket, "Key": f"inbox/{path}"}
        self.s3.put_object(**place, Body=content, Metadata=metadata)

    def read(self, key: str) -> bytes:
        content: bytes = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def lines(self, folder: str, name: str = "output.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read(f"{folder}/{name}").split(b"\n")[:-1]]

    def keys(self, prefix: str) -> list[str]:
        found = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for entry in found.get("Contents", [])]

    def names(self, folder: str) -> set[str]:
        return {key.removeprefix(f"{folder}/") for key in self.keys(f"{folder}/")}

    def folders(self, path: str) -> set[str]:
        return {key.rpartition("/")[0] for key in self.keys(f"results/{path}/")}

    def wait(
        self, path: str, seconds: float = 100.0, *, ticks: bool = False
    ) -> tuple[str, dict[str, Any]]:
        """Wait for the only job for a path; return its folder and its manifest.

        Args:
            path: of the upload.
            seconds: how long to wait.
            ticks: whether to start the scheduled function every ten seconds, not each minute.
        """
        began = ticked = time.monotonic()
        while (waited := time.monotonic() - began) < seconds:
            for folder in self.folders(path):
                if "manifest.json" in self.names(folder):
                    return folder, json.loads(self.read(f"{folder}/manifest.json"))
            if ticks and time.monotonic() > ticked + 10:
                ticked = time.monotonic()
                function = {"FunctionName": self.told["poll_function"], "Payload": b"{}"}
                self.client("lambda").invoke(**function, InvocationType="Event")
            time.sleep(0.3 if waited < 10 else 2.0)  # Each look takes 20 ms of a processor.
        told = [self.read(f"{folder}/status.json") for folder in self.folders(path)]
        raise AssertionError(f"no manifest for {path} after {seconds} s: {told}")

    def wait_for_all(
        self, path: str, records: list[dict[str, Any]], seconds: float = 100.0, **how: bool
    ) -> tuple[str, dict[str, Any]]:
        """Wait for the only job for a path: each record has its answer, in order."""
        folder, manifest = self.wait(path, seconds, **how)
        count = len(records)
        assert manifest["state"] == "completed"
        assert manifest["counts"] == {"total": count, "succeeded": count, "failed": 0}
        assert self.lines(folder) == [
            {
                "id": number,
                "external_reference": record["external_reference"],
                "success": True,
                "result": expected_result(MODEL, {"text": record["text"]}),
            }
            for number, record in enumerate(records)
        ]
        return folder, manifest

    # ── an operator ───────────────────────────────────────────────────────────────────────────────

    def control_item(self, name: str) -> dict[str, Any]:
        """A control item of the ledger; empty if there is none."""
        key = {"pk": {"S": CONTROL_PK}, "sk": {"S": name}}
        place = {"TableName": self.told["table"], "Key": key}
        answer = self.client("dynamodb").get_item(**place, ConsistentRead=True)
        found: dict[str, Any] = answer.get("Item", {})
        return found

    def resources(self) -> dict[str, str]:
        """Names by logical ids."""
        formation = self.client("cloudformation")
        found = formation.describe_stack_resources(StackName=aws.STACK_NAME)["StackResources"]
        return {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in found}

    def dead_letters(self) -> list[str]:
        """The messages in the dead-letter queues; they stay there."""
        urls = [url for name, url in self.resources().items() if name.endswith("DeadLetterQueue")]
        look = {"MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
        found = [self.sqs.receive_message(QueueUrl=url, **look) for url in urls]
        return [message["Body"] for one in found for message in one.get("Messages", [])]

    def workers(self) -> list[int]:
        """Process ids of the functions."""
        service = self.home.service("aws").running()
        assert service is not None
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = status.read_text().rpartition(")")[2].split()
                command = status.with_name("cmdline").read_bytes()
            except OSError:
                continue
            if words[1] == str(service["pid"]) and b"_worker.py" in command:
                found.append(int(status.parent.name))
        return found

    # ── the API and the proxy ─────────────────────────────────────────────────────────────────────

    def local(self, path: str, method: str = "GET", body: object = None) -> Any:
        """Call a local route of the local Workers AI: its bill, its switches."""
        base = self.told["workers_ai_base_url"].removesuffix("/client/v4")
        return _ask(f"{base}/_local/{path}", method, body)

    def bill(self) -> list[dict[str, Any]]:
        """Every batch that the API accepted, whether or not a job knows it."""
        accepted: list[dict[str, Any]] = self.local("accepted")
        return accepted

    def break_aws(self, *rules: dict[str, Any]) -> None:
        """Make a share of the functions' AWS calls fail; without rules, none."""
        _ask(f"{self.told['fault_proxy_url']}/_faults", "PUT", rules)

    def broken_calls(self) -> tuple[int, int]:
        """The number of the functions' AWS calls so far, and how many of them the proxy broke."""
        told = _ask(f"{self.told['fault_proxy_url']}/_faults", "GET", None)
        return told["calls"], told["broken"]


def _ask(url: str, method: str, body: object) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method)) as reply:
        return json.load(reply)


@contextmanager
def running_stack(folder: str, parameters: str = "", *, faults: bool = False) -> Iterator[Stack]:
    """Run a stack on free ports in a folder of its own.

    Args:
        folder: its name, below `.local`.
        parameters: the template's parameters, as `Name=value Other=value`.
        faults: whether the functions' AWS calls can be broken.
    """
    home = aws.Home(aws.ROOT / ".local" / folder)
    aws.down(home)
    asked = {"LOCAL_PORT": str(aws.free_port()), "LOCAL_PARAMETERS": parameters}
    try:
        made = Stack(home, aws.up({**asked, "LOCAL_FAULTS": "1" if faults else ""}, home))
        made.local("behaviour", "PUT", {"embedder": "hash"})
        yield made
    finally:
        aws.down(home)
