"""Verbs of operators, and what doctor finds."""

import functools
import io
import json
import re
import time
from datetime import UTC, datetime

import boto3
import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

from dropbatch.cli import operate
from dropbatch.cli.cloudflare import Api
from dropbatch.cli.main import GONE, cli
from dropbatch.cli.operate import examine, redrive_queues
from dropbatch.client.stack import Stack, events_of
from dropbatch.core import names
from dropbatch.core.models import catalog
from dropbatch.errors import Error
from tests.support.shipped import ROOT
from tests.support.web_server import web_server

# ── verbs of operators, the list of models, and what is gone ──────────────────────────────────────
VERBS = list(cli.commands.items())


class Queues:
    """Queues by URL. As SQS documents, a short poll asks some of its servers only."""

    def __init__(self, **messages):
        self.messages = messages

    def __call__(self, service):
        return self

    def receive_message(self, QueueUrl, MaxNumberOfMessages, WaitTimeSeconds=0):  # noqa: N803 - boto3's names
        waiting = self.messages.setdefault(QueueUrl, []) if WaitTimeSeconds else []
        found = [{"Body": body, "ReceiptHandle": body} for body in waiting[:MaxNumberOfMessages]]
        return {"Messages": found} if found else {}

    def send_message(self, QueueUrl, MessageBody):  # noqa: N803
        self.messages.setdefault(QueueUrl, []).append(MessageBody)

    def delete_message(self, QueueUrl, ReceiptHandle):  # noqa: N803
        self.messages[QueueUrl].remove(ReceiptHandle)


OUTPUTS = {"PollQueueUrl": "poll", "PollDeadLetterQueueUrl": "dead"}


def test_every_dead_letter_is_sent_again_but_ticks_that_could_not_start():
    """Sent to the poll queue, a tick would fail there and come back."""
    letters = [f"letter {number}" for number in range(12)]
    queues = Queues(dead=["{}", *letters, "{}"])

    assert redrive_queues(Stack("s", "b", OUTPUTS, queues)) == {"Poll": (12, 2)}
    assert queues.messages == {"dead": [], "poll": letters}


@pytest.mark.parametrize("verb", GONE)
def test_verb_that_is_gone_is_refused_with_the_way_out(verb):
    done = CliRunner().invoke(cli, [verb, "x"])

    assert (done.exit_code, GONE[verb] in done.stderr) == (2, True)
    assert f"  {verb} " not in CliRunner().invoke(cli, ["--help"]).stdout


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        ("models --refresh", "the option task"),
        ("doctor --probe", "make try"),
        ("get x --so-far", "status has the counts"),
        ("get x --as npy", "numpy.save"),
    ],
)
def test_option_that_is_gone_is_refused_with_the_way_out(arguments, way_out):
    done = CliRunner().invoke(cli, arguments.split())
    assert (done.exit_code, way_out in done.stderr) == (2, True)


def test_page_lists_verbs_as_they_help():
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    listed = re.findall(r"^\| `([a-z]+)` \| (.+) \|$", page, re.MULTILINE)

    helped = [(name, " ".join(verb.help.partition("\n\n")[0].split())) for name, verb in VERBS]
    assert [(name, text) for name, text in listed if name in cli.commands] == helped


def lines(*arguments):
    result = CliRunner().invoke(cli, ["models", *arguments])
    assert result.exit_code == 0
    assert result.stderr.startswith(f"Facts of {catalog().read_on}, ")
    return result.stdout.splitlines()


def test_all_lists_models_without_batches():
    reranker = "@cf/baai/bge-reranker-base"
    assert not [line for line in lines() if line.startswith(reranker)]
    (line,) = [line for line in lines("--all") if line.startswith(reranker)]
    assert line.endswith("no batches")


def test_json_has_efforts_and_cached_price():
    shown = {one["id"]: one for one in map(json.loads, lines("--json"))}
    kimi = shown["@cf/moonshotai/kimi-k2.6"]
    facts = kimi["efforts"], kimi["cached_price"], kimi["context"]
    assert facts == (["high", "none"], "0.160", 262_144)
    assert kimi["read_on"] == catalog().read_on
    assert "0E" not in str(shown)


