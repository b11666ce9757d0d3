"""A digest that is put down and taken up again is the digest of the whole."""

import functools
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.poll import running_sha256 as module
from functions.poll.running_sha256 import RunningSha256, is_possible, unfinished_bytes

blocks = st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 300).map(bytes)), max_size=8)


@given(before=blocks, after=blocks)
def test_it_resumes_from_stored_state(before, after):
    digest = RunningSha256()
    for block in before:
        digest.update(block)
    taken = b"".join(before)
    digest = RunningSha256(digest.state(), taken[len(taken) - unfinished_bytes(len(taken)) :])
    for block in after:
        digest.update(block)
    assert digest.hexdigest() == hashlib.sha256(b"".join(before + after)).hexdigest()


def test_state_is_short_enough_for_item():
    assert len(RunningSha256().state()) < 256


@given(content=st.binary(min_size=8, max_size=300))
def test_state_holds_none_of_bytes(content):
    """All that end in the same place of a block have states of one form: words and a length."""
    digest = RunningSha256()
    digest.update(content)

    words, length = bytes.fromhex(digest.state())[:32], bytes.fromhex(digest.state())[32:]

    whole = len(content) - unfinished_bytes(len(content))
    same = RunningSha256()
    same.update(content[:whole] + bytes(unfinished_bytes(len(content))))
    assert (words, length) == (bytes.fromhex(same.state())[:32], len(content).to_bytes(8, "big"))


@pytest.mark.parametrize("tail", [b"", b"12", b"1234"])
def test_it_does_not_resume_with_another_tail(tail):
    digest = RunningSha256()
    digest.update(b"123")

    with pytest.raises(ValueError, match="expected 3"):
        RunningSha256(digest.state(), tail)


OF_520_MEGABYTES = "abf51ad954b246009dfe5a50ecd582fd5b8f1b8b27f30393853c3ef721e7fa6e"


def test_more_than_two_to_32_bits_do_not_wrap():
    digest, block = RunningSha256(), bytes(1 << 20)
    for _ in range(520):
        digest.update(block)
    assert RunningSha256(digest.state(), b"").hexdigest() == OF_520_MEGABYTES


def test_library_that_computes_wrongly_is_not_used(monkeypatch):
    class Wrong:
        def __getattr__(self, name):
            return lambda *_: 1

    assert is_possible(), "with this Python"
    monkeypatch.setattr(module, "_crypto", functools.cache(Wrong))
    assert not module.is_possible.__wrapped__()
