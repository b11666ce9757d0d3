"""The deployed stack for tests.

A user's and an operator's actions, and the verification of a job.
"""

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

from local import aws
from local.workers_ai import expected_result

MODEL = "@cf/baai/bge-small-en-v1.5"


@dataclass
class Stack:
    """A running stack, and what a user and an operator do with it."""

    home: aws.Home
    s3: Any
    sqs: Any
    functions: Any
    bucket: str
    queues: dict[str, str]
    """URLs by the name of their output, without `Url`: `UploadQueue`, `UploadDeadLetterQueue` …"""
    poll_function: str
    dynamodb: Any
    table: str
    api: str
    proxy: str

    # ── a user ────────────────────────────────────────────────────────────────────────────────────

    def drop(self, path: str, body: bytes, **metadata: str) -> str:
        """Upload a file; return the version that S3 gave it."""
        answer = self.s3.put_object(
            Bucket=self.bucket, Key=f"inbox/{path}", Body=body, Metadata=metadata
        )
        return str(answer["VersionId"])

    def read(self, key: str) -> bytes:
        content: bytes = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def lines(self, folder: str, name: str = "output.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read(f"{folder}/{name}").split(b"\n")[:-1]]

    def names(self, folder: str) -> set[str]:
        found = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=f"{folder}/")
        return {entry["Key"].removeprefix(f"{folder}/") for entry in found.get("Contents", [])}

    def folders(self, path: str) -> set[str]:
        found = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=f"results/{path}/")
        return {entry["Key"].rpartition("/")[0] for entry in found.get("Contents", [])}

    def over(self, path: str) -> tuple[str, dict[str, Any]] | None:
        """The folder and the manifest of the only job for a path, if it is over."""
        for folder in self.folders(path):
            if "manifest.json" in self.names(folder):
                return folder, json.loads(self.read(f"{folder}/manifest.json"))
        return None

    def wait(
        self, path: str, seconds: float = 100.0, every: float = 0.0
    ) -> tuple[str, dict[str, Any]]:
        """Wait for the only job for a path; return its folder and its manifest.

        Args:
            path: of the upload.
            seconds: how long to wait.
            every: seconds between two looks, where the time of the end is measured; 0: as often as
                a test needs.
        """
        began = time.monotonic()
        while (waited := time.monotonic() - began) < seconds:
            if found := self.over(path):
                return found
            # Each look takes 20 ms of a processor.
            time.sleep(every or (0.3 if waited < 10 else 2.0))
        told = [self.read(f"{folder}/status.json") for folder in self.folders(path)]
        raise AssertionError(f"no manifest for {path} after {seconds} s: {told}")

    # ── an operator ───────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Start the scheduled function, without waiting for it."""
        self.functions.invoke(
            FunctionName=self.poll_function, InvocationType="Event", Payload=b"{}"
        )

    def dead_letters(self) -> dict[str, list[str]]:
        """The messages in each dead-letter queue; they stay there."""
        found = {}
        for name, url in self.queues.items():
            if name.endswith("DeadLetterQueue"):
                answer = self.sqs.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0
                )
                found[name] = [message["Body"] for message in answer.get("Messages", [])]
        return found

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
        return _ask(f"{self.api}/_local/{path}", method, body)

    def bill(self) -> list[dict[str, Any]]:
        """Every batch that the API accepted, whether or not a job knows it."""
        accepted: list[dict[str, Any]] = self.local("accepted")
        return accepted

    def break_aws(self, *rules: dict[str, Any]) -> None:
        """Make a share of the functions' AWS calls fail; without rules, none."""
        _ask(f"{self.proxy}/_faults", "PUT", rules)

    def broken_calls(self) -> tuple[int, int]:
        """The number of the functions' AWS calls so far, and how many of them the proxy broke."""
        told = _ask(f"{self.proxy}/_faults", "GET", None)
        return told["calls"], sum(told["struck"].values())


def _ask(url: str, method: str, body: object) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method)) as reply:
        return json.load(reply)


@contextmanager
def running_stack(home: aws.Home, parameters: str, *, faults: bool = False) -> Iterator[Stack]:
    """Run a stack on free ports in its own folder.

    Args:
        home: its folder.
        parameters: the template's parameters, as `Name=value Other=value`.
        faults: whether the functions' AWS calls can be broken.
    """
    aws.down(home)
    try:
        told = aws.up(
            {
                "LOCAL_PORT": str(aws.free_port()),
                "LOCAL_PARAMETERS": parameters,
                "LOCAL_FAULTS": "1" if faults else "",
            },
            home,
        )

        port = int(told["endpoint_url"].rpartition(":")[2])
        config = Config(retries={"total_max_attempts": 4, "mode": "standard"})

        def client(service: str) -> Any:
            return aws.client(service, port, config)

        outputs = client("cloudformation").describe_stacks(StackName=aws.STACK_NAME)["Stacks"][0][
            "Outputs"
        ]
        values = {one["OutputKey"]: one["OutputValue"] for one in outputs}
        queues = {
            name.removesuffix("Url"): value
            for name, value in values.items()
            if name.endswith("QueueUrl")
        }
        made = Stack(
            home,
            client("s3"),
            client("sqs"),
            client("lambda"),
            told["bucket"],
            queues,
            told["poll_function"],
            client("dynamodb"),
            values["TableName"],
            told["workers_ai_base_url"].removesuffix("/client/v4"),
            told.get("fault_proxy_url", ""),
        )
        made.local("behaviour", "PUT", {"embedder": "hash"})
        yield made
    finally:
        aws.down(home)


def requests(count: int, word: str) -> list[dict[str, Any]]:
    return [
        {"text": f"{word} number {n}", "external_reference": f"{word}-{n}"} for n in range(count)
    ]


def as_lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def answer_to(number: int, record: dict[str, Any]) -> dict[str, Any]:
    """The output line of a record that succeeds."""
    return {
        "id": number,
        "external_reference": record["external_reference"],
        "success": True,
        "result": expected_result(MODEL, {"text": record["text"]}),
    }


def assert_every_line_answers_its_request(
    lines: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    assert len(lines) == len(records)
    for number, (line, record) in enumerate(zip(lines, records, strict=True)):
        assert line == answer_to(number, record)