# ── `doctor`: each thing that can be wrong is found, with what to do ──────────────────────────────
BGE = "@cf/baai/bge-small-en-v1.5"
ALARM = "dropbatch-StuckItemsAlarm-1A2B3C4D5E6F"
REFUSED_TOKEN = {"code": "token_refused", "message": "Put a good one."}
WAITING = {"state": "in_progress", "waiting_for": REFUSED_TOKEN}


@functools.cache
def client(service):
    keys = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "test")
    return boto3.client(service, "us-east-1", **keys)


class Services:
    """A stack in good order; each attribute is one thing that may be wrong with it."""

    def __init__(self):
        self.status = "UPDATE_COMPLETE"
        self.created = datetime(2020, 1, 1, tzinfo=UTC)
        self.function = {"State": "Active", "LastUpdateStatus": "Successful"}
        self.environment = {"WORKERS_AI_BASE_URL": "https://api", "CLOUDFLARE_ACCOUNT_ID": "a" * 32}
        self.ticked = time.time() - 20
        self.dead = 0
        self.word = None
        self.jobs = []
        self.alarms = []
        self.events = {}
        self.denied = set()

    def __call__(self, service):
        return self

    def _may(self, operation):
        if operation in self.denied:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, operation)

    def describe_stacks(self, **_):
        return {"Stacks": [{"StackStatus": self.status, "CreationTime": self.created}]}

    def get_function_configuration(self, **_):
        self._may("GetFunctionConfiguration")
        return self.function | {"Environment": {"Variables": self.environment}}

    def get_paginator(self, operation):
        service = "logs" if operation == "filter_log_events" else "cloudwatch"
        paginator = client(service).get_paginator(operation)
        paginator._method = getattr(self, operation)
        return paginator

    def filter_log_events(self, nextToken=None, **_):  # noqa: N803 - boto3's name
        if nextToken is None:
            return {"events": [], "nextToken": "second"}
        return {"events": [{"timestamp": self.ticked * 1000}] if self.ticked else []}

    def get_queue_attributes(self, QueueUrl, **_):  # noqa: N803 - boto3's name
        count = self.dead if QueueUrl == "dead" else 3
        return {"Attributes": {"ApproximateNumberOfMessages": str(count)}}

    def get_object(self, Key, **_):  # noqa: N803 - boto3's name
        if self.word is None or Key != names.STACK_CONTROL:
            raise ClientError({"Error": {"Code": "NoSuchKey", "Message": "none"}}, "GetObject")
        return {"Body": io.BytesIO(self.word), "ETag": "e"}

    def get_item(self, **_):
        self._may("GetItem")
        return {"Item": self.events}

    def describe_alarms(self, NextToken=None, **_):  # noqa: N803
        self._may("DescribeAlarms")
        first = {"MetricAlarms": [], "NextToken": "second"}
        return {"MetricAlarms": self.alarms} if NextToken else first


@pytest.fixture
def services(monkeypatch):
    monkeypatch.delenv("CLOUDFLARE_API_TOKEN", raising=False)
    found = Services()
    monkeypatch.setattr(operate, "history", lambda *_: ((None, status) for status in found.jobs))
    return found


NAMES = {"SubmitFunctionName": "submit", "PollFunctionName": "poll", "TableName": "ledger"}


def findings(services):
    stack = Stack("dropbatch", "bucket", OUTPUTS | NAMES, services)
    return {one.name: one for one in examine(stack)}


@pytest.mark.parametrize(
    ("attribute", "value", "name", "says"),
    [
        ("status", "UPDATE_ROLLBACK_FAILED", "stack", "make deploy"),
        ("function", {"State": "Failed", "StateReason": "no key"}, "functions", "no key"),
        ("ticked", 0, "tick", "schedule"),
        ("ticked", 86_400.0, "tick", "ago"),
        ("dead", 7, "dead letters", "dropbatch redrive"),
        (
            "alarms",
            [{"AlarmName": ALARM, "AlarmDescription": "Look."}],
            "alarms",
            f"{ALARM}: Look.",
        ),
        ("jobs", [WAITING], "pauses", "1 job waiting: token_refused: Put a good one."),
    ],
)
def test_what_is_wrong_is_found_with_what_to_do(services, attribute, value, name, says):
    setattr(services, attribute, value)

    found = findings(services)[name]

    assert found.level == "bad"
    assert says in found.message


