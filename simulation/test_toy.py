"""A counter behind a queue.

Written the usual way it miscounts in most worlds, with one conditional write in none.
"""

from contextlib import suppress

import boto3
import pytest

from simulation import Account, Awkward, Queue, Table

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


@pytest.mark.parametrize(("handler", "wrong"), [(naive, 113), (careful, 0)])
def test_seeds_find_what_a_handler_miscounts(handler, wrong):
    assert sum(counted(seed, handler) != MESSAGES for seed in range(200)) == wrong


def test_seed_plays_the_same_world_again():
    first, again = [], []

    assert counted(2, naive, first.append) == counted(2, naive, again.append)
    assert first == again
