"""Every command of the AWS CLI in the documents, run by the real AWS CLI on the deployed stack."""

import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from local import aws
from tests.support.aws.stack import running_stack
from tests.support.shipped import ROOT

# ── the commands of the AWS CLI in the documents, as a reader would run them ──────────────────────


_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SHELL = {"", "sh"}
_INLINE = re.compile(r"`(aws [a-z][^`]*)`")
_COMMAND = re.compile(r"(?<![\w-])aws [a-z0-9]+ ")
_SIGNS_IN = "aws sso login"
"""Opens a browser; and the first version of the AWS CLI has no such command."""
_NAMES = "With the AWS CLI"
"""The section of docs/operations.md whose first block gives the names that the others use."""


class Lines(NamedTuple):
    """Commands that belong together.

    Attributes:
        where: the document, and the first line.
        script: for bash.
    """

    where: str
    script: str


def documents() -> list[Path]:
    """Everything that a reader may copy commands from."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/README.md"]


def aws_lines() -> list[Lines]:
    """Every block, and every command in a text, that calls the AWS CLI."""
    found = []
    for path in documents():
        text = path.read_text("utf-8")
        blocks = [
            (one.start(2), _script(one[2])) for one in _BLOCK.finditer(text) if one[1] in _SHELL
        ]
        outside = _BLOCK.sub(lambda one: " " * len(one[0]), text)
        blocks += [
            (one.start(1), one[1].replace("\n", " "))
            for one in _INLINE.finditer(outside)
            if " " in one[1][4:]
        ]
        for at, script in sorted(blocks):
            if _COMMAND.search(script) and "()" not in script and script != _SIGNS_IN:
                line = text.count("\n", 0, at) + 1
                found.append(Lines(f"{path.relative_to(ROOT)}:{line}", script))
    return found


def names() -> str:
    """The block that gives the names which the others use."""
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    return str(_BLOCK.findall(text[text.index(f"## {_NAMES}") :])[0][1])


def _script(block: str) -> str:
    """The commands of a block."""
    if not re.search(r"^\$ ", block, re.MULTILINE):
        return block
    kept: list[str] = []
    goes_on = False
    for line in block.splitlines():
        if line.startswith("$ ") or goes_on:
            kept.append(line.removeprefix("$ "))
            is_open = _count(kept, r"; do$") > _count(kept, r"^\s*done$")
            goes_on = is_open or kept[-1].endswith(("\\", "|", "&&"))
    return "\n".join(kept) + "\n"


def _count(lines: list[str], pattern: str) -> int:
    return sum(bool(re.search(pattern, line)) for line in lines)


# ── every command of the AWS CLI in the documents, run by the real AWS CLI on the de ──────────────


pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

COMMANDS = aws.ROOT / ".local/aws/bin"
BGE = "@cf/baai/bge-small-en-v1.5"
BAD = f"{BGE}/reviews/july.jsonl"
"""A job with a record that fails, and so with a retry file."""
LOST = "inbox/dead/letter.jsonl"
SOURCE = "team-exports"
MACHINE = json.dumps({"StartAt": "end", "States": {"end": {"Type": "Succeed"}}})
INSTEAD = {
    "results/<...>/retry.jsonl": "$RETRY",
    '\\"BATCH#00000000\\"': '\\"META\\"',  # Of the batch of a job that is over, nothing is due.
    # That of a stack with a source bucket.
}
"""What stands for something else in the documents, or needs another stack."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a script in a folder with the files that the documents name."""
    folder = tmp_path_factory.mktemp("reader")
    with running_stack("test-aws-lines") as running:
        s3, bucket = running.s3, running.bucket
        for name, content in {
            "july.jsonl": '{"text":"x"}\n',
            "july.csv": "text\nx\n",
            "token.txt": "local-token",
        }.items():
            (folder / name).write_text(content)
        shutil.copytree(ROOT / "examples", folder / "examples")
        s3.put_object(
            Bucket=bucket,
            Key=f"inbox/{BAD}",
            Body=b'{"text":"x"}\n',
            Metadata={"max-cost": "0.000000001"},
        )
        s3.put_object(Bucket=bucket, Key=LOST, Body=b"{}\n", Metadata={"model": BGE})
        s3.create_bucket(Bucket=SOURCE)
        s3.put_object(Bucket=SOURCE, Key="key", Body=b"{}\n")
        trusts = json.dumps({"Version": "2012-10-17", "Statement": []})
        role = running.client("iam").create_role(RoleName="waits", AssumeRolePolicyDocument=trusts)[
            "Role"
        ]["Arn"]
        machine = running.client("stepfunctions")
        waits = machine.create_state_machine(name="waits", definition=MACHINE, roleArn=role)
        variables = {
            "STATE_MACHINE_ARN": waits["stateMachineArn"],
            "PATH": f"{COMMANDS}:{os.environ['PATH']}",
            "HOME": str(folder),
            "AWS_ENDPOINT_URL": s3.meta.endpoint_url,
            "AWS_PAGER": "",
            "SOURCE": SOURCE,
            **aws.CREDENTIALS,
        }
        preamble = f"""set -eo pipefail
aws() {{ command aws --endpoint-url $AWS_ENDPOINT_URL "$@"; }}
{names()}
API_TOKEN_SECRET_ARN=$(out ApiTokenSecretArn)
until RECORD=$(aws s3 ls --recursive "s3://$BUCKET/results/{BAD}/" | grep -o 'results/.*/retry.jsonl'); do sleep 1; done
RETRY=$RECORD JOB=$(basename "$(dirname "$RECORD")")
EVENT='{{"Records":[{{"s3":{{"bucket":{{"name":"b"}},"object":{{"key":"k","versionId":"v"}}}}}}]}}'
aws sqs send-message --queue-url $(out UploadDeadLetterQueueUrl) --message-body "$EVENT" > /dev/null
aws sqs send-message --queue-url $(out PollDeadLetterQueueUrl) --message-body "$EVENT" > /dev/null
"""  # noqa: E501

        def run(script):
            for stands, instead in INSTEAD.items():
                script = script.replace(stands, instead)
            return subprocess.run(
                ["/bin/bash", "-c", preamble + script],
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )

        yield run


