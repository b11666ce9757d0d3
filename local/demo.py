"""`make demo`: a file of real texts goes in, every answer comes out and is checked.

It starts its own stack beside whatever else runs here, and always stops it at the end; the results
stay in .local/demo/results. local.aws runs the local services; the vectors come from the local
Workers AI.

Environment: QUERY, the text to search the records for; TRANSPORT, how the functions reach the local
Workers AI: rest, or worker (the Worker of `worker/` in workerd, which needs Node.js).
"""

import gzip
import html
import json
import os
import re
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from operator import mul
from pathlib import Path
from typing import Any

import botocore

from dropbatch.client.client import Client
from dropbatch.client.job import Job
from dropbatch.client.stack import ENVIRONMENT
from dropbatch.errors import Error
from local import aws, worker
from local.processes import locked, stopped_at_end
from local.workers_ai import expected_result

HOME = aws.Home(aws.ROOT / ".local/demo")
RESULTS = HOME.state / "results"
MODEL = "@cf/baai/bge-small-en-v1.5"
PATH = f"{MODEL}/demo/aws-operations.jsonl"
DIMENSION = 384
QUERY = "change the password of a user"
LONGEST_TEXT = 200
"""A record has at most this many characters of a description."""
PATIENCE_SECONDS = 240.0

# fmt: off
SERVICES = (
    "athena", "autoscaling", "cloudformation", "cloudfront", "cloudtrail", "cloudwatch",
    "cognito-idp", "dynamodb", "ec2", "ecr", "ecs", "efs", "eks", "elasticache", "elbv2", "events",
    "firehose", "glacier", "iam", "kinesis", "kms", "lambda", "logs", "organizations", "rds",
    "route53", "s3", "secretsmanager", "sns", "sqs", "ssm", "stepfunctions", "sts", "wafv2",
)
# fmt: on


class DemoError(Exception):
    """The demo did not finish, or its results are wrong; the message is for the user."""


