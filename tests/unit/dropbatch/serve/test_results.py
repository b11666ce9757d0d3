"""The separation of answers and failures, wherever the blocks end."""

import pytest

from dropbatch.serve.objects import (
    batch_of_result,
    created_at,
    is_batch,
    is_file,
    new_id,
    result_file,
)
from dropbatch.serve.results import _lines_of

ANSWERS = [
    b'{"custom_id":"%d","response":{"status_code":200,"body":{"a":"\\n"}},"error":null}\n' % n
    for n in range(5)
]
REFUSED = b'{"custom_id":"x","response":{"status_code":400,"body":{}},"error":null}\n'
LATE = b'{"custom_id":"y","response":null,"error":{"code":"batch_expired"}}\n'


@pytest.mark.parametrize("size", [1, 7, 60, 10_000])
def test_lines_are_separated_wherever_blocks_end(size):
    whole = b"".join([REFUSED, *ANSWERS[:2], LATE, *ANSWERS[2:], REFUSED])

    def blocks():
        return (whole[at : at + size] for at in range(0, len(whole), size))

    assert b"".join(_lines_of(blocks(), answered=True)) == b"".join(ANSWERS)
    assert b"".join(_lines_of(blocks(), answered=False)) == REFUSED + LATE + REFUSED


def test_later_ids_sort_first_and_hold_their_time():
    ids = [new_id(now) for now in (1_795_000_000.5, 1_795_000_000.502, 1_900_000_000)]

    assert sorted(ids) == ids[::-1]
    assert [created_at(f"file-{one}") for one in ids] == [
        1_795_000_000,
        1_795_000_000,
        1_900_000_000,
    ]
    batch = f"batch_{ids[0]}"
    assert (is_file(f"file-{ids[0]}"), is_batch(batch), created_at(batch)) == (
        True,
        True,
        1_795_000_000,
    )
    assert batch_of_result(result_file(batch, "error")) == (batch, "error")
    assert created_at(result_file(batch, "error")) == 1_795_000_000


@pytest.mark.parametrize(
    "text",
    ["", "file-", "file-../x", f"file-{'0' * 28}", f"batch_{'0' * 27}\n", f"file-{'G' * 27}"],
)
def test_what_has_not_the_form_is_no_id(text):
    assert (is_file(text), is_batch(text), batch_of_result(text)) == (False, False, None)
