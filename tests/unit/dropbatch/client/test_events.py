"""What a stack knows of completion events, as its functions' variables and its item say it.

And the command.
"""

import pytest
from botocore.exceptions import ClientError

from dropbatch.client import events
from dropbatch.client.events import Events, look, read, switch, wait_until_removed, wrangler
from dropbatch.client.stack import Stack
from dropbatch.errors import NotPermitted

NOW = 1_000_000.0
YES = {"COMPLETION_EVENTS": "yes", "CLOUDFLARE_ACCOUNT_ID": "a" * 32}
QUEUE = {"queue_id": "1", "queue_name": "dropbatch-x"}
BGE, M2M = "@cf/baai/bge-m3", "@cf/meta/m2m100-1.2b"


@pytest.mark.parametrize(
    ("variables", "item", "state", "says"),
    [
        (YES, QUEUE, "on", "queue dropbatch-x"),
        (YES, {}, "not set up", "the first submit"),
        (YES, {"refusal": "403 10000: no", "refused_until": NOW + 1}, "refused", "403 10000: no"),
        (YES, {"refusal": "403 10000: no", "refused_until": NOW + 1}, "refused", "Queues - Edit"),
        (
            YES,
            {"refusal": "403 10000: no", "refused_until": NOW + 1},
            "refused",
            "1970-01-12T13:46:41Z",
        ),
        (
            YES,
            {"refusal": "403 10000: no", "refused_until": NOW - 1},
            "not set up",
            "the first submit",
        ),
        (
            YES,
            QUEUE | {"aside_until": NOW + 60, "refusal": "503"},
            "put aside",
            "1970-01-12T13:47:40Z",
        ),
        (YES, QUEUE | {"aside_until": NOW - 60}, "on", "finished"),
        (YES, {"is_off": True}, "off", "dropbatch events on"),
        (
            YES,
            QUEUE | {"is_off": True, "refusal": "500"},
            "off",
            "refused to delete the queue: 500",
        ),
        ({}, {}, "off", "CompletionEvents"),
        ({"COMPLETION_EVENTS": "no"}, QUEUE, "off", "dropbatch events off"),
        (YES | {"TRANSPORT": "worker"}, {}, "unavailable", "Transport=worker"),
        (
            YES | {"API_CALLS_PER_MINUTE": "13"},
            {},
            "unavailable",
            "ApiCallsPerMinute is 13, and events take 14",
        ),
        (YES | {"API_CALLS_PER_MINUTE": "14"}, QUEUE, "on", "queue dropbatch-x"),
    ],
)
def test_state_is_told_with_what_to_do(variables, item, state, says):
    found = read(variables, item, NOW)
    assert found.state == state
    assert says in found.message


def test_models_are_told_with_their_problems():
    item = QUEUE | {M2M: {"id": "", "problem": "another queue"}, BGE: {"id": "7", "problem": ""}}
    found = read(YES, item, NOW)
    assert found.models == {BGE: "", M2M: "another queue"}
    assert found.subscriptions == ("7",)


@pytest.mark.parametrize(
    ("found", "left"),
    [
        (Events("on", "", "q", "1"), False),
        (Events("off", "", "q", "1"), True),
        (Events("off", ""), False),
    ],
)
def test_queue_that_is_not_used_is_left_over(found, left):
    assert found.left_over is left


def test_what_is_left_can_be_removed_by_hand():
    assert wrangler(Events("off", "", "q", "1", subscriptions=("7",))) == [
        "npx wrangler queues subscription delete q --id 7",
        "npx wrangler queues delete q",
    ]
    assert wrangler(Events("off", "")) == []


class Services:
    """A stack whose functions remove the queue after some looks."""

    def __init__(self, looks=3):
        self.looks, self.written, self.asked = looks, [], {}
        self.denied = False

    def __call__(self, _service):
        return self

    def get_function_configuration(self, **_):
        return {"Environment": {"Variables": YES}}

    def get_item(self, **asked):
        if self.denied:
            raise ClientError(
                {"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "GetItem"
            )
        self.asked, self.looks = asked, self.looks - 1
        wired = {name: {"S": value} for name, value in QUEUE.items()}
        return (
            {"Item": wired | {BGE: {"M": {"id": {"S": "7"}, "at": {"N": "5"}}}}}
            if self.looks >= 0
            else {}
        )

    def put_object(self, **given):
        self.written.append((given["Key"], given["Body"]))


@pytest.fixture
def services():
    return Services()


@pytest.fixture
def stack(services):
    return Stack(
        "dropbatch", "files", {"SubmitFunctionName": "submit", "TableName": "ledger"}, services
    )


def test_item_of_the_stacks_account_is_read(stack, services):
    found = look(stack)
    assert (found.state, found.queue, found.subscriptions) == ("on", "dropbatch-x", ("7",))
    assert services.asked["Key"] == {"pk": {"S": "CONTROL"}, "sk": {"S": f"EVENTS#{'a' * 32}"}}


def test_who_may_not_read_it_is_told_what_permits_it(stack, services):
    services.denied = True
    with pytest.raises(NotPermitted, match="OperatorPolicyArn"):
        look(stack)


def test_command_is_written(stack, services):
    switch(stack, "off")
    assert services.written == [("control/events", b"off")]


def test_removal_is_waited_for(stack):
    slept = []
    assert wait_until_removed(stack, slept.append).queue_id == ""
    assert slept == [1.0] * 3


def test_removal_is_not_waited_for_long(stack, services, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(events.time, "monotonic", lambda: now[0])
    services.looks = 1_000

    def sleep(seconds):
        now[0] += seconds

    assert wait_until_removed(stack, sleep).queue_id == "1"
    assert now[0] == events.OFF_SECONDS