@pytest.mark.parametrize("lines", aws_lines(), ids=lambda lines: lines.where)
def test_command_of_documents_works(shell, lines):
    done = shell(lines.script)

    assert (done.returncode, "error" in done.stderr.lower()) == (0, False), (
        f"{lines.script}\n{done.stdout}{done.stderr}"
    )


@contextmanager
def loader():
    """An API that keeps what it is sent; yields its address and that."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers["x-api-key"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/jobs", received
    finally:
        server.shutdown()
        server.server_close()


def test_events_of_the_example_arrive(shell):
    """In the queue and at the API."""
    with loader() as (url, received):
        role = "arn:aws:iam::000000000000:role/loader"
        made = shell(
            f"export -f aws; LOADER_URL={url} LOADER_KEY=secret ROLE_ARN={role} bash "
            "examples/job-events.sh"
        )
        assert made.returncode == 0, made.stderr
        found = shell(
            f"aws s3 cp july.jsonl s3://$BUCKET/inbox/{BGE}/events/july.jsonl > /dev/null\n"
            "QUEUE=$(aws sqs get-queue-url --queue-name job-events --query QueueUrl "
            "--output text)\n"
            "until BODY=$(aws sqs receive-message --queue-url $QUEUE --wait-time-seconds "
            "20 --query 'Messages[0].Body' "
            '--output text) && [ "$BODY" != None ]; do :; done; echo "$BODY"'
        )
        detail = json.loads(found.stdout)["detail"]
        assert (detail["state"], detail["source"]["key"]) == (
            "completed",
            f"inbox/{BGE}/events/july.jsonl",
        )
        deadline = time.monotonic() + 30
        while not received and time.monotonic() < deadline:
            time.sleep(0.5)
    ((key, event),) = received
    assert (key, event["detail"]["job_id"]) == ("secret", detail["job_id"])


def test_metadata_of_documents_arrives(shell):
    """A template with braces, which the AWS CLI's shorthand takes for its own."""
    (lines,) = [one for one in aws_lines() if "template" in one.script]
    shell(lines.script)

    found = shell(
        "aws s3api head-object --bucket $BUCKET --key inbox/reviews/july.csv --query Metadata"
    )

    assert json.loads(found.stdout)["template"] == "Translate to Spanish: {text}"
