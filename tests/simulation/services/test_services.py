"""The simulated services answer as moto does: the same random calls, compared one by one."""

import json
import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
import time_machine
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.s3 import models as moto_s3

from simulation import Account
from simulation.kernel import Kernel
from simulation.services import s3
from simulation.services.awkward import Awkward
from simulation.services.calls import Calls
from simulation.services.dynamodb import DynamoDB
from simulation.services.events import Events
from simulation.services.expressions import NotSimulatedError, condition, normal
from simulation.services.s3 import S3
from simulation.services.sqs import SQS, Queue
from tests.simulation.services.random_calls import CALLS, compare
from tests.simulation.worlds.world import START
from tests.support.aws import quick_moto
from tests.support.aws.resources import BUCKET, REGION, ledger_table, make_table, sign_in

JOINS = 60
EVERYDAY = 200
SOME = pytest.mark.parametrize("count", [EVERYDAY, pytest.param(CALLS, marks=pytest.mark.slow)])


@pytest.fixture
def moto(monkeypatch):
    """Clients of moto, over HTTP: nothing that another test has made faster answers."""
    monkeypatch.setattr(quick_moto, "DIRECT", {})
    sign_in(monkeypatch)
    with mock_aws():
        found = {
            name: boto3.client(name, region_name=REGION) for name in ("dynamodb", "s3", "events")
        }
        found["s3"].create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        found["s3"].put_bucket_versioning(
            Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"}
        )
        yield SimpleNamespace(**found)


@pytest.fixture
def calls():
    return Calls(Kernel(1, 0.0), Awkward())


def outcome(call):
    """What a call returns, or the code of its error."""
    try:
        return call()
    except ClientError as error:
        return error.response["Error"]["Code"]


@SOME
def test_table_answers_as_moto_does(moto, calls, count):
    """Each call has the same answer or the same error."""
    make_table()

    outcomes = compare(DynamoDB(calls, ledger_table()), moto.dynamodb, count)

    assert len(outcomes) >= 9, "every operation, and the conditional ones with both outcomes"


@SOME
def test_bucket_answers_as_moto_does(moto, calls, count):
    """Puts, reads and conditional writes of few keys."""
    ours = S3(calls, BUCKET)
    chosen = random.Random(2)
    outcomes = Counter()
    for number in range(count):
        key = f"results/{chosen.randrange(40)}"
        etag = ours.objects[key].etag if key in ours.objects else "0"
        operation, arguments = chosen.choice(
            [
                ("put_object", {"Body": b"%d" % (number % 7), "IfNoneMatch": "*"}),
                (
                    "put_object",
                    {"Body": b"x" * (number % 5), "Metadata": {"model": "m" * (number % 9)}},
                ),
                ("put_object", {"Body": b"new", "IfMatch": f'"{etag}"'}),
                ("get_object", {}),
                ("get_object", {"Range": f"bytes={number % 3}-{chosen.choice(['', 2])}"}),
                ("get_object", {"IfMatch": '"0"'}),
                ("head_object", {}),
            ]
        )
        theirs, mine = (
            comparable(
                outcome(lambda: getattr(one, operation)(Bucket=BUCKET, Key=key, **arguments))  # noqa: B023
            )
            for one in (moto.s3, ours)
        )
        assert mine == theirs, (operation, key, arguments)
        outcomes[operation, mine if isinstance(mine, str) else "answered"] += 1
    assert len(outcomes) == 9, "each call with each outcome"


def test_versions_are_listed_and_deleted_as_moto_does(moto, calls):
    ours = S3(calls, BUCKET)
    left = []
    for one in (moto.s3, ours):
        for number in range(9):
            one.put_object(
                Bucket=BUCKET, Key=f"staging/{number % 4}/{number % 6}", Body=b"%d" % number
            )
        listed = one.list_object_versions(Bucket=BUCKET, Prefix="staging/1/")["Versions"]
        doomed = [{name: version[name] for name in ("Key", "VersionId")} for version in listed]
        one.delete_objects(Bucket=BUCKET, Delete={"Objects": doomed, "Quiet": True})
        kept = [
            version["Key"]
            for version in one.list_object_versions(Bucket=BUCKET, Prefix="staging/")["Versions"]
        ]
        gone = outcome(lambda: one.head_object(Bucket=BUCKET, Key=doomed[0]["Key"]))  # noqa: B023
        left.append((len(doomed), kept, gone))

    assert left[0] == left[1]


