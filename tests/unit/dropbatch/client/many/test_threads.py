"""Calls at the same time: how many, how far ahead items are taken, and how an error ends them."""

import threading
import time

import pytest

from dropbatch.client.threads import at_once


def test_no_more_calls_than_asked_for():
    busy, most, lock = 0, 0, threading.Lock()

    def call(_):
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.002)
        with lock:
            busy -= 1

    list(at_once(call, range(30), 3))

    assert most == 3


def test_error_is_raised_after_the_others_have_ended():
    ended, free = [], threading.Event()

    def call(one):
        if one == 1:
            free.set()
            raise ValueError("one")
        free.wait(5)
        time.sleep(0.01)
        ended.append(one)

    with pytest.raises(ValueError, match="one"):
        list(at_once(call, range(3), 3))
    assert sorted(ended) == [0, 2]
