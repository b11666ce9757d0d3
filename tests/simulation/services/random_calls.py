"""Random calls of a table, as Dropbatch makes them; and whether two tables answer them alike."""

from __future__ import annotations

import json
import random
from collections import Counter
from decimal import Decimal
from typing import Any

from botocore.exceptions import ClientError

from tests.support.aws.resources import TABLE

CALLS = 1_000
"""How many calls of a service are compared with moto, as docs/reliability.md says."""
STATES = ("ready", "queued", "done")
KINDS = ("v2#poll", "v2#routine")
NUMBERS = ("0", "1", "1.0", "2.50", "10", "0.0", "1795253407.25", "1795253407.2328277")
"""As Python writes them: DynamoDB stores some of them in another form."""
CLAUSES = (
    "attribute_exists(#pk) AND #state = :one AND #attempt = :number",
    "attribute_exists(#pk) AND (attribute_not_exists(#due_at) OR #due_at <= :number)",
    "attribute_exists(#pk) AND attribute_not_exists(#due_at)",
    (
        "(attribute_not_exists(due_at) OR due_at > :other) AND (attribute_not_exists(attempt) "
        "OR attempt < :other)"
    ),
    "attempt BETWEEN :number AND :other",
    "attribute_not_exists(attempt) OR attempt = :number",
    "#submissions = :seen",
    "due_at = :number",
    "nonce = :one AND #due_at = :number",
)
"""Conditions, as the ledger and pacing write them."""
UPDATES = (
    "REMOVE #held SET #state = :to_state",
    "SET #state = :to_state, attempt = :to REMOVE due_at, #work, lease_until",
    "REMOVE due_at, #work",
    "SET due_at = :to, claims = :to",
    "SET #submissions = :to_list",
    "SET #slot = :to",
    "SET #slot = :text",
)


class RandomCalls:
    """Calls on few keys, so that they meet."""

    def __init__(self, seed: int) -> None:
        """Draw everything from a seed."""
        self.random = random.Random(seed)

    def one(self) -> tuple[str, dict[str, Any]]:
        """An operation and its arguments."""
        kinds = (
            "put",
            "update",
            "update",
            "update",
            "add",
            "delete",
            "get",
            "get_some",
            "query",
            "index",
        )
        operation, arguments = getattr(self, f"_{self.random.choice(kinds)}")()
        if operation != "batch_get_item":
            arguments["TableName"] = TABLE
        return operation, arguments

    def _key(self) -> dict[str, Any]:
        sorts = ("META", "BATCH#00000000", "BATCH#00000001", "BATCH#00000001.3", "BATCH#00000002")
        return {
            "pk": {"S": f"JOB#{self.random.randrange(3)}"},
            "sk": {"S": self.random.choice(sorts)},
        }

    def _number(self) -> dict[str, str]:
        return {"N": self.random.choice(NUMBERS)}

    def _submissions(self) -> dict[str, Any]:
        return {
            "L": [
                {"M": {"request_id": {"S": "r"}, "at": self._number(), "given_up": {"BOOL": False}}}
            ]
        }

    def _text(self) -> dict[str, str]:
        return {"S": "x"}

    def _put(self) -> tuple[str, dict[str, Any]]:
        item = {
            **self._key(),
            "state": {"S": self.random.choice(STATES)},
            "attempt": self._number(),
        }
        item["plan"] = {"M": {"model": {"S": "m"}, "format": {"S": ""}}}
        item["nonce"] = {"S": self.random.choice(STATES)}
        if self.random.random() < 0.7:
            item |= {"work": {"S": self.random.choice(KINDS)}, "due_at": self._number()}
        if self.random.random() < 0.5:
            item["submissions"] = self._submissions()
        if self.random.random() < 0.05:
            item["text"] = self._text()
        if self.random.random() < 0.5:
            return "put_item", {"Item": item, "ConditionExpression": "attribute_not_exists(pk)"}
        return "put_item", {"Item": item, **self._condition()}

    def _update(self) -> tuple[str, dict[str, Any]]:
        text = self.random.choice(UPDATES)
        given = {
            ":to_state": {"S": self.random.choice(STATES)},
            ":to": self._number(),
            ":text": self._text(),
        }
        given[":to_list"] = self._submissions()
        returned = self.random.choice(("ALL_NEW", "ALL_NEW", "NONE"))
        return "update_item", self._changing(text, given, self._condition(), returned)

    def _add(self) -> tuple[str, dict[str, Any]]:
        condition = self._condition("attempt BETWEEN :number AND :other")
        return "update_item", self._changing(
            "SET attempt = attempt + :to", {":to": {"N": "2.50"}}, condition, "UPDATED_NEW"
        )

    def _changing(
        self, text: str, given: dict[str, Any], condition: dict[str, Any], returned: str
    ) -> dict[str, Any]:
        names = {
            f"#{name}": name
            for name in ("held", "state", "work", "submissions", "slot")
            if f"#{name}" in text
        }
        values = {
            name: value for name, value in given.items() if name in text.replace(",", " ").split()
        }
        names |= condition.pop("ExpressionAttributeNames", {})
        values |= condition.pop("ExpressionAttributeValues", {})
        arguments = {
            "Key": self._key(),
            "UpdateExpression": text,
            "ReturnValues": returned,
            **condition,
        }
        named = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
        return arguments | {name: value for name, value in named.items() if value}

    def _delete(self) -> tuple[str, dict[str, Any]]:
        return "delete_item", {"Key": self._key(), **self._condition()}

    def _get(self) -> tuple[str, dict[str, Any]]:
        return "get_item", {"Key": self._key(), "ConsistentRead": True}

    def _get_some(self) -> tuple[str, dict[str, Any]]:
        keys = [self._key() for _ in range(3)]
        if self.random.random() < 0.8:  # Otherwise one may stand twice.
            keys = list({(key["pk"]["S"], key["sk"]["S"]): key for key in keys}.values())
        asked: dict[str, Any] = {"Keys": keys, "ConsistentRead": True}
        if self.random.random() < 0.5:
            names = {"#plan": "plan", "#model": "model"}
            asked |= {"ProjectionExpression": "pk, #plan.#model", "ExpressionAttributeNames": names}
        return "batch_get_item", {"RequestItems": {TABLE: asked}}

    def _query(self) -> tuple[str, dict[str, Any]]:
        values = {":pk": {"S": f"JOB#{self.random.randrange(3)}"}}
        given: dict[str, Any] = {"ConsistentRead": True, "ExpressionAttributeValues": values}
        if self.random.random() < 0.3:
            given |= {
                "KeyConditionExpression": "pk = :pk AND begins_with(sk, :prefix)",
                "ScanIndexForward": False,
            }
            values[":prefix"] = {"S": "BATCH#"}
        else:
            given["KeyConditionExpression"] = "pk = :pk AND sk BETWEEN :start AND :stop"
            values |= {":start": {"S": "BATCH#00000000\x00"}, ":stop": {"S": "BATCH#~"}}
        return "query", given | (
            {"Limit": self.random.randrange(1, 4)} if self.random.random() < 0.5 else {}
        )

    def _index(self) -> tuple[str, dict[str, Any]]:
        given = {
            "IndexName": "due",
            "KeyConditionExpression": "#work = :work",
            "ExpressionAttributeNames": {"#work": "work"},
            "ExpressionAttributeValues": {":work": {"S": self.random.choice(KINDS)}},
        }
        wanted: list[dict[str, Any]] = [
            {},
            {"Limit": 2},
            {"ProjectionExpression": "pk"},
            {"Select": "COUNT"},
        ]
        return "query", {**given, **self.random.choice(wanted)}

    def _condition(self, text: str = "") -> dict[str, Any]:
        """Arguments of a condition, mostly."""
        if not text and self.random.random() < 0.2:
            return {}
        text = text or self.random.choice(CLAUSES)
        low, high = sorted((self.random.choice(NUMBERS), self.random.choice(NUMBERS)), key=float)
        given = {
            ":one": {"S": self.random.choice(STATES)},
            ":number": {"N": low},
            ":other": {"N": high},
            ":seen": self._submissions(),
        }
        names = {
            f"#{name}": name
            for name in ("pk", "state", "attempt", "due_at", "submissions")
            if f"#{name}" in text
        }
        values = {name: value for name, value in given.items() if name in text}
        named = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
        return {
            "ConditionExpression": text,
            **{name: value for name, value in named.items() if value},
        }


