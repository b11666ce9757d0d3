"""A secret that holds more than one token is told from one that holds none."""

import pytest

from dropbatch.core.errors import holds_several
from shared.workers_ai.transports import NO_TOKEN, ONE_A_STACK, Credentials

TABLE = {
    "abc": "",
    "": NO_TOKEN,
    "one\ntwo": ONE_A_STACK,
    "one,two": ONE_A_STACK,
    f"one {'f' * 32}": ONE_A_STACK,
    "queues=three": ONE_A_STACK,
    "ä": NO_TOKEN,
}


@pytest.mark.parametrize("value", TABLE)
def test_value_that_cannot_be_sent_is_named(value):
    assert Credentials(value).fault() == TABLE[value]
    assert holds_several(f" {value}\n") == (TABLE[value] == ONE_A_STACK)
