"""`make destroy` has the functions remove what they made at Cloudflare, and says what stays."""

from types import SimpleNamespace

import pytest

from dropbatch.client.events import Events
from dropbatch.errors import Error
from tools import destroy
from tools.account_stack import Stack

OUTPUTS = {"BucketName": "files", "TableName": "ledger", "SubmitFunctionName": "submit"}
THERE = Events("on", "used", "dropbatch-x", "1", subscriptions=("7",))
GONE = Events("off", "switched off")


@pytest.fixture
def stack(monkeypatch):
    monkeypatch.setattr(destroy, "session", lambda _: SimpleNamespace(client=None))
    return Stack("dropbatch", "arn", "UPDATE_COMPLETE", {}, OUTPUTS)


@pytest.fixture
def played(monkeypatch):
    """What is found before the command, and after it; and the commands that were written."""

    def play(before, after=GONE):
        words = []
        monkeypatch.setattr(destroy.events, "look", lambda _: before)
        monkeypatch.setattr(destroy.events, "switch", lambda _, word: words.append(word))
        monkeypatch.setattr(destroy.events, "wait_until_removed", lambda _: after)
        return words

    return play


def test_queue_is_removed_first(stack, played):
    words = played(THERE)
    assert destroy.remove_events({}, stack) == []
    assert words == ["off"]


def test_stack_without_a_queue_needs_no_command(stack, played):
    words = played(GONE)
    assert destroy.remove_events({}, stack) == []
    assert words == []


def test_queue_that_stays_is_told_with_its_commands(stack, played):
    played(THERE, Events("off", "refused: 403", "dropbatch-x", "1", subscriptions=("7",)))
    assert destroy.remove_events({}, stack) == [
        "The queue dropbatch-x stays at Cloudflare. refused: 403. To remove it:",
        "npx wrangler queues subscription delete dropbatch-x --id 7",
        "npx wrangler queues delete dropbatch-x",
    ]


def test_stack_is_deleted_although_nobody_may_look(stack, monkeypatch):
    def denied(_):
        raise Error("denied")

    monkeypatch.setattr(destroy.events, "look", denied)
    assert "denied" in destroy.remove_events({}, stack)[0]


def test_stack_that_never_ran_has_no_queue():
    assert destroy.remove_events({}, Stack("dropbatch", "arn", "ROLLBACK_COMPLETE", {}, {})) == []
