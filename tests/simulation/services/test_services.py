"""The simulated services answer as moto does: the same random calls, compared one by one."""

import random
from collections import Counter
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from local.template import properties
from tests.simulation.kernel import Kernel
from tests.simulation.services.awkward import Awkward
from tests.simulation.services.calls import Calls
from tests.simulation.services.dynamodb import DynamoDB
from tests.simulation.services.expressions import NotSimulatedError, condition
from tests.simulation.services.s3 import S3
from tests.support.aws.resources import BUCKET, REGION, TABLE

CALLS = 1_000
TRANSFER = {"ResponseMetadata", "Count", "ScannedCount", "ConsumedCapacity", "ConsumedCapacityUnits"}
STATES = ("ready", "queued", "done")


@pytest.fixture
def moto(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        yield SimpleNamespace(
            dynamodb=boto3.client("dynamodb", region_name=REGION), s3=boto3.client("s3", region_name=REGION)
        )


@pytest.fixture
def calls():
    return Calls(Kernel(1, 0.0), Awkward())


def outcome(call):
    """What a call returns, without what describes only the transfer; or the code of its error."""
    try:
        answer = call()
    except ClientError as error:
        return error.response["Error"]["Code"]
    return {name: value for name, value in answer.items() if name not in TRANSFER}


class RandomCalls:
    """Calls of the table as Dropbatch makes them, on few keys so that they meet."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def key(self):
        number = self.random.randrange(3)
        sort = self.random.choice(["META", "BATCH#00000000", "BATCH#00000001", "BATCH#00000001.3", "BATCH#00000002"])
        return {"pk": {"S": f"JOB#{number}"}, "sk": {"S": sort}}

    def item(self):
        item = {
            **self.key(),
            "state": {"S": self.random.choice(STATES)},
            "attempt": {"N": str(self.random.randrange(3))},
        }
        if self.random.random() < 0.7:
            item |= {"work": {"S": self.random.choice(["v1#poll", "v1#job"])}, "due_at": {"N": self.moment()}}
        if self.random.random() < 0.5:
            item["submissions"] = {"L": [{"M": {"request_id": {"S": "r"}, "at": {"N": self.moment()}}}]}
        return item

    def moment(self):
        return repr(self.random.choice([1, 1.0, 2.5, 10, 1795253407.25]))

    def condition(self):
        """Arguments of a condition, or none."""
        return self.random.choice(
            [
                {},
                {"ConditionExpression": "attribute_not_exists(pk)"},
                {
                    "ConditionExpression": "attribute_exists(#pk) AND #state = :if_state AND #attempt = :if_attempt",
                    "ExpressionAttributeNames": {"#pk": "pk", "#state": "state", "#attempt": "attempt"},
                    "ExpressionAttributeValues": {
                        ":if_state": {"S": self.random.choice(STATES)},
                        ":if_attempt": {"N": self.random.choice(["0", "1", "1.0"])},
                    },
                },
                {
                    "ConditionExpression": "attribute_exists(#pk) AND "
                    "(attribute_not_exists(#due_at) OR #due_at <= :most)",
                    "ExpressionAttributeNames": {"#pk": "pk", "#due_at": "due_at"},
                    "ExpressionAttributeValues": {":most": {"N": self.moment()}},
                },
                {
                    "ConditionExpression": "#submissions = :seen",
                    "ExpressionAttributeNames": {"#submissions": "submissions"},
                    "ExpressionAttributeValues": {
                        ":seen": {"L": [{"M": {"request_id": {"S": "r"}, "at": {"N": self.moment()}}}]}
                    },
                },
            ]
        )

    def one(self):
        """An operation and its arguments."""
        operation = self.random.choice(
            ["put_item", "update_item", "update_item", "delete_item", "get_item", "batch_get_item", "query", "index"]
        )
        match operation:
            case "put_item":
                return operation, {"Item": self.item(), **self.condition()}
            case "update_item":
                return operation, self.update()
            case "delete_item":
                return operation, {"Key": self.key(), **self.condition()}
            case "get_item":
                return operation, {"Key": self.key(), "ConsistentRead": True}
            case "batch_get_item":
                keys = {(key["pk"]["S"], key["sk"]["S"]): key for key in (self.key() for _ in range(3))}
                return operation, {"RequestItems": {TABLE: {"Keys": list(keys.values()), "ConsistentRead": True}}}
            case "query":
                return operation, self.query()
        return "query", {
            "IndexName": "due",
            "KeyConditionExpression": "#work = :work",
            "ExpressionAttributeNames": {"#work": "work"},
            "ExpressionAttributeValues": {":work": {"S": self.random.choice(["v1#poll", "v1#job"])}},
        }

    def update(self):
        given = self.condition()
        names = {**given.get("ExpressionAttributeNames", {}), "#held": "held", "#state": "state"}
        values = {**given.get("ExpressionAttributeValues", {}), ":to_state": {"S": self.random.choice(STATES)}}
        return {
            "Key": self.key(),
            **given,
            "UpdateExpression": "REMOVE #held SET #state = :to_state",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            "ReturnValues": "ALL_NEW",
        }

    def query(self):
        backward = self.random.random() < 0.3
        start = {"KeyConditionExpression": "pk = :pk AND sk BETWEEN :start AND :stop"}
        values = {":start": {"S": "BATCH#00000000\x00"}, ":stop": {"S": "BATCH#~"}}
        if backward:
            start = {"KeyConditionExpression": "pk = :pk AND begins_with(sk, :prefix)", "ScanIndexForward": False}
            values = {":prefix": {"S": "BATCH#"}}
        limit = {"Limit": self.random.randrange(1, 4)} if self.random.random() < 0.5 else {}
        pk = {":pk": {"S": f"JOB#{self.random.randrange(3)}"}}
        return {**start, **limit, "ExpressionAttributeValues": {**pk, **values}, "ConsistentRead": True}


def sorted_batch(found):
    """Items of a batch read have no order; pages may end with or without a position behind their last item."""
    if isinstance(found, dict) and "Responses" in found:
        return sorted(map(repr, found["Responses"].get(TABLE, [])))
    return found


def test_table_answers_as_moto_does(moto, calls):
    """1,000 calls, each with the same answer or the same error, and at the end the same items."""
    description = properties("Table")
    moto.dynamodb.create_table(
        TableName=TABLE,
        **{
            name: description[name]
            for name in ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "BillingMode")
        },
    )
    ours = DynamoDB(calls, TABLE)
    chosen = RandomCalls(1)
    outcomes = Counter()
    for _ in range(CALLS):
        operation, arguments = chosen.one()
        if operation != "batch_get_item":
            arguments["TableName"] = TABLE
        theirs = outcome(lambda: getattr(moto.dynamodb, operation)(**arguments))  # noqa: B023 - called at once
        mine = outcome(lambda: getattr(ours, operation)(**arguments))  # noqa: B023 - called at once
        if "IndexName" in arguments and isinstance(mine, dict):
            mine = sorted((one["pk"]["S"], one["sk"]["S"]) for one in mine["Items"])
            theirs = sorted((one["pk"]["S"], one["sk"]["S"]) for one in theirs["Items"])
        if isinstance(theirs, dict) and isinstance(mine, dict) and "LastEvaluatedKey" in theirs:
            rest = ours.query(**{**arguments, "ExclusiveStartKey": theirs["LastEvaluatedKey"]})
            assert "LastEvaluatedKey" in mine or not rest["Items"]
            theirs.pop("LastEvaluatedKey")
            mine.pop("LastEvaluatedKey", None)
        assert sorted_batch(mine) == sorted_batch(theirs), (operation, arguments)
        outcomes[operation, mine if isinstance(mine, str) else "answered"] += 1
    assert len(outcomes) >= 9, "every operation, and the conditional ones with both outcomes"
    assert min(outcomes.values()) > 15


def test_bucket_answers_as_moto_does(moto, calls):
    """1,000 puts, reads, conditional writes and deletions of few keys."""
    moto.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    moto.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    ours = S3(calls, BUCKET)
    chosen = random.Random(2)
    outcomes = Counter()
    versions = [("", "")]
    for number in range(CALLS):
        key = f"results/{chosen.randrange(40)}"
        etag = ours.objects[key].etag if key in ours.objects else "0"
        operation, arguments = chosen.choice(
            [
                ("put_object", {"Body": b"%d" % (number % 7), "IfNoneMatch": "*"}),
                ("put_object", {"Body": b"x" * (number % 5), "Metadata": {"model": "m" * (number % 9)}}),
                ("put_object", {"Body": b"new", "IfMatch": f'"{etag}"'}),
                ("get_object", {}),
                ("get_object", {"Range": f"bytes={number % 3}-{chosen.choice(['', 2])}"}),
                ("get_object", {"IfMatch": '"0"'}),
                ("head_object", {}),
            ]
        )
        theirs, mine = (
            comparable(outcome(lambda: getattr(one, operation)(Bucket=BUCKET, Key=key, **arguments)))  # noqa: B023
            for one in (moto.s3, ours)
        )
        assert mine == theirs, (operation, key, arguments)
        outcomes[operation, mine if isinstance(mine, str) else "answered"] += 1
    assert versions
    assert min(outcomes.values()) > 3


def test_versions_are_listed_and_deleted_as_moto_does(moto, calls):
    moto.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    moto.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    ours = S3(calls, BUCKET)
    left = []
    for one in (moto.s3, ours):
        for number in range(9):
            one.put_object(Bucket=BUCKET, Key=f"staging/{number % 4}/{number % 6}", Body=b"%d" % number)
        listed = one.list_object_versions(Bucket=BUCKET, Prefix="staging/1/")["Versions"]
        doomed = [{name: version[name] for name in ("Key", "VersionId")} for version in listed]
        one.delete_objects(Bucket=BUCKET, Delete={"Objects": doomed, "Quiet": True})
        kept = [version["Key"] for version in one.list_object_versions(Bucket=BUCKET, Prefix="staging/")["Versions"]]
        gone = outcome(lambda: one.head_object(Bucket=BUCKET, Key=doomed[0]["Key"]))  # noqa: B023
        left.append((len(doomed), kept, gone))

    assert left[0] == left[1]


def comparable(found):
    """What both say of an object: content, size, ETag, metadata; times and ids differ."""
    if isinstance(found, str):
        return found
    body = found["Body"].read() if "Body" in found else None
    return body, found["ETag"], found.get("Metadata", {})


def test_unsimulated_expression_raises():
    with pytest.raises(NotSimulatedError):
        condition("contains(tags, :one)")
    with pytest.raises(NotSimulatedError):
        condition("size(a) > :n")
