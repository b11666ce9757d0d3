"""What a secret's value is read as.

Tokens with their numbers and accounts, and the token of the Queues API.
"""

import pytest

from dropbatch.core.api_tokens import ApiToken, ApiTokens, read_tokens

OTHER = "f" * 32


@pytest.mark.parametrize("value", ["abc", " abc\n", "\r\nabc\r\n", "abc\n\n"])
def test_plain_token_is_the_only_one(value):
    assert read_tokens(value) == ApiTokens((ApiToken("abc"),))


@pytest.mark.parametrize("value", ["", " \n ", ","])
def test_empty_value_has_no_token(value):
    assert read_tokens(value) == ApiTokens(())


@pytest.mark.parametrize("end", ["\n", "\r\n", ",", ", ", "\n\n"])
def test_each_line_is_a_token(end):
    assert read_tokens(end.join(["one", f"two {OTHER}", "three"])).tokens == (
        ApiToken("one"),
        ApiToken("two", OTHER),
        ApiToken("three"),
    )


def test_token_that_is_there_twice_counts_once():
    """It would be sent at twice its rate."""
    assert read_tokens(f"one\ntwo\none {OTHER}\nthree").tokens == (
        ApiToken("one"),
        ApiToken("two"),
        ApiToken("three"),
    )


@pytest.mark.parametrize(
    "value", ["queues=q\none\ntwo", "one\nqueues= q\ntwo", "one\ntwo\nqueues=q\nqueues=later"]
)
def test_token_of_queues_has_no_number(value):
    assert read_tokens(value) == ApiTokens((ApiToken("one"), ApiToken("two")), "q")


@pytest.mark.parametrize(
    "line", ["a b", '{"token": "a"}', f"a {OTHER} b", f"a {OTHER[1:]}", f"a {OTHER.upper()}"]
)
def test_line_that_fits_nothing_is_taken_whole(line):
    """It has a space, so it is sent to nobody and pauses itself."""
    assert read_tokens(f"one\n{line}").tokens == (ApiToken("one"), ApiToken(line))
