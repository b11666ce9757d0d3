"""`make destroy` removes what the functions made at Cloudflare, and says what stays."""

from types import SimpleNamespace

import pytest

from dropbatch.cli.cloudflare import Reply
from tools import destroy
from tools.account_stack import Stack

OUTPUTS = {"BucketName": "files", "TableName": "ledger", "SubmitFunctionName": "submit"}
VARIABLES = {
    "CLOUDFLARE_ACCOUNT_ID": "a",
    "WORKERS_AI_BASE_URL": "https://api",
    "CLOUDFLARE_API_TOKEN_SECRET_ARN": "arn",
    "EVENTS_QUEUE_NAME": "dropbatch-x",
}
SUBSCRIBED = [
    {"id": "7", "destination": {"queue_id": "1"}},
    {"id": "8", "destination": {"queue_id": "2"}},
]


@pytest.fixture
def stack(monkeypatch):
    monkeypatch.setattr(destroy, "session", lambda _: SimpleNamespace(client=lambda _: None))
    monkeypatch.setattr(destroy, "secret_value", lambda *_: "token")
    monkeypatch.setattr(destroy.events, "variables_of", lambda _: VARIABLES)
    return Stack("dropbatch", "arn", "UPDATE_COMPLETE", {}, OUTPUTS)


@pytest.fixture
def called(monkeypatch):
    """The calls, with the queues of the account and their status."""

    def play(queues, status=200):
        calls = []

        def call(api, method, path, _body=None):
            calls.append(f"{method} {path}")
            assert (api.base_url, api.token) == ("https://api/accounts/a", "token")
            result = queues if "/queues?" in path else SUBSCRIBED if method == "GET" else None
            error = [] if status == 200 else [{"code": 10000, "message": "no"}]
            return Reply(status, {"success": not error, "errors": error, "result": result})

        monkeypatch.setattr(destroy.Api, "call", call)
        return calls

    return play


def test_subscriptions_and_queue_are_removed(stack, called):
    calls = called([{"queue_name": "dropbatch-x", "queue_id": "1"}])
    assert destroy.remove_events({}, stack) == []
    at = destroy.SUBSCRIPTIONS
    assert [one for one in calls if one.startswith("DELETE")] == [
        f"DELETE {at}/7",
        "DELETE /queues/1",
    ]


def test_account_without_the_queue_is_left_alone(stack, called):
    calls = called([{"queue_name": "another", "queue_id": "1"}])
    assert destroy.remove_events({}, stack) == []
    assert len(calls) == 1


def test_queue_that_stays_is_told(stack, called):
    called([], status=403)
    (said,) = destroy.remove_events({}, stack)
    assert "stays" in said
    assert "HTTP 403, code 10000: no" in said


def test_stack_that_never_ran_has_no_queue():
    assert destroy.remove_events({}, Stack("dropbatch", "arn", "ROLLBACK_COMPLETE", {}, {})) == []
