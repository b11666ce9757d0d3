"""What operators see and do of events: `dropbatch.client.events` reads what the functions wrote."""

import pytest

from dropbatch.client import events
from dropbatch.client.stack import Stack
from tests.support.aws.resources import BUCKET, TABLE, client
from tests.support.local_api import LocalApi, LocalQueue

BGE = "@cf/baai/bge-small-en-v1.5"


@pytest.fixture
def on(start):
    """A Dropbatch that uses events."""
    return start(COMPLETION_EVENTS="yes")


@pytest.fixture
def stack(on):
    """The stack as the command line sees it."""
    variables = {
        "COMPLETION_EVENTS": "yes",
        "CLOUDFLARE_ACCOUNT_ID": "0123456789abcdef0123456789abcdef",
    }

    class Functions:
        """What Lambda tells of a function."""

        def get_function_configuration(self, **_):
            return {"Environment": {"Variables": variables}}

    def of(name):
        return Functions() if name == "lambda" else client(name)

    return Stack("dropbatch", BUCKET, {"TableName": TABLE, "SubmitFunctionName": "submit"}, of)


def test_operator_sees_the_queue_and_removes_it(on, api, stack):
    assert events.look(stack).state == "not set up"
    on.upload_records("a.jsonl", [{"text": "a"}], model=BGE)
    on.settle()

    found = events.look(stack)
    assert (found.state, found.queue, found.models) == ("on", api.queues[0]["name"], {BGE: ""})
    assert len(found.subscriptions) == 1

    events.switch(stack, "off")
    on.deliver_all()
    left = events.wait_until_removed(stack, lambda _: None)
    assert (left.state, left.queue_id, api.queues) == ("off", "", [])


def test_operator_sees_what_was_refused(on, api, stack):
    api.switch(queues_refused="403/10000")
    on.upload_records("a.jsonl", [{"text": "a"}], model=BGE)
    on.settle()

    found = events.look(stack)
    assert (found.state, "10000" in found.message) == ("refused", True)

    api.switch(queues_refused="")
    events.switch(stack, "on")
    on.deliver_all()
    assert events.look(stack).state == "not set up"
    on.upload_records("b.jsonl", [{"text": "a"}], model=BGE)
    on.settle(until=lambda: len(on.manifests()) == 2)
    assert events.look(stack).state == "on"


def test_operator_sees_the_model_that_has_no_events(on, api, stack):
    other = LocalQueue(LocalApi(api))
    assert other.subscribe(BGE).is_success
    on.upload_records("a.jsonl", [{"text": "a"}], model=BGE)
    on.settle()

    found = events.look(stack)
    assert (found.state, bool(found.models[BGE]), found.subscriptions) == ("on", True, ())
