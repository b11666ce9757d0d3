"""`doctor`: each thing that can be wrong is found, with what to do."""

import functools
import io
import re
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import boto3
import pytest
from botocore.exceptions import ClientError

from dropbatch.cli import operate
from dropbatch.cli.cloudflare import Api
from dropbatch.cli.operate import examine
from dropbatch.client import events
from dropbatch.client.stack import Stack
from dropbatch.core import names
from dropbatch.errors import Error

BGE = "@cf/baai/bge-small-en-v1.5"
ALARM = "dropbatch-StuckItemsAlarm-1A2B3C4D5E6F"


@functools.cache
def client(service):
    return boto3.client(
        service, "us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )


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
        paginator = client(
            {"filter_log_events": "logs", "describe_alarms": "cloudwatch"}[operation]
        ).get_paginator(operation)
        paginator._method = getattr(self, operation)
        return paginator

    def filter_log_events(self, nextToken=None, **_):  # noqa: N803 - boto3's name
        if nextToken is None:
            return {"events": [], "nextToken": "second"}
        return {"events": [{"timestamp": self.ticked * 1000}] if self.ticked else []}

    def get_queue_attributes(self, QueueUrl, **_):  # noqa: N803 - boto3's name
        return {
            "Attributes": {
                "ApproximateNumberOfMessages": str(self.dead if QueueUrl == "dead" else 3)
            }
        }

    def get_object(self, Key, **_):  # noqa: N803 - boto3's name
        if self.word is None or Key != names.STACK_CONTROL:
            raise ClientError({"Error": {"Code": "NoSuchKey", "Message": "none"}}, "GetObject")
        return {"Body": io.BytesIO(self.word), "ETag": "e"}

    def get_item(self, **_):
        self._may("GetItem")
        return {"Item": self.events}

    def describe_alarms(self, NextToken=None, **_):  # noqa: N803
        self._may("DescribeAlarms")
        return (
            {"MetricAlarms": self.alarms}
            if NextToken
            else {"MetricAlarms": [], "NextToken": "second"}
        )


@pytest.fixture
def services(monkeypatch):
    monkeypatch.delenv("CLOUDFLARE_API_TOKEN", raising=False)
    found = Services()
    monkeypatch.setattr(operate, "history", lambda *_: ((None, status) for status in found.jobs))
    return found


def findings(services):
    outputs = {
        "SubmitFunctionName": "submit",
        "PollFunctionName": "poll",
        "TableName": "ledger",
        "PollQueueUrl": "queue",
        "PollDeadLetterQueueUrl": "dead",
    }
    return {one.name: one for one in examine(Stack("dropbatch", "bucket", outputs, services))}


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
        (
            "jobs",
            [
                {
                    "state": "in_progress",
                    "waiting_for": {"code": "token_refused", "message": "Put a good one."},
                }
            ],
            "pauses",
            "1 job waiting: token_refused: Put a good one.",
        ),
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

    services.events = {
        "queue_id": {"S": "1"},
        BGE: {"M": {"problem": {"S": "another queue hears of it"}}},
    }
    assert (
        findings(services)["events"].message
        == f"{BGE}: no events: another queue hears of it. Its batches are polled."
    )


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
    ((_, message),) = events.told(variables, item)
    assert re.match(says.replace("(", r"\(").replace(")", r"\)"), message)


def test_alarms_of_other_stacks_are_not_shown(services):
    names = ("dropbatch-staging-TokenRefusedAlarm-1A2B3C4D5E6F", "dropbatch-web-api-5xx")
    services.alarms = [{"AlarmName": name, "AlarmDescription": "Not ours."} for name in names]

    assert findings(services)["alarms"].level == "ok"


def test_paused_stack_is_reported_as_paused(services):
    services.word = b"pause\n"

    assert "dropbatch resume" in findings(services)["pauses"].message


def test_what_may_not_be_looked_at_does_not_end_visit(services):
    services.denied = {"DescribeAlarms", "GetFunctionConfiguration"}

    found = findings(services)

    assert {name for name, one in found.items() if one.level == "unknown"} == {
        "alarms",
        "events",
        "functions",
        "tick",
    }
    assert "OperatorPolicyArn" in found["alarms"].message
    assert found["dead letters"].level == "ok"


@pytest.fixture
def server():
    """A server whose answers a test sets; it notes what it was sent."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        answer = (200, {}, b"{}")

        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            status, headers, body = Handler.answer
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Print nothing."""

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}", Handler, seen
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.mark.parametrize(("status", "level"), [(200, "ok"), (403, "bad"), (500, "unknown")])
def test_token_is_checked_at_address_that_ends_in_a_slash(
    services, server, monkeypatch, status, level
):
    url, handler, seen = server
    handler.answer = (status, {}, b'{"success":true,"errors":[],"result":[]}')
    services.environment |= {"WORKERS_AI_BASE_URL": f"{url}/v4/"}
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", "token")

    assert findings(services)["token"].level == level
    assert seen[0][0] == f"/v4/accounts/{'a' * 32}/ai/models/search?per_page=1"


def test_redirect_is_not_followed_with_token(server):
    url, handler, seen = server
    handler.answer = (301, {"Location": f"{url}/elsewhere"}, b"")

    assert Api(url, "a" * 32, "secret").get("/x").status == 301
    assert [path for path, _ in seen] == ["/x"]


def test_token_is_sent_over_https_only():
    with pytest.raises(Error, match="https"):
        Api("http://example.com", "a" * 32, "secret").get("/x")
