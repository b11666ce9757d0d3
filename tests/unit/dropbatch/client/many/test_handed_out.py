"""Spans of records that were handed out: neighbours become one, gaps are what is missing."""

from dropbatch.client.results.handed_out import HandedOut, Span
from hypothesis import given
from hypothesis import strategies as st


@given(
    st.permutations(range(12)),
    st.integers(0, 12),
    st.lists(st.integers(1, 9), min_size=12, max_size=12),
)
def test_spans_and_gaps_tile_the_records(order, count, sizes):
    done = HandedOut()
    for batch in order[:count]:
        done.add([Span(2 * batch, 2 * batch + 2, sizes[batch], f"{batch:08}")])

    taken = sorted(order[:count])
    assert done.records == 2 * count
    assert done.size == sum(sizes[batch] for batch in taken)
    covered = {id_ for one in done.spans for id_ in range(one.first, one.end)}
    missing = {id_ for first, end in done.gaps(24) for id_ in range(first, end)}
    assert covered == {id_ for batch in taken for id_ in (2 * batch, 2 * batch + 1)}
    assert (covered | missing, covered & missing) == (set(range(24)), set())
    assert all(
        one.end < other.first for one, other in zip(done.spans, done.spans[1:], strict=False)
    )
    assert all(int(one.last_batch) == one.end // 2 - 1 for one in done.spans)


def test_begun_piece_is_forgotten_once_it_is_whole():
    done = HandedOut(begun=[(0, 1), (8, 9)])

    done.add([Span(0, 4, 10, "00000001")])

    assert done.begun == [(8, 9)]
