"""The smoke job after a deployment: two records, one of them bad, on the path of every upload.

It proves permissions, events and token at once, and costs less than $0.001.
"""

import time
from datetime import UTC, datetime
from io import BytesIO

from dropbatch.cli.operate import examine
from dropbatch.client.job import Job
from dropbatch.client.progress import Progress
from dropbatch.client.stack import Stack
from dropbatch.client.upload import upload
from dropbatch.core.names import FINAL_JOB_STATES
from dropbatch.errors import Error
from tools.account_stack import DeployError

MODEL = "@cf/baai/bge-small-en-v1.5"
"""The cheapest model that takes batches."""
RECORDS = "".join(
    f'{{"custom_id": "{name}", "method": "POST", "url": "/v1/embeddings", '
    f'"body": {{"model": "{model}", "input": "Is anyone there?"}}}}\n'
    for name, model in (("good", MODEL), ("bad", "@cf/baai/bge-m3"))
).encode()
"""In OpenAI's format, in which Dropbatch itself finds the second record bad: its model is not the
job's. So the job has one batch, whatever the API takes, and its retry.jsonl is the second line.
"""
WANTED = {"total": 2, "succeeded": 1, "failed": 1}
PATIENCE_SECONDS = 900.0
"""The API answers a small batch within minutes."""
LOOK_SECONDS = 2.0
ENDLESS = {"token_refused", "paused"}
"""Reasons to wait that no time ends."""


def run(stack: Stack) -> str:
    path = f"smoke/{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    print(f"\nThe smoke job: two records, one bad, as s3://{stack.bucket}/inbox/{path}", flush=True)
    began = time.monotonic()
    job, wrong = _wait(stack, path)
    manifest = stack.read_json(f"{job.folder}manifest.json") or {}
    retry = stack.read(f"{job.folder}retry.jsonl") or b""
    seen = manifest.get("state"), manifest.get("counts"), retry
    if wrong or seen != ("completed", WANTED, RECORDS.splitlines(keepends=True)[1]):
        failed = (stack.read(f"{job.folder}errors.jsonl") or b"").decode()
        words = wrong or f"The smoke job is {seen[0]}, {seen[1]}. {failed}"
        raise DeployError(f"{words}\n{_doctor(stack)}")
    return (
        f"The smoke job took {time.monotonic() - began:.0f} s: its good record was answered by "
        f"{MODEL}, its bad line is in retry.jsonl.\n"
        f"The results are in s3://{stack.bucket}/{job.folder}"
    )


def _wait(stack: Stack, path: str) -> tuple[Job, str]:
    """Upload the file; return its job when it is over, or what it waits for without end."""
    options = {"model": MODEL, "format": "openai"}
    job = Job.of_upload(stack, upload(stack, BytesIO(RECORDS), f"inbox/{path}", options))
    progress, state = Progress(), "uploaded"
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        job = job.resolved()
        status = job.status()
        state = status["state"]
        progress.show({path: status})
        if state in FINAL_JOB_STATES and stack.read(f"{job.folder}manifest.json"):
            return job, ""
        waiting = status.get("waiting_for") or {"code": ""}
        if waiting["code"] in ENDLESS:
            return job, f"The smoke job waits: {waiting['message']}"
        time.sleep(LOOK_SECONDS)
    where = "not noticed by the submit function" if state == "uploaded" else state
    return job, f"The smoke job is {where} after {PATIENCE_SECONDS / 60:.0f} minutes."


def _doctor(stack: Stack) -> str:
    """What `dropbatch doctor` finds wrong."""
    try:
        found = [f"  {one.name}: {one.message}" for one in examine(stack) if one.level != "ok"]
    except Error as error:
        return f"`dropbatch doctor` could not look: {error}"
    return "\n".join(["`dropbatch doctor` finds:", *(found or ["  nothing else wrong"])])
