"""Which token makes a call.

For a job that submits, and for a batch that was submitted, whatever the secret says.
"""

from dataclasses import replace

import pytest

from dropbatch.core.api_tokens import MOST_TOKENS
from shared.errors import StorageError
from shared.models import FIRST, Sender
from shared.workers_ai.senders import AGAIN_SECONDS, ONLY_ONE, Secret, Tokens, as_sent, as_told
from tests.support.doubles.ledger_items import JOB

HERE, OTHER, THIRD = JOB.plan.account, "f" * 32, "d" * 32
NAMED = "a" * 32
"""The stack's account as a line may name it."""


class Kept:
    """A secret whose value changes, or that cannot be read."""

    def __init__(self, value):
        self.value = value

    def __call__(self, fresh):
        if isinstance(self.value, Exception):
            raise self.value
        return Secret(self.value, "gateway")


def tokens_of(value):
    return Tokens(Kept(value), HERE)


@pytest.mark.parametrize("value", ["one", "", f"one {HERE}", "one\nqueues=q"])
def test_one_token_is_the_first(value):
    assert tokens_of(value).senders() == (FIRST,)
    assert ONLY_ONE.senders() == (FIRST,)


@pytest.mark.parametrize("tokens", [ONLY_ONE, tokens_of("one"), tokens_of("one\ntwo")])
def test_first_token_asks_for_account_that_no_line_names(tokens):
    assert tokens.senders(OTHER) == (Sender(1, OTHER),)
    assert tokens.sender(OTHER, 2) == Sender(1, OTHER)


def test_every_token_submits_for_jobs_of_the_stack():
    tokens = tokens_of(f"one\ntwo {OTHER}\nthree {HERE}")
    assert tokens.senders() == (FIRST, Sender(2, OTHER), Sender(3))


def test_job_of_another_account_stays_there():
    tokens = tokens_of(f"one\ntwo {OTHER}\nthree {THIRD}\nfour {OTHER}")
    assert tokens.senders(OTHER) == (Sender(2, OTHER), Sender(4, OTHER))


@pytest.mark.parametrize(
    ("value", "asks"),
    [
        (f"one\ntwo {OTHER}", Sender(2, OTHER)),
        (f"one\nrotated {OTHER}", Sender(2, OTHER)),
        (f"one\nnew {OTHER}\ntwo {OTHER}", Sender(2, OTHER)),
        (f"two {OTHER}\none", Sender(1, OTHER)),
        (f"one\nthree\ntwo {OTHER}", Sender(3, OTHER)),
        ("one\ntwo", Sender(1, OTHER)),
        ("one", Sender(1, OTHER)),
    ],
    ids=["as sent", "rotated", "shifted", "reordered", "moved down", "of the stack now", "removed"],
)
def test_batch_of_second_token_is_asked_for_at_its_account(value, asks):
    """Its token is the one in its place, if that is of its account; else another of the account.

    Else the first.
    """
    assert tokens_of(value).sender(OTHER, 2) == asks


@pytest.mark.parametrize(
    ("value", "asks"),
    [("one\ntwo", Sender(2)), ("one", FIRST), (f"one {OTHER}\nthree {OTHER}\ntwo", Sender(3))],
)
def test_batch_of_the_stack_is_asked_for_there(value, asks):
    assert tokens_of(value).sender("", 2) == asks


def test_each_token_has_its_credentials():
    tokens = tokens_of(f"one\ntwo {OTHER}\nqueues=q")
    assert [tokens.credentials(one)(False) for one in tokens.senders()] == [  # noqa: FBT003
        ("one", "gateway"),
        ("two", "gateway"),
    ]
    assert tokens.queues_credentials(False) == ("q", "gateway")  # noqa: FBT003


def test_tokens_beyond_the_most_are_left_out():
    senders = tokens_of("\n".join(str(number) for number in range(MOST_TOKENS + 5))).senders()
    assert [one.number for one in senders] == list(range(1, MOST_TOKENS + 1))


def test_first_token_reads_queues_without_one_of_their_own():
    assert tokens_of("one\ntwo").queues_credentials(False).token == "one"  # noqa: FBT003


@pytest.mark.parametrize(("value", "number"), [("", 1), ("one", 2), (f"one\ntwo {OTHER}", 2)])
def test_token_that_is_not_there_cannot_be_sent(value, number):
    """The secret may have changed since it was chosen: its place may be another account's now."""
    assert not tokens_of(value).credentials(Sender(number))(False).can_be_sent()  # noqa: FBT003


