"""The smoke job after a deployment.

Two records, one of them bad, on the path that every upload takes.

It proves permissions, events and token at once, and costs less than $0.001.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any

from dropbatch.cli.operate import examine
from dropbatch.client.job import Job
from dropbatch.client.progress import Progress
from dropbatch.client.upload import upload
from dropbatch.core.names import FINAL_JOB_STATES
from dropbatch.errors import Error
from tools.account_stack import DeployError

if TYPE_CHECKING:
    from dropbatch.client.stack import Stack

MODEL = "@cf/baai/bge-small-en-v1.5"
"""The cheapest model that takes batches."""
RECORDS = "".join(
    f'{{"custom_id": "{name}", "method": "POST", "url": "/v1/embeddings", '
    f'"body": {{"model": "{model}", "input": "Is anyone there?"}}}}\n'
    for name, model in (("good", MODEL), ("bad", "@cf/baai/bge-m3"))
).encode()
"""In OpenAI's format, in which Dropbatch itself finds the second record bad.

Its model is not the job's. So the job has
one batch, whatever the API takes, and its retry.jsonl is the second line.
"""
PATIENCE_SECONDS = 900.0
"""The API answers a small batch within minutes."""
LOOK_SECONDS = 2.0
ENDLESS = {"token_refused", "paused"}
"""Reasons to wait that no time ends."""


def run(stack: Stack) -> str:
    """Run the job; return what was seen.

    Raises:
        DeployError: the job did not end as it must; with what the doctor finds.
        Error: AWS denied a call or could not be reached.
    """
    path = f"smoke/{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    print(
        f"\nThe smoke job: two records, one of them bad, as s3://{stack.bucket}/inbox/{path}",
        flush=True,
    )
    began = time.monotonic()
    job, manifest = _wait(stack, path)
    retry = stack.read(f"{job.folder}retry.jsonl")
    wanted = {"total": 2, "succeeded": 1, "failed": 1}
    if (
        manifest["state"] != "completed"
        or manifest["counts"] != wanted
        or retry != RECORDS.splitlines(keepends=True)[1]
    ):
        error = (manifest.get("error") or {}).get("message") or _errors(stack, job)
        raise DeployError(
            _with_doctor(
                stack, f"The smoke job is {manifest['state']}, {manifest['counts']}. {error}"
            )
        )
    return (
        f"The smoke job took {time.monotonic() - began:.0f} s: its good record was "
        f"answered by {MODEL}, its bad "
        f"line is in retry.jsonl.\nThe results are in s3://{stack.bucket}/{job.folder}"
    )


def _wait(stack: Stack, path: str) -> tuple[Job, dict[str, Any]]:
    """Upload the file; return its job and its manifest when it is over.

    Raises:
        DeployError: it is not over in time, or waits for something that no time ends.
    """
    job = Job.of_upload(
        stack,
        upload(stack, BytesIO(RECORDS), f"inbox/{path}", {"model": MODEL, "format": "openai"}),
    )
    progress = Progress()
    status: dict[str, Any] = {"state": "uploaded"}
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        job = job.resolved()
        status = job.status()
        progress.show({path: status})
        if status["state"] in FINAL_JOB_STATES and (
            manifest := stack.read_json(f"{job.folder}manifest.json")
        ):
            return job, manifest
        waiting = status.get("waiting_for") or {"code": ""}
        if waiting["code"] in ENDLESS:
            raise DeployError(_with_doctor(stack, f"The smoke job waits: {waiting['message']}"))
        time.sleep(LOOK_SECONDS)
    is_noticed = status["state"] != "uploaded"
    where = status["state"] if is_noticed else "not noticed by the submit function"
    raise DeployError(
        _with_doctor(stack, f"The smoke job is {where} after {PATIENCE_SECONDS / 60:.0f} minutes.")
    )


def _errors(stack: Stack, job: Job) -> str:
    """The codes and messages of the failed records; one of them is expected."""
    lines = map(json.loads, (stack.read(f"{job.folder}errors.jsonl") or b"").splitlines())
    return "; ".join(f"{one['error']['code']}: {one['error']['message']}" for one in lines)


def _with_doctor(stack: Stack, what: str) -> str:
    """A message, and what `dropbatch doctor` finds wrong."""
    try:
        found = [one for one in examine(stack) if one.level != "ok"]
    except Error as error:
        return f"{what}\n`dropbatch doctor` could not look: {error}"
    lines = [f"  {one.name}: {one.message}" for one in found] or ["  nothing else wrong"]
    return "\n".join([what, "`dropbatch doctor` finds:", *lines])
