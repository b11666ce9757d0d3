from types import SimpleNamespace

import pytest

from shared.errors import StorageError
from shared.invocation import Invocation


class Clock:
    """Services that only sleep, and the context of an invocation that ends at 400."""

    def __init__(self):
        self.at = 100.0
        self.now = lambda: self.at

    def sleep(self, seconds):
        self.at += seconds

    def get_remaining_time_in_millis(self):
        return int((400.0 - self.at) * 1000)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def invocation(clock):
    return Invocation.of(clock, clock)


def test_time_left_falls_with_clock(clock, invocation):
    assert invocation.seconds_left == 300.0
    clock.at += 50
    assert (invocation.allows(250.0), invocation.allows(250.1)) == (True, False)


@pytest.mark.parametrize(("end", "seconds"), [(200.0, 100.0), (900.0, 300.0)])
def test_earlier_end_shortens_it(invocation, end, seconds):
    assert invocation.until(end).seconds_left == seconds


def test_step_is_retried_while_time_is_left(clock, invocation):
    def fail():
        raise StorageError("slow")

    with pytest.raises(StorageError):
        invocation.retry(fail)

    assert 375.0 < clock.at <= 390.0


def test_message_has_services_of_its_own(clock, invocation):
    class Own:
        def __enter__(self):
            return own

        def __exit__(self, *_):
            own.left = True

    own = SimpleNamespace(now=clock.now)
    clock.called_by_message = lambda hops: Own() if hops == 3 else None

    with invocation.called_by_message(3) as its:
        assert its == Invocation(own, 400.0)
    assert own.left
