"""What a stack knows of completion events, as its functions' variables and its item say it."""

import pytest
from botocore.exceptions import ClientError

from dropbatch.client.events import look, read
from dropbatch.client.stack import Stack
from dropbatch.core.names import CONTROL_PK
from dropbatch.errors import NotPermitted

YES = {
    "COMPLETION_EVENTS": "yes",
    "CLOUDFLARE_ACCOUNT_ID": "a" * 32,
    "EVENTS_QUEUE_NAME": "dropbatch-x",
}
QUEUE = {"queue_id": "1"}
REFUSED = {"refusal": "403 10000: no"}
BGE, M2M = "@cf/baai/bge-m3", "@cf/meta/m2m100-1.2b"


@pytest.mark.parametrize(
    ("variables", "item", "state", "says"),
    [
        (YES, QUEUE, "on", "queue dropbatch-x"),
        (YES, {}, "not set up", "the first submit"),
        (YES, REFUSED, "refused", "403 10000: no"),
        (YES, QUEUE | REFUSED, "refused", "Queues - Edit"),
        ({}, {}, "off", "CompletionEvents"),
        ({"COMPLETION_EVENTS": "no"}, REFUSED, "off", "403 10000: no"),
        (YES | {"TRANSPORT": "worker"}, {}, "unavailable", "Transport=worker"),
    ],
)
def test_state_is_told_with_what_to_do(variables, item, state, says):
    found = read(variables, item)
    assert found.state == state
    assert says in found.message


def test_models_are_told_with_their_problems():
    item = QUEUE | {M2M: {"problem": "another queue"}, BGE: {"id": "7"}}
    assert read(YES, item).models == {BGE: "", M2M: "another queue"}


class Services:
    """What Lambda and DynamoDB tell."""

    denied = False

    def __call__(self, _service):
        return self

    def get_function_configuration(self, **_):
        return {"Environment": {"Variables": YES}}

    def get_item(self, **asked):
        self.asked = asked
        if self.denied:
            error = {"Error": {"Code": "AccessDeniedException", "Message": "no"}}
            raise ClientError(error, "GetItem")
        return {"Item": {"queue_id": {"S": "1"}, BGE: {"M": {"id": {"S": "7"}}}}}


@pytest.fixture
def services():
    return Services()


@pytest.fixture
def stack(services):
    outputs = {"SubmitFunctionName": "submit", "TableName": "ledger"}
    return Stack("dropbatch", "files", outputs, services)


def test_item_of_the_stacks_account_is_read(stack, services):
    found = look(stack)
    assert (found.state, found.queue, found.models) == ("on", "dropbatch-x", {BGE: ""})
    assert services.asked["Key"] == {"pk": {"S": CONTROL_PK}, "sk": {"S": f"EVENTS#{'a' * 32}"}}


def test_who_may_not_read_it_is_told_what_permits_it(stack, services):
    services.denied = True
    with pytest.raises(NotPermitted, match="OperatorPolicyArn"):
        look(stack)
