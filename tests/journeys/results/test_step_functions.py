"""The example's state machine, executed whole: its calls of S3 are made, its waits pass time."""

import json
import re
from types import SimpleNamespace

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError

from local.workers_ai import Fault
from tests.support.journeys.world import BUCKET
from tests.support.shipped import ROOT
from tests.support.translations import M2M, greetings

MACHINE = json.loads((ROOT / "examples/step-functions.asl.json").read_text("utf-8"))
SOURCE = "exports/july.jsonl"
NUMERIC = {"NumericEquals": lambda a, b: a == b, "NumericGreaterThan": lambda a, b: a > b}
EQUAL = {**NUMERIC, **dict.fromkeys(("StringEquals", "BooleanEquals"), lambda a, b: a == b)}
BAD = b'nonsense\n{"text":"x","target_lang":"es"}\n'
GIVEN = {"bucket": BUCKET, "source": f"{BUCKET}/{SOURCE}", "folder": "july", "model": M2M}


class Execution:
    """An interpreter of those parts of the Amazon States Language that the example has."""

    def __init__(self, world, given):
        self.world, self.data, self.visited = world, given, []
        self.context = {"Execution": {"Name": "first"}}

    def run(self):
        """Run to the end; return how it ended, its output or its error, and its cause."""
        name = MACHINE["StartAt"]
        while True:
            state = MACHINE["States"][name]
            self.visited.append(name)
            if state["Type"] == "Succeed":
                return SimpleNamespace(status="SUCCEEDED", output=self.value(state["OutputPath"]))
            if state["Type"] == "Fail":
                cause = json.loads(self.value(state["CausePath"]))
                return SimpleNamespace(status="FAILED", error=state["Error"], cause=cause)
            name = getattr(self, state["Type"].lower())(state)

    def pass_(self, state):
        return self._put(state, self.filled(state["Parameters"]))

    def wait(self, state):
        self.world.pass_time(state["Seconds"])
        self.world.deliver_all()
        self.world.tick()
        self.world.deliver_all()
        return state["Next"]

    def choice(self, state):
        chosen = (one["Next"] for one in state["Choices"] if self.holds(one))
        return next(chosen, state["Default"])

    def task(self, state):
        called = xform_name(state["Resource"].rpartition(":")[2])
        try:
            answer = getattr(self.world.s3, called)(**self.filled(state["Parameters"]))
        except ClientError:
            (caught,) = state["Catch"]
            return caught["Next"]
        if "Body" in answer:
            answer["Body"] = answer["Body"].read().decode()
        if selector := state.get("ResultSelector"):
            answer = self.filled(selector, answer)
        return self._put(state, answer)

    def _put(self, state, result):
        if path := state["ResultPath"]:
            self.data = {**self.data, path.removeprefix("$."): result}
        return state["Next"]

    def holds(self, rule):
        if "Or" in rule:
            return any(map(self.holds, rule["Or"]))
        if "Not" in rule:
            return not self.holds(rule["Not"])
        try:
            found = self.value(rule["Variable"])
        except LookupError:
            return not rule["IsPresent"]
        if "IsPresent" in rule:
            return rule["IsPresent"]
        (operator,) = set(rule) & set(EQUAL)
        return EQUAL[operator](found, rule[operator])

    def filled(self, template, data=None):
        if not isinstance(template, dict):
            return template
        return {
            name.removesuffix(".$"): self.value(value, data)
            if name.endswith(".$")
            else self.filled(value, data)
            for name, value in template.items()
        }

    def value(self, expression, data=None):
        if called := re.fullmatch(r"States\.(\w+)\((.*)\)", expression):
            text, *paths = re.findall(r"'[^']*'|[^,\s]+", called[2])
            match called[1]:
                case "Format":
                    return text.strip("'").format(*(self.value(one, data) for one in paths))
                case "StringToJson":
                    return json.loads(self.value(text, data))
                case "JsonToString":
                    return json.dumps(self.value(text, data))
        found = self.context if expression.startswith("$$") else data or self.data
        for name, index in re.findall(r"\.(\w+)|\[(\d+)]", expression):
            found = found[int(index)] if index else found[name]
        return found


setattr(Execution, "pass", Execution.pass_)


@pytest.fixture
def execution(world):
    body = "".join(json.dumps(one) + "\n" for one in greetings(3)).encode()
    world.s3.put_object(Bucket=BUCKET, Key=SOURCE, Body=body)
    return Execution(world, dict(GIVEN))


def test_each_state_is_reached():
    named = re.findall(r'"(?:StartAt|Next|Default)": "([^"]+)"', json.dumps(MACHINE))

    assert set(named) == set(MACHINE["States"])


def test_history_has_room_for_all_waits():
    """AWS ends an execution of over 25,000 events."""
    seconds, states = MACHINE["States"]["Wait"]["Seconds"], [5, 5, 2, 2, 2]
    assert MACHINE["TimeoutSeconds"] / seconds * sum(states) < 20_000


def test_it_waits_until_every_record_is_answered(execution, api):
    api.inject(Fault(kind="stuck", seconds=900))

    ended = execution.run()

    assert (ended.status, ended.output["counts"]["succeeded"]) == ("SUCCEEDED", 3)
    assert execution.visited.count("Wait") > 3
    assert "DropRetry" not in execution.visited


def test_failed_records_are_tried_again(execution, api):
    api.inject(Fault(kind="item_fails", items=(1,), code=5001, message="no"))

    ended = execution.run()

    assert (ended.status, ended.output["counts"]) == (
        "SUCCEEDED",
        {"total": 1, "succeeded": 1, "failed": 0},
    )
    first, again = sorted(execution.world.manifests())
    assert first.startswith("results/july/first.jsonl/")
    assert again.startswith("results/july/first.retry.jsonl/")
    assert execution.world.objects(f"{first}/retries/")


def test_records_that_fail_again_fail_the_execution(execution, api):
    api.inject(Fault(kind="item_fails", items=(0,), code=5001, message="no", times=0))

    ended = execution.run()

    assert (ended.error, ended.cause["counts"]["failed"]) == ("SomeRecordsFailed", 1)
    assert len(execution.world.manifests()) == 2


def test_record_that_cannot_be_tried_again_fails_the_execution(execution):
    execution.world.s3.put_object(Bucket=BUCKET, Key=SOURCE, Body=BAD)

    assert execution.run().error == "SomeRecordsFailed"


def test_job_that_fails_or_is_cancelled_fails_the_execution(execution, api):
    execution.data["model"] = "bge"
    assert execution.run().cause["error"]["code"] == "bad_model"

    again = Execution(execution.world, dict(GIVEN))
    again.context["Execution"]["Name"] = "second"
    api.inject(Fault(kind="stuck", seconds=3_600))
    real = again.wait

    def cancelled(state):
        following = real(state)
        for item in again.world.items():
            if item["sk"]["S"] == "META" and item["state"]["S"] == "in_progress":
                again.world.control(item["job_id"]["S"], "cancel now")
        return following

    again.wait = cancelled
    ended = again.run()
    assert (ended.error, ended.cause["state"]) == ("JobFailed", "cancelled")
