"""How soon small jobs are over on the deployed stack.

Besides what the API and the first poll take.
"""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from local import aws
from tests.support.aws.stack import MODEL, as_lines, requests, running_stack
from tests.support.shipped import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1_500)]

DROPS, AT_ONCE, WARMING = 100, 2, 8
LOOK_SECONDS = 0.05


class Answers:
    """Notes for each batch how long the API had it."""

    def __init__(self, stack):
        self.seconds, self.over = {}, threading.Event()
        self._watcher = threading.Thread(target=self._watch, args=(stack,))

    def __enter__(self):
        self._watcher.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self._watcher.join()

    def _watch(self, stack):
        while not self.over.wait(LOOK_SECONDS):
            now = time.time()
            for one in stack.bill():
                if one["answers"]:
                    self.seconds.setdefault(one["request_id"], now - one["time"])


def drop(stack, number):
    """Drop a small file; seconds until its manifest is there, and its batch's id at the API."""
    path, began = f"small/{number}.jsonl", time.time()
    stack.drop(path, as_lines(requests(1 + number % 20, f"drop {number}")), model=MODEL)
    while (found := stack.over(path)) is None:
        assert time.time() < began + 100
        time.sleep(LOOK_SECONDS)
    (batch,) = found[1]["batches"]
    return time.time() - began, batch["request_id"]


def test_small_drops_take_a_second_of_their_own():
    """95 of 100, of 1 to 20 records, two at a time."""
    with (
        running_stack(aws.Home(ROOT / ".local/test-drops"), "MaxRequestsPerBatch=400") as stack,
        Answers(stack) as api,
    ):
        with ThreadPoolExecutor(AT_ONCE) as threads:
            dropped = list(threads.map(lambda number: drop(stack, number), range(WARMING + DROPS)))[
                WARMING:
            ]
        time.sleep(1)

    own = sorted(seconds - api.seconds[request_id] for seconds, request_id in dropped)
    told = {"half": own[DROPS // 2], "95 of 100": own[DROPS * 95 // 100 - 1], "slowest": own[-1]}
    logging.getLogger(__name__).info("%s", told)
    assert told["95 of 100"] <= 1.0, told