def test_objects_are_joined_as_moto_does(moto, calls, monkeypatch):
    """Too small parts, missing ones, uploads that are over, and a key that exists already."""
    assert s3.MIN_PART_BYTES == moto_s3.S3_UPLOAD_PART_MIN_SIZE
    monkeypatch.setattr(s3, "MIN_PART_BYTES", 1_000)
    monkeypatch.setattr(moto_s3, "S3_UPLOAD_PART_MIN_SIZE", 1_000)
    both = moto.s3, S3(calls, BUCKET)
    sizes = {f"part-{place}": size for place, size in enumerate((1_000, 1_007, 999, 3))}
    for one in both:
        for key, size in sizes.items():
            one.put_object(Bucket=BUCKET, Key=key, Body=key[-1:].encode() * size)
    chosen, outcomes = random.Random(4), Counter()
    for number in range(JOINS):
        key = f"results/{chosen.randrange(20)}"
        # Not two mistakes in one.
        sources = chosen.choice((["part-0", "part-1", "none"], list(sizes)))
        copied = [
            (place, chosen.choice(sources)) for place in sorted(chosen.sample(range(1, 9), 3))
        ]
        how = {"IfNoneMatch": "*"} if chosen.random() < 0.5 else {}
        aborts = chosen.random() < 0.2
        told = []
        for one in both:
            upload = {"UploadId": one.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]}
            upload |= {"Bucket": BUCKET, "Key": key}
            etags = {}
            for place, source in copied:
                whole = {"Bucket": BUCKET, "Key": source}
                found = outcome(
                    lambda: one.upload_part_copy(**upload, PartNumber=place, CopySource=whole)  # noqa: B023
                )
                etags[place] = (
                    found["CopyPartResult"]["ETag"] if isinstance(found, dict) else "NoSuchKey"
                )  # moto: "404"
            listed = one.list_parts(**upload).get("Parts", [])
            parts = {"Parts": [{"PartNumber": place, "ETag": etags[place]} for place, _ in copied]}
            if aborts:  # Completing it fails in moto.
                one.abort_multipart_upload(**upload)
                ended = outcome(lambda: one.list_parts(**upload))  # noqa: B023
            else:
                ended = outcome(
                    lambda: one.complete_multipart_upload(**upload, MultipartUpload=parts, **how)  # noqa: B023
                )
            kept = outcome(lambda: one.head_object(Bucket=BUCKET, Key=key))  # noqa: B023
            told.append(
                (
                    etags,
                    [(part["PartNumber"], part["Size"]) for part in listed],
                    ended if isinstance(ended, str) else ended["ETag"],
                    kept if isinstance(kept, str) else (kept["ContentLength"], kept["ETag"]),
                )
            )
        assert told[0] == told[1], (number, copied, how, aborts)
        outcomes[told[0][2] if "-" not in told[0][2] else "joined"] += 1
    assert outcomes.keys() >= {
        "joined",
        "EntityTooSmall",
        "NoSuchUpload",
        "PreconditionFailed",
        "InvalidPart",
    }


def test_event_bus_answers_as_moto_does(moto, calls):
    entry = {"Source": "dropbatch", "DetailType": "job", "Detail": "{}"}
    answers = [one.put_events(Entries=[entry]) for one in (moto.events, Events(calls))]

    assert [
        (one["FailedEntryCount"], [list(each) for each in one["Entries"]]) for one in answers
    ] == [(0, [["EventId"]])] * 2


def comparable(found):
    """What both say of an object: content, size, ETag, metadata; times and ids differ."""
    if isinstance(found, str):
        return found
    body = found["Body"].read() if "Body" in found else None
    return body, found["ETag"], found.get("Metadata", {})


def test_numbers_of_compared_calls_are_documented():
    page = (Path(__file__).parents[3] / "docs/reliability.md").read_text()
    calls = re.findall(r"^\| (?:table|bucket|queue) \| ([\d,]+\d)", page, re.MULTILINE)

    assert calls == [f"{CALLS:,}"] * 3
    assert f"{JOINS} objects joined of parts" in page


def test_unsimulated_operation_raises():
    """Something that no handler takes for an error of AWS."""
    with pytest.raises(NotSimulatedError, match=r"S3\.copy_object"):
        Account(1).client("s3").copy_object(Bucket="bucket", Key="a", CopySource="b")


def test_unsimulated_expression_raises():
    with pytest.raises(NotSimulatedError):
        condition("contains(tags, :one)")
    with pytest.raises(NotSimulatedError):
        condition("size(a) > :n")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "<HTTPStatus.OK: 200>", "1e200"])
def test_table_refuses_what_is_no_number_of_dynamodb(text):
    with pytest.raises(ClientError, match="ValidationException"):
        normal({"N": text})


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
    sign_in(monkeypatch)
    with mock_aws(), time_machine.travel(START, tick=False) as traveller:
        yield traveller


def queue_outcome(one, operation, **arguments):
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
            mine, other = (
                queue_outcome(one, "send_message_batch", Entries=entries) for one in both
            )
        elif act == "receive":
            found = [one.receive() for one in both]
            mine, other = (sorted(one) for one in found)
            held |= {key[0]: (found[0][key], found[1][key]) for key in mine if key in found[1]}
        elif act == "hide" and (
            hidden := [body for body in sorted(held) if both[0].hides(held[body][0])]
        ):
            receipts, seconds = held[chosen.choice(hidden)], chosen.choice((0, 10, 200))
            mine, other = (
                queue_outcome(
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
                queue_outcome(one, "get_queue_attributes", AttributeNames=asked) for one in both
            )
        assert mine == other, f"call {number}: {act}"
        outcomes[act, mine == "refused"] += 1
        if dead := both[0].dead():
            held = {body: receipts for body, receipts in held.items() if body not in dead}
    assert both[0].dead() == both[1].dead()
    assert sum(both[0].dead().values()) > 10
    assert min(outcomes.values()) > 10