def compare(ours: Any, theirs: Any, calls: int) -> Counter[tuple[str, str]]:
    """Make the same random calls of both, which must answer alike; return how each ended.

    Calls that read the pages behind the first one count no more.
    """
    chosen, outcomes = RandomCalls(1), Counter[tuple[str, str]]()
    for place in range(calls):
        operation, arguments = chosen.one()
        mine, other = (_outcome(one, operation, arguments) for one in (ours, theirs))
        assert mine == other, (
            f"call {place}: {operation} {arguments}\nours: {mine}\ntheirs: {other}"
        )[:4_000]
        outcomes[operation, mine if isinstance(mine, str) else "answered"] += 1
    return outcomes


def _outcome(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    """The code of an error, or what was answered, on all pages."""
    try:
        answer = getattr(client, operation)(**arguments)
        answers = [answer]
        while "LastEvaluatedKey" in answers[-1]:
            answers.append(
                client.query(**arguments, ExclusiveStartKey=answers[-1]["LastEvaluatedKey"])
            )
    except ClientError as error:
        return error.response["Error"]["Code"]
    if operation == "batch_get_item":  # In no order.
        return sorted(map(_written, answer["Responses"].get(TABLE, [])))
    if operation != "query":
        return {name: _written(answer[name]) for name in ("Item", "Attributes") if name in answer}
    items = [item for one in answers for item in one.get("Items", [])]
    found = [_written(item) for item in items]
    if "IndexName" in arguments:  # In the order of `due_at`; those of the same time in any.
        assert items == sorted(items, key=lambda item: float(item.get("due_at", {}).get("N", 0)))
        found.sort()
    return found, sum(one["Count"] for one in answers)


def _written(item: Any) -> str:
    return json.dumps(_numbers(item), sort_keys=True)


def _numbers(value: Any) -> Any:
    """The same with numbers by their value: moto keeps them as they were written."""
    match value:
        case {"N": str(text)}:
            return {"N": str(Decimal(text).normalize())}
        case dict():
            return {name: _numbers(member) for name, member in value.items()}
        case list():
            return [_numbers(member) for member in value]
    return value
