"""What a batch may have cost although the API reported no tokens for it."""

from dataclasses import replace

import pytest

from dropbatch.core.models import find_model
from functions.poll.batch.paid import priced
from functions.poll.batch.unmetered import Unmetered, unmetered
from shared.models import BatchState, ErrorDetail, Part, PartialReply, Submission, Usage
from tests.support.doubles.ledger_items import BATCH

SENT = replace(BATCH, body_size=1_000, sendable=10, submissions=(Submission("a", 1, 1.0),))
LATE = ErrorDetail("expired", "late")
CHAT, EMBEDDINGS = (
    find_model(name)
    for name in ("@cf/meta/llama-3.3-70b-instruct-fp8-fast", "@cf/baai/bge-small-en-v1.5")
)
TWICE = (Submission("a", 1, 1.0), Submission("b", 2, 2.0))


def part(**usage):
    return Part("key", 1, 1, 1, 1, 0, 10, Usage(**usage))


@pytest.mark.parametrize(
    ("changes", "usage", "added"),
    [
        ({}, {"prompt_tokens": 5}, Unmetered(0, 0, 0)),
        ({}, {}, Unmetered(1_000, 10, 0)),
        ({"submissions": ()}, {}, Unmetered(0, 0, 0)),
        ({"ending": LATE}, {}, Unmetered(1_000, 10, 1, 1_000, 10)),
        ({"ending": LATE, "submissions": TWICE}, {}, Unmetered(2_000, 20, 2, 2_000, 20)),
        ({"submissions": TWICE}, {"prompt_tokens": 5}, Unmetered(1_000, 10, 1, 1_000, 10)),
        ({"submissions": TWICE}, {}, Unmetered(2_000, 20, 1, 1_000, 10)),
        ({"ending": LATE, "cause": "3030"}, {}, Unmetered(1_000, 10, 0, 1_000, 10)),
        (
            {"ending": LATE, "partial_replies": (PartialReply("k", 0),)},
            {"prompt_tokens": 5},
            Unmetered(1_000, 10, 1, 1_000, 10),
        ),
        (
            {
                "ending": LATE,
                "round": 1,
                "round_size": 200,
                "answered": ("key",),
                "submissions": (TWICE[0], replace(TWICE[1], round=1)),
            },
            {"prompt_tokens": 5},
            Unmetered(200, 2, 1, 200, 2),
        ),
        (
            {
                "round": 1,
                "round_size": 200,
                "answered": ("",),
                "submissions": (replace(TWICE[1], round=1),),
            },
            {"prompt_tokens": 5},
            Unmetered(0, 0, 0),
        ),
    ],
)
def test_accepted_work_without_tokens_is_counted(changes, usage, added):
    assert unmetered(replace(SENT, part=part(**usage), **changes)) == added


def test_submits_of_a_divided_batch_are_counted():
    """The first was not collected, and the second failed as a whole."""
    divided = replace(
        SENT, state=BatchState.DIVIDED, submissions=TWICE, cause="3030", isolating=LATE, pieces=2
    )

    assert unmetered(divided) == Unmetered(2_000, 20, 1, 2_000, 20)


@pytest.mark.parametrize(
    ("model", "usage", "is_counted"),
    [
        (CHAT, Usage(5, 6, 11), True),
        (CHAT, Usage(5, None, 5), False),
        (CHAT, Usage(None, 6), False),
        (CHAT, Usage(), False),
        (EMBEDDINGS, Usage(5, None, 5), True),
    ],
)
def test_usage_counts_only_with_all_tokens_that_model_bills(model, usage, is_counted):
    assert priced(model, usage).is_reported == is_counted
