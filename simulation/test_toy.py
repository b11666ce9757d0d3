"""A counter behind a queue.

Written the usual way it miscounts in most worlds, with one conditional write in none.
"""

import re
from contextlib import suppress
from pathlib import Path

import boto3
import pytest

from simulation import Account, Awkward, Queue, Table, seeds

MESSAGES = 6
TOTAL = {"pk": {"S": "total"}}


def naive(event, context):
    """Read, add, write."""
    table = boto3.client("dynamodb")
    for _ in event["Records"]:
        item = table.get_item(TableName="counts", Key=TOTAL, ConsistentRead=True).get("Item")
        number = int(item["n"]["N"]) if item else 0
        table.put_item(TableName="counts", Item={**TOTAL, "n": {"N": str(number + 1)}})


def careful(event, context):
    """One conditional write for each message."""
    table = boto3.client("dynamodb")
    for record in event["Records"]:
        item = {"pk": {"S": record["messageId"]}, "n": {"N": "1"}}
        with suppress(table.exceptions.ConditionalCheckFailedException):  # It is counted already.
            table.put_item(
                TableName="counts", Item=item, ConditionExpression="attribute_not_exists(pk)"
            )


def counted(seed, handler, trace=None):
    """What the handler counts in the world of a seed."""
    account = Account(
        seed,
        Awkward(delivered_twice=0.2, death=0.05),
        table=Table("counts", partition_key="pk"),
        queues=[Queue("numbers", visibility=60)],
    )
    account.connect("numbers", account.add_function("Count", handler, timeout=30), most=5)
    account.trace = trace
    with account.installed():
        for number in range(MESSAGES):
            account.sqs.put("numbers", str(number))
        account.run(7_200)
    return sum(int(item["n"]["N"]) for item in account.dynamodb.items.values())


@seeds(200)
def test_each_message_counts_once(seed, trace):
    number = counted(seed, careful, trace)
    assert number == MESSAGES


def test_page_shows_the_toy_and_how_the_naive_one_fails(monkeypatch):
    monkeypatch.delenv("SEED", raising=False)
    page, toy = Path(__file__).with_name("README.md").read_text(), Path(__file__).read_text()
    shown, failure = re.findall(r"```\w*\n(.*?)```", page, re.DOTALL)

    @seeds(200, first=1)
    def test_naive(seed, trace):
        number = counted(seed, naive, trace)
        assert number == MESSAGES

    with pytest.raises(AssertionError) as failed:
        test_naive()
    assert str(failed.value) == failure.strip()
    assert shown.partition("\n\nMESSAGES")[2] in toy


def test_seed_of_environment_is_played_alone(monkeypatch):
    monkeypatch.setenv("SEED", "17")
    played = []
    seeds(200)(lambda seed, trace: played.append(seed))()
    assert played == [17]


def test_seed_plays_the_same_world_again():
    first, again = [], []

    assert counted(2, naive, first.append) == counted(2, naive, again.append)
    assert first == again
