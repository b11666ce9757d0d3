import msgspec
import pytest

from functions.poll.handler import process_message


@pytest.mark.parametrize("body", ['{"do":"unknown"}', "{}", '{"Records":[]}'])
def test_unknown_message_fails(body):
    """It is delivered again, and in the end kept in the dead-letter queue.

    Nothing of it is done.
    """
    with pytest.raises(msgspec.ValidationError):
        process_message(None, body)
