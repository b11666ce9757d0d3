"""What a batch may have cost although the API reported no tokens for it."""

from dataclasses import replace

import pytest

from functions.poll.results.unmetered import Unmetered, unmetered
from shared.models import ErrorDetail, Part, PartialReply, Submission, Usage
from tests.support.doubles.ledger_items import BATCH

SENT = replace(BATCH, body_size=1_000, sendable=10, submissions=(Submission("a", 1, 1.0),))
LATE = ErrorDetail("expired", "late")
TWICE = (Submission("a", 1, 1.0), Submission("b", 2, 2.0))


def part(**usage):
    return Part("key", 1, 1, 1, 1, 0, 10, Usage(**usage))


@pytest.mark.parametrize(
    ("changes", "usage", "added"),
    [
        ({}, {"prompt_tokens": 5}, Unmetered(0, 0, 0)),
        ({}, {}, Unmetered(1_000, 10, 0)),
        ({"submissions": ()}, {}, Unmetered(0, 0, 0)),
        ({"ending": LATE}, {}, Unmetered(1_000, 10, 1)),
        ({"ending": LATE, "submissions": TWICE}, {}, Unmetered(2_000, 20, 2)),
        ({"submissions": TWICE}, {"prompt_tokens": 5}, Unmetered(1_000, 10, 1)),
        ({"ending": LATE, "cause": "3030"}, {}, Unmetered(1_000, 10, 0)),
        ({"ending": LATE, "partial_replies": (PartialReply("k", 0),)}, {"prompt_tokens": 5}, Unmetered(1_000, 10, 1)),
        (
            {
                "ending": LATE,
                "round": 1,
                "round_size": 200,
                "answered": ("key",),
                "submissions": (TWICE[0], replace(TWICE[1], round=1)),
            },
            {"prompt_tokens": 5},
            Unmetered(200, 2, 1),
        ),
        (
            {"round": 1, "round_size": 200, "answered": ("",), "submissions": (replace(TWICE[1], round=1),)},
            {"prompt_tokens": 5},
            Unmetered(0, 0, 0),
        ),
    ],
)
def test_accepted_work_without_tokens_is_counted(changes, usage, added):
    assert unmetered(replace(SENT, **changes), part(**usage)) == added
