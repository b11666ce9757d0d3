"""The simulated queue answers as moto does, to the same messages, deliveries and times."""

import json
import random
from collections import Counter

import boto3
import pytest
import time_machine
from botocore.exceptions import ClientError
from moto import mock_aws

from simulation.kernel import Kernel
from simulation.services.awkward import Awkward
from simulation.services.calls import Calls
from simulation.services.sqs import SQS, Queue
from tests.simulation.services.random_calls import CALLS
from tests.simulation.worlds.world import START
from tests.support.aws.resources import REGION

VISIBILITY, RECEIVES = 30, 3


class Theirs:
    """A queue of moto with its dead letters."""

    def __init__(self):
        self.sqs = boto3.client("sqs", region_name=REGION)
        dead = self.sqs.create_queue(QueueName="dead")["QueueUrl"]
        arn = self.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])[
            "Attributes"
        ]["QueueArn"]
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVES})
        attributes = {"VisibilityTimeout": str(VISIBILITY), "RedrivePolicy": redrive}
        self.url = self.sqs.create_queue(QueueName="queue", Attributes=attributes)["QueueUrl"]
        self.dead_url = dead

    def receive(self):
        """Receipts of all that is visible, by body and deliveries."""
        found = {}
        while messages := self.sqs.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, AttributeNames=["ApproximateReceiveCount"]
        ).get("Messages"):
            for one in messages:
                found[one["Body"], int(one["Attributes"]["ApproximateReceiveCount"])] = one[
                    "ReceiptHandle"
                ]
        return found

    def delete(self, receipt):
        self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=receipt)

    def dead(self):
        found = Counter()
        while messages := self.sqs.receive_message(
            QueueUrl=self.dead_url, MaxNumberOfMessages=10
        ).get("Messages"):
            found.update(one["Body"] for one in messages)
        return found


class Ours:
    """A simulated queue."""

    def __init__(self, kernel):
        self.queue = Queue("queue", VISIBILITY, 345_600, RECEIVES)
        self.sqs = SQS(Calls(kernel, Awkward()), {"queue": self.queue}, lambda *_: None)
        self.kernel, self.url = kernel, "queue"

    def receive(self):
        found = {}
        while one := self.queue.receive(self.kernel.now, self.kernel.random):
            found[one.body, one.received] = one.receipt
        return found

    def hides(self, receipt):
        """Whether a message is in flight."""
        return self.queue.messages[receipt.partition("/")[0]].visible_at > self.kernel.now

    def delete(self, receipt):
        self.queue.delete(receipt.partition("/")[0], self.kernel.now)

    def dead(self):
        return Counter(one.body for one in self.queue.dead)


@pytest.fixture
def traveller(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws(), time_machine.travel(START, tick=False) as traveller:
        yield traveller


def outcome(one, operation, **arguments):
    """What a call returned, or that it was refused."""
    try:
        answer = getattr(one.sqs, operation)(QueueUrl=one.url, **arguments)
    except ClientError:
        return "refused"
    sent = sorted(entry["Id"] for entry in answer.get("Successful", []))
    return sent, answer.get("Attributes")


def test_queue_answers_as_moto_does(traveller):
    """What is visible when, how often it was delivered, what becomes a dead letter."""
    kernel, chosen, outcomes, held = Kernel(1, START), random.Random(3), Counter(), {}
    both = Ours(kernel), Theirs()
    for number in range(CALLS):
        act = chosen.choice(("send", "send", "receive", "hide", "delete", "wait", "count"))
        seconds = chosen.choice((1, 6, 31, 400)) if act == "wait" else 0.01
        traveller.shift(seconds)
        kernel.now += seconds
        if act == "send":
            delays = [chosen.choice((0, 0, 5, 40, 900)) for _ in range(chosen.choice((1, 2, 11)))]
            entries = [
                {"Id": str(place), "MessageBody": f"{number} {place}", "DelaySeconds": delay}
                for place, delay in enumerate(delays)
            ]
            mine, other = (outcome(one, "send_message_batch", Entries=entries) for one in both)
        elif act == "receive":
            found = [one.receive() for one in both]
            mine, other = (sorted(one) for one in found)
            held |= {key[0]: (found[0][key], found[1][key]) for key in mine if key in found[1]}
        elif act == "hide" and (
            hidden := [body for body in sorted(held) if both[0].hides(held[body][0])]
        ):
            receipts, seconds = held[chosen.choice(hidden)], chosen.choice((0, 10, 200))
            mine, other = (
                outcome(
                    one,
                    "change_message_visibility",
                    ReceiptHandle=receipt,
                    VisibilityTimeout=seconds,
                )
                for one, receipt in zip(both, receipts, strict=True)
            )
        elif act == "delete" and held:
            receipts = held.pop(chosen.choice(sorted(held)))
            mine = other = len(
                [one.delete(receipt) for one, receipt in zip(both, receipts, strict=True)]
            )
        elif act == "wait":
            continue
        else:
            asked = ["ApproximateNumberOfMessages"]
            mine, other = (
                outcome(one, "get_queue_attributes", AttributeNames=asked) for one in both
            )
        assert mine == other, f"call {number}: {act}"
        outcomes[act, mine == "refused"] += 1
        if dead := both[0].dead():
            held = {body: receipts for body, receipts in held.items() if body not in dead}
    assert both[0].dead() == both[1].dead()
    assert sum(both[0].dead().values()) > 10
    assert min(outcomes.values()) > 10