@pytest.mark.parametrize(
    ("value", "sender", "sent"),
    [
        (f"two {OTHER}\none", FIRST, "one"),
        (f"two {OTHER}", FIRST, ""),
        (f"one {NAMED}", Sender(1, OTHER), ""),
        (f"one {NAMED}", FIRST, "one"),
        (f"two {OTHER}\none", Sender(1, THIRD), "one"),
        (f"two {OTHER}\none", Sender(1, OTHER), "two"),
        (f"one\ntwo {OTHER}", Sender(1, OTHER), "two"),
        ("queues=q", FIRST, ""),
    ],
)
def test_token_of_a_line_that_names_an_account_is_sent_to_no_other(value, sender, sent):
    assert Tokens(Kept(value), NAMED).credentials(sender)(False).token == sent  # noqa: FBT003


def test_queues_are_read_by_a_token_of_the_stacks_account():
    assert tokens_of(f"two {OTHER}\none\nthree").queues_credentials(False).token == "one"  # noqa: FBT003
    assert tokens_of(f"two {OTHER}").queues_credentials(False).token == ""  # noqa: FBT003


def test_token_that_queues_refuse_makes_room_for_the_next():
    tokens = Tokens(Kept(f"one\ntwo {OTHER}\nthree {NAMED}"), NAMED)
    first = tokens.queues_credentials(False)  # noqa: FBT003
    assert tokens.pass_queues_on(first)
    assert tokens.queues_credentials(False).token == "three"  # noqa: FBT003
    assert not tokens.pass_queues_on(tokens.queues_credentials(False))  # noqa: FBT003
    assert tokens.queues_credentials(False) == first, "all of them were refused"  # noqa: FBT003


def test_token_for_queues_alone_makes_room_for_no_other():
    tokens = tokens_of("one\nqueues=q")
    assert not tokens.pass_queues_on(tokens.queues_credentials(False))  # noqa: FBT003


def test_secret_is_read_again_now_and_then_for_a_token_that_was_added():
    kept = Kept("one")
    fresh = []
    tokens = Tokens(lambda again: fresh.append(again) or kept(again), HERE)
    tokens.senders()
    assert not tokens.is_changed(100.0)
    kept.value = "one\ntwo"
    assert not tokens.is_changed(100.0 + AGAIN_SECONDS - 1)
    assert tokens.is_changed(100.0 + AGAIN_SECONDS)
    assert fresh == [False, True, True]


def test_day_of_a_pause_reads_the_secret_once_a_minute_at_most():
    fresh = []
    tokens = Tokens(lambda again: fresh.append(again) or Secret("one"), HERE)
    for second in range(0, 86_400, 2):
        tokens.is_changed(1e9 + second)
    assert len(fresh) == 1_440


def test_secret_that_cannot_be_read_is_as_it_was():
    kept = Kept("one\ntwo")
    tokens = Tokens(kept, HERE)
    assert len(tokens.senders()) == 2

    kept.value = StorageError("down")
    assert len(tokens.senders()) == 2
    with pytest.raises(StorageError):
        tokens.credentials(Sender(2))(False)  # noqa: FBT003


def test_secret_of_a_worker_is_one_whatever_is_in_it():
    tokens = Tokens(Kept(f"se,cret {OTHER}"), HERE, may_be_several=False)
    assert tokens.senders() == (FIRST,)
    assert tokens.credentials()(False).token == f"se,cret {OTHER}"  # noqa: FBT003


def test_what_is_stored_names_only_an_account_that_is_not_the_jobs():
    """An item of one token, whatever its job's account, is as it always was."""
    of_other = replace(JOB, plan=replace(JOB.plan, account=OTHER))
    assert as_told(JOB, FIRST) == as_told(of_other, Sender(1, OTHER)) == FIRST
    assert as_told(JOB, Sender(2, OTHER)) == Sender(2, OTHER)


@pytest.mark.parametrize(
    ("sent", "account"), [(FIRST, HERE), (Sender(2), HERE), (Sender(2, OTHER), OTHER)]
)
def test_account_sees_job_as_its_own(sent, account):
    assert as_sent(JOB, sent).plan.account == account
