"""After a POST every wait is bounded by the time that is left: the sums of the longest waits."""

import pytest

from functions.poll import poll as ask
from functions.submit import submit as send
from local.template import template
from shared.bootstrap import OBJECT_CALLS, QUICK_CALLS
from shared.workers_ai import client as workers_ai

LAMBDA_SECONDS = template()["Globals"]["Function"]["Timeout"]


def test_hanging_table_leaves_time_for_receipt():
    assert QUICK_CALLS.longest + OBJECT_CALLS.longest < send.SETTLE_SECONDS


def test_rejection_is_recorded_after_token_check():
    assert workers_ai.TOKEN_CHECK_SECONDS + QUICK_CALLS.longest < send.SETTLE_SECONDS


def test_post_begins_early_despite_hanging_table():
    assert QUICK_CALLS.longest + send.POST_SECONDS + send.SETTLE_SECONDS < LAMBDA_SECONDS


def test_finished_reply_is_stored_in_time():
    """By one call that hangs up to its last try."""
    assert OBJECT_CALLS.longest < ask.COLLECT_SECONDS


def test_longest_wait_counts_tries_and_pauses():
    """Three tries of (2 + 3) seconds, pauses of up to 1 and 2.

    And after a busy answer up to 0.12, 0.24 and 0.48.
    """
    assert (QUICK_CALLS.connect, QUICK_CALLS.read, QUICK_CALLS.tries) == (2, 3, 3)
    assert QUICK_CALLS.longest == pytest.approx(18.84)