def _first_sentences(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    short = text[:LONGEST_TEXT]
    sentence = short.rfind(". ") + 1
    return short[:sentence] if sentence > LONGEST_TEXT // 4 else short.rpartition(" ")[0]


def records() -> Iterator[dict[str, str]]:
    """The beginnings of botocore's descriptions of AWS operations, with the operations' names."""
    data = Path(botocore.__file__).parent / "data"
    for service in SERVICES:
        newest = max(path for path in (data / service).iterdir() if path.is_dir())
        model = json.loads(gzip.decompress((newest / "service-2.json.gz").read_bytes()))
        for name, operation in sorted(model["operations"].items()):
            text = html.unescape(re.sub(r"<[^>]+>", " ", operation.get("documentation", "")))
            if words := " ".join(text.split()):
                yield {"text": _first_sentences(words), "external_reference": f"{service}.{name}"}


def run_job(wanted: list[dict[str, str]]) -> tuple[Job, float]:
    """Submit the records as a user's program does, and wait; the job, and how long it took."""
    os.environ[ENVIRONMENT] = str(HOME.stack_file)
    began = time.monotonic()
    job = Client(local=True).submit(wanted, name=PATH)
    print(f"  s3://{job.stack.bucket}/inbox/{PATH}", flush=True)
    job.wait(timeout=PATIENCE_SECONDS)
    return job, time.monotonic() - began


def check(
    workers_ai: str, wanted: list[dict[str, str]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Check the result files and the bill; return the manifest and the lines of the output."""
    manifest = json.loads((RESULTS / "manifest.json").read_bytes())
    lines = [json.loads(line) for line in (RESULTS / "output.jsonl").read_bytes().splitlines()]
    whole = {"total": len(wanted), "succeeded": len(wanted), "failed": 0}
    if (manifest["state"], manifest["counts"]) != ("completed", whole):
        error = manifest["error"] or {"message": f"{manifest['state']}, {manifest['counts']}"}
        raise DemoError(f"The job did not complete: {error['message']}")
    if len(lines) != len(wanted):
        raise DemoError(f"The output has {len(lines):,} lines for {len(wanted):,} records.")
    for number, (line, record) in enumerate(zip(lines, wanted, strict=True)):
        told = (line["id"], line["external_reference"], line["success"])
        is_right = told == (number, record["external_reference"], True)
        if not is_right or len(line["result"]["data"][0]) != DIMENSION:
            raise DemoError(f"Line {number + 1} of the output is not record {number}'s answer.")
    address = f"{workers_ai.removesuffix('/client/v4')}/_local/accepted"
    with urllib.request.urlopen(address) as reply:  # noqa: S310 - loopback
        billed = len(json.load(reply))
    if billed != len(manifest["batches"]):
        raise DemoError(f"{billed} batches were billed; the manifest has another number.")
    return manifest, lines


def nearest(query: str, lines: list[dict[str, Any]], count: int) -> list[tuple[float, int]]:
    """Cosine similarity and id of the records nearest to a text. All vectors have length 1."""
    (vector,) = expected_result(MODEL, {"text": query}, embedder_choice="words")["data"]
    scored = [(sum(map(mul, vector, *line["result"]["data"])), line["id"]) for line in lines]
    return sorted(scored, reverse=True)[:count]


def _tell(manifest: dict[str, Any]) -> None:
    """Print the results, that they were checked, and how many calls they took."""
    print("\nEvery record has its line, in order, none failed: checked against what went in.")
    for name in ("output.jsonl", "manifest.json"):
        path = RESULTS / name
        print(f"  {path.relative_to(aws.ROOT)} ({path.stat().st_size:,} bytes)")
    print("The first lines of output.jsonl, shortened:")
    with (RESULTS / "output.jsonl").open() as output:
        for line in islice(output, 3):
            print(f"  {line[:107]} ...")
    print(f"manifest.json: {manifest['state']}, counts {json.dumps(manifest['counts'])}")
    print("Here no model answered: vectors are hashes of words, and tokens are estimates.")
    print(calls_of(manifest))


def calls_of(manifest: dict[str, Any]) -> str:
    """How many calls of Workers AI the batches took, and what completion events save of them."""
    batches, is_told = manifest["batches"], manifest["events"] == "used"
    calls = sum(1 + one["polls"] for one in batches)
    how = "Cloudflare's completion events said when to ask" if is_told else "by polls alone"
    each = f"{calls / len(batches):.1f} each"
    return f"{len(batches)} batches took {calls} calls of Workers AI, {each}: {how}."


def _tell_nearest(query: str, found: list[tuple[float, int]], wanted: list[dict[str, str]]) -> None:
    print(f'\nNearest to "{query}" (cosine):')
    for score, number in found:
        record = wanted[number]
        text = record["text"] if len(record["text"]) <= 72 else record["text"][:69] + "..."
        print(f"  {score:.3f}  {record['external_reference']:34} {text}")


def _transport(name: str, port: int) -> str:
    """Start what the transport needs; return the stack's parameters for it."""
    if name in ("", "rest"):
        return ""
    if name != "worker":
        raise DemoError(f"TRANSPORT is {name!r}; it must be rest or worker.")
    worker.install()
    own, api = aws.free_port(), f"http://127.0.0.1:{port + 1}/client/v4"
    worker.start(HOME.state, own, api, aws.LOCAL_ACCOUNT, aws.LOCAL_TOKEN)
    print("Batches go through the Worker of worker/, which runs in workerd.", flush=True)
    return f"Transport=worker WorkerUrl=http://127.0.0.1:{own}"


def run(query: str, transport: str = "") -> None:
    """Start the stack, run one job, check its results, search them."""
    wanted = list(records())
    print(f"{len(wanted):,} records: what the operations of {len(SERVICES)} AWS services are for.")
    print(f"The words are those of botocore {version('botocore')}: Apache License 2.0,")
    print("copyright Amazon.com, Inc. or its affiliates.", flush=True)
    began = time.monotonic()
    print("Starting a local AWS and a local Workers AI ...", flush=True)
    port = aws.free_port()
    parameters = _transport(transport, port)
    workers_ai = aws.up({"LOCAL_PORT": str(port), "LOCAL_PARAMETERS": parameters}, HOME)[
        "workers_ai_base_url"
    ]
    aws.put_secret(port, "SharedSecret", worker.LOCAL_SECRET)
    print(
        f"The stack of template.yaml is up ({time.monotonic() - began:.1f} s). Dropping the file:"
    )
    job, seconds = run_job(wanted)
    shutil.rmtree(RESULTS, ignore_errors=True)
    job.download(RESULTS)
    manifest, lines = check(workers_ai, wanted)
    print(f"Drop to manifest: {seconds:.1f} s.")
    _tell(manifest)
    _tell_nearest(query, nearest(query, lines, 5), wanted)


def _stop() -> None:
    aws.down(HOME)
    worker.stop(HOME.state)


def main() -> int:
    HOME.state.mkdir(parents=True, exist_ok=True)
    # After another `make demo`.
    with locked(HOME.state / "demo.lock"), stopped_at_end(_stop, b"\nStopping ...\n"):
        try:
            run(os.environ.get("QUERY") or QUERY, os.environ.get("TRANSPORT", ""))
        except (aws.LocalAwsError, DemoError, Error) as error:
            logs = HOME.logs.relative_to(aws.ROOT)
            print(f"\n{error}\nLogs are in {logs}/.", file=sys.stderr)
            return 1
    print("\nEverything that was started has been stopped; the results stay where they are.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
