"""AWS throttles, fails, is slow and closes connections while a job runs on the deployed stack.

It is complete.

A proxy between the functions and the local AWS answers a share of their calls with AWS's errors.
"""

import os
import signal
import time
from collections import Counter

import pytest

from tests.support.aws.stack import MODEL, requests, running_stack
from tests.support.fault_table import note

pytestmark = [pytest.mark.faults, pytest.mark.stack, pytest.mark.timeout(600)]


ERRORS = {
    "DynamoDB 400 ProvisionedThroughputExceededException": (0.05, 0.2),
    "DynamoDB 400 ThrottlingException": (0.1,),
    "DynamoDB 500 InternalServerError": (0.1,),
    "S3 503 SlowDown": (0.05, 0.3),
    "S3 500 InternalError": (0.1,),
    "SQS 400 RequestThrottled": (0.3,),
    "SecretsManager 400 ThrottlingException": (0.5,),
}
"""Service, status and code, with shares of the calls."""


def error(fault):
    service, status, code = fault.split()
    return {"kind": "error", "service": service.lower(), "status": int(status), "code": code}


FAULTS = {
    **{fault: (error(fault), rates) for fault, rates in ERRORS.items()},
    "connection reset before the call": ({"kind": "reset"}, (0.01, 0.1)),
    "answer lost after the call": ({"kind": "lost"}, (0.01, 0.1)),
    "connection reset in the middle of the answer": ({"kind": "cut"}, (0.1,)),
    "up to 1 s of latency": ({"kind": "latency", "seconds": 1.0}, (0.3,)),
}


@pytest.fixture(scope="module")
def stack():
    with running_stack("faulty", "MaxRequestsPerBatch=200", faults=True) as made:
        made.local("behaviour", "PUT", {"latency": 0.5})
        yield made


@pytest.mark.parametrize(
    ("fault", "rate"),
    [
        pytest.param(fault, rate, id=f"{fault}-{rate}")
        for fault in FAULTS
        for rate in FAULTS[fault][1]
    ],
)
def test_job_is_complete_and_billed_once(stack, fault, rate):
    records = requests(2_000, fault)
    path = f"{MODEL}/{fault.replace(' ', '-')}-{rate}.jsonl"
    paid, (calls, broken) = len(stack.bill()), stack.broken_calls()
    if "Secrets" in fault:  # A process reads the token at its first call.
        for pid in stack.workers():
            os.kill(pid, signal.SIGKILL)
        while stack.workers():  # One that dies with the upload's message delays it for 15 minutes.
            time.sleep(0.1)
    began = time.monotonic()
    stack.break_aws({**FAULTS[fault][0], "rate": rate})
    stack.drop(path, records)
    try:
        _, manifest = stack.wait_for_all(path, records, 400, ticks=True)
    finally:
        stack.break_aws()
    took = time.monotonic() - began
    calls, broken = (
        after - before for after, before in zip(stack.broken_calls(), (calls, broken), strict=True)
    )

    assert broken > 0 or rate < 0.05
    bill = Counter(one["sha256"] for one in stack.bill()[paid:])
    assert len(bill) == len(manifest["batches"]) == 10
    again = sum(bill.values()) - len(bill)
    unknowable = sum(batch["unknowable_submits"] for batch in manifest["batches"])
    assert again <= unknowable, f"{again} batches billed twice, {unknowable} in the manifest"
    assert stack.dead_letters() == []
    seen = f"complete after {took:.0f} s and {calls} AWS calls; no dead letter"
    note(f"{fault}, {rate:.0%} of calls", "stack", broken, seen)