def test_events_that_do_not_come_are_noted_with_what_to_do(services):
    services.environment["COMPLETION_EVENTS"] = "yes"
    services.events = {"refusal": {"S": "403 10000: no"}}
    refused = findings(services)["events"]
    assert (refused.level, "Queues - Edit" in refused.message) == ("note", True)

    problem = {"M": {"problem": {"S": "another queue hears of it"}}}
    services.events = {"queue_id": {"S": "1"}, BGE: problem}
    said = findings(services)["events"].message
    assert said == f"{BGE}: no events: another queue hears of it. Its batches are polled."


EVENTS_ON = {"COMPLETION_EVENTS": "yes", "EVENTS_QUEUE_NAME": "dropbatch-x"}
REFUSED = {"refusal": {"S": "403 10000: no"}}


@pytest.mark.parametrize(
    ("variables", "item", "says"),
    [
        (EVENTS_ON, {"queue_id": {"S": "1"}}, "on: batches are polled when .* (dropbatch-x)"),
        (EVENTS_ON, {}, "not set up: the first submit"),
        (EVENTS_ON, {"queue_id": {"S": "1"}} | REFUSED, "refused: .* Queues - Edit"),
        ({}, {}, "off: switched off by the parameter CompletionEvents"),
        ({"COMPLETION_EVENTS": "no"}, REFUSED, "off: .* 403 10000: no"),
        (EVENTS_ON | {"TRANSPORT": "worker"}, {}, "unavailable: Transport=worker"),
    ],
)
def test_state_of_events_is_told(variables, item, says):
    ((_, message),) = events_of(variables, item)
    assert re.match(says.replace("(", r"\(").replace(")", r"\)"), message)


def test_paused_stack_is_noted(services):
    services.word = b"pause\n"
    assert "dropbatch resume" in findings(services)["pauses"].message


def test_alarms_of_other_stacks_are_not_shown(services):
    names = ("dropbatch-staging-TokenRefusedAlarm-1A2B3C4D5E6F", "dropbatch-web-api-5xx")
    services.alarms = [{"AlarmName": name, "AlarmDescription": "Not ours."} for name in names]

    assert findings(services)["alarms"].level == "ok"


def test_what_may_not_be_looked_at_does_not_end_visit(services):
    services.denied = {"DescribeAlarms", "GetFunctionConfiguration"}

    found = findings(services)

    unknown = {name for name, one in found.items() if one.level == "unknown"}
    assert unknown == {"alarms", "events", "functions", "tick"}
    assert "OperatorPolicyArn" in found["alarms"].message
    assert found["dead letters"].level == "ok"


@pytest.fixture
def server():
    with web_server() as server:
        yield server


@pytest.mark.parametrize(("status", "level"), [(200, "ok"), (403, "bad"), (500, "unknown")])
def test_token_is_checked_at_address_that_ends_in_a_slash(
    services, server, monkeypatch, status, level
):
    server.status, server.body = status, b'{"success":true,"errors":[],"result":[]}'
    services.environment |= {"WORKERS_AI_BASE_URL": f"{server.url}/v4/"}
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", "token")

    assert findings(services)["token"].level == level
    assert server.requests[0][0] == f"/v4/accounts/{'a' * 32}/ai/models/search?per_page=1"


def test_redirect_is_not_followed_with_token(server):
    server.status, server.headers = 301, {"Location": f"{server.url}/elsewhere"}

    assert Api(server.url, "a" * 32, "secret").get("/x").status == 301
    assert [path for path, _ in server.requests] == ["/x"]


def test_token_is_sent_over_https_only():
    with pytest.raises(Error, match="https"):
        Api("http://example.com", "a" * 32, "secret").get("/x")
