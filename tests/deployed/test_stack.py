"""The deployed stack.

Template.yaml on a local AWS, real queues, real function processes, a real HTTP API.

The stack is this run's own, in a folder and on ports of its own, so that one left running by `make
up` is not met. What the whole path does under every fault is proved in tests/journeys, where time
can be moved; here it is seen to work.
"""

import gzip
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.aws.stack import MODEL, as_lines, requests, running_stack

pytestmark = pytest.mark.stack


@pytest.fixture(scope="session")
def stack():
    with running_stack("test", "MaxRequestsPerBatch=400") as made:
        yield made


def test_thousands_of_lines_answer_their_requests(stack):
    records = requests(2_000, "day")
    before = len(stack.bill())
    stack.drop("everyday/day.jsonl.gz", gzip.compress(as_lines(records)), model=MODEL)

    folder, _ = stack.wait_for_all("everyday/day.jsonl.gz", records)

    assert [one["count"] for one in stack.bill()[before:]] == [400] * 5
    assert {
        "options.json",
        "output.jsonl",
        "manifest.json",
        "status.json",
    } == stack.names(folder)


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("a.csv", b"a,b\n1,2\n", "bad_options"),
        ("a.gz", b"\x1f\x8b\x08" + b"\xff" * 100, "broken_archive"),
    ],
)
def test_failing_upload_is_over_in_five_seconds(stack, name, body, code):
    """Warm: another upload of the same kind has just failed."""
    for path in (f"at once/warm-{name}", f"at once/{name}"):
        began = time.monotonic()
        stack.drop(path, body, model=MODEL)
        _, manifest = stack.wait(path)
        seconds = time.monotonic() - began

    assert (manifest["state"], manifest["error"]["code"]) == ("failed", code)
    assert seconds < 5, f"{seconds:.1f} s from the upload to its manifest"


def test_odd_key_and_bad_lines_among_good_ones(stack):
    path = f"{MODEL}/naïve folder/50% off + café (1).jsonl"
    good = requests(4, "odd")
    one, two, three, four = as_lines(good).splitlines()
    body = b"\xef\xbb\xbf" + b"\r\n".join(
        [
            one,
            b'{"text": ',
            b"",
            two,
            b"  \t",
            b'["no object"]',
            three,
            b'{"text": "caf\xe9"}',
            four,
        ]
    )
    stack.drop(path, body)

    folder, manifest = stack.wait(path)

    assert folder.startswith(f"results/{path}/")
    assert manifest["source"]["key"] == f"inbox/{path}"
    assert manifest["counts"] == {"total": 7, "succeeded": 4, "failed": 3}
    output = stack.lines(folder)
    assert [line["id"] for line in output] == list(range(7))
    assert [line["external_reference"] for line in output if line["success"]] == [
        f"odd-{n}" for n in range(4)
    ]
    assert {line["id"]: line["error"]["code"] for line in output if not line["success"]} == {
        1: "invalid_json",
        3: "not_an_object",
        5: "invalid_utf8",
    }
    errors = stack.lines(folder, "errors.jsonl")
    assert [(line["line"], line["request"]) for line in errors] == [
        (2, '{"text": '),
        (6, ["no object"]),
        (8, '{"text": "caf\ufffd"}'),
    ]
    assert "retry.jsonl" not in stack.names(folder)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="function processes are found in /proc"
)
def test_killed_functions_lose_and_repeat_nothing(stack):
    records = requests(10_000, "kill")
    path = f"{MODEL}/kill.jsonl"
    before = len(stack.bill())
    chance = random.Random(20_261_121)
    stack.drop(path, records)
    # A function killed before its job exists begins 15 minutes later.
    while not stack.folders(path):
        time.sleep(0.05)
    killed = 0
    ends = time.monotonic() + 40
    while time.monotonic() < ends:
        time.sleep(chance.uniform(0.3, 1.2))
        if workers := stack.workers():
            with suppress(ProcessLookupError):  # It may have ended by itself.
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed += 1

    _, manifest = stack.wait_for_all(path, records, seconds=1_000)

    assert killed >= 5
    bill = Counter(one["sha256"] for one in stack.bill()[before:])
    again = sum(times - 1 for times in bill.values())
    told = sum(batch["unknowable_submits"] for batch in manifest["batches"])
    assert again <= told, (
        f"{again} batches billed twice after {killed} deaths, {told} ambiguous in the manifest"
    )


def test_stack_pauses_and_job_is_cancelled(stack):
    def put(name, word):
        stack.s3.put_object(Bucket=stack.bucket, Key=f"control/{name}", Body=word)

    def wait_until(holds):
        ends = time.monotonic() + 100
        while not holds():
            assert time.monotonic() < ends
            time.sleep(1.0)

    def held_since():
        return float(stack.control_item("STACK").get("held_since", {}).get("N", "0"))

    before = len(stack.bill())
    put("stack", b"pause")
    wait_until(held_since)
    for name in ("goes on", "cancelled"):
        stack.drop(f"control/{name}.jsonl", requests(3, name), model=MODEL)
    wait_until(lambda: stack.folders("control/cancelled.jsonl"))
    (folder,) = stack.folders("control/cancelled.jsonl")
    put(f"jobs/{folder.rpartition('/')[2]}", b"cancel\n")

    folder, manifest = stack.wait("control/cancelled.jsonl")

    assert (manifest["state"], manifest["counts"]["failed"]) == ("cancelled", 3)
    assert {line["error"]["code"] for line in stack.lines(folder)} == {"cancelled"}
    assert len(stack.bill()) == before
    put("stack", b"run")
    folder, manifest = stack.wait("control/goes on.jsonl", 150)
    assert manifest["state"] == "completed"
    assert len(stack.bill()) == before + 1
