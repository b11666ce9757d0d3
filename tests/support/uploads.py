"""Uploads of every kind for the tests of the cut, and the invariants that apply to all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st

from dropbatch.core.plan import Checkpoint, SplitPlan, max_records
from dropbatch.core.read import cut as module
from dropbatch.core.read import lines as windows
from dropbatch.core.read import records
from dropbatch.core.read.cut import read_batches
from dropbatch.core.read.index import record_spans
from shared.staged_batch import StagedInfo, decode_index, encode_index

LIMIT = 400
"""Replaces the API's 10,000,000 bytes here, so that examples stay small."""
WRAPPING = len(b'{"requests":[]}')
LARGEST = LIMIT - 1 - WRAPPING
EXCERPT = 60


@contextmanager
def small_limits() -> Iterator[None]:
    """Set limits at which examples stay small."""
    with pytest.MonkeyPatch.context() as patch:
        for one in (module, records, windows):
            patch.setattr(one, "API_BODY_LIMIT", LIMIT)
        for one in (records, windows):
            patch.setattr(one, "EXCERPT_BYTES", EXCERPT)
        patch.setattr(windows, "WINDOW_BYTES", 200)
        patch.setattr(module, "MIN_RECORDS", 2)
        patch.setattr(windows, "WINDOW_ELEMENTS", 3)
        yield


def record_of(size: int) -> bytes:
    """A valid record of exactly this many bytes."""
    frame = b'{"text":""}'
    return b'{"text":"%b"}' % (b"x" * (size - len(frame)))


sizes = st.one_of(
    st.integers(11, 60), st.integers(11, LARGEST), st.sampled_from([LARGEST - 1, LARGEST])
)
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
members = st.dictionaries(
    st.one_of(st.sampled_from(["text", "external_reference", "prompt"]), texts),
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(-1e9, 1e9), texts
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)
        ),
        max_leaves=5,
    ),
    max_size=4,
)


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """A valid record as somebody may write it: escaped or not, with more or less white space."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :  ")]))
    text = json.dumps(draw(members), ensure_ascii=draw(st.booleans()), separators=separators)
    return text.encode()


out_of_range = st.sampled_from(
    [b'{"a":%b}' % (b"9" * 300), b'{"a":1e400}', b'{"a":[{"b":-1e999}],"c":2}']
)
sound = st.one_of(sizes.map(record_of), written(), out_of_range).filter(
    lambda record: len(record) <= LARGEST
)
too_large = st.integers(LARGEST + 1, 3 * LIMIT).map(record_of)
not_json = st.sampled_from(
    [
        b"{",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"external_reference":1e400}',
        b"{'a':1}",
        b'{"a":1}{"a":2}',
        b'{"a":1,}',
        b'{"a":01}',
        b'{"a":"\x01"}',
        b"\xef\xbb\xbf{}",
        b"text",
        b"}",
    ]
)
half = st.sampled_from(
    [b'{"a":"\\ud800"}', b'{"a":"\\ud800 b"}', b'{"a":"\\udc00\\ud800"}', b'{"\\udc00":1}']
)
"""Objects but for half of a surrogate pair."""
not_text = st.sampled_from(
    [
        b'{"a":"\xff"}',
        b'{"a\xc0\xaf":1}',
        b'{"a":"\xed\xa0\x80"}',
        b"\xfe",
        b'{"a":"\xf4\x90\x80\x80"}',
    ]
)
not_object = st.sampled_from(
    [b"1", b'"text"', b"null", b"true", b"[]", b'[{"a":1}]', b" 17 ", b"-0.5e3"]
)
blank = st.sampled_from([b"", b" ", b"\t", b"\r", b" \t \r", b" " * (2 * LIMIT)])

kinds = st.one_of(
    st.tuples(sound, st.just("")),
    st.tuples(sound, st.just("")),
    st.tuples(sound, st.just("")),
    st.tuples(too_large, st.just("too_large")),
    st.tuples(not_json, st.just("invalid_json")),
    st.tuples(half, st.just("bad_record")),
    st.tuples(not_text, st.just("invalid_utf8")),
    st.tuples(not_object, st.just("not_an_object")),
    st.tuples(blank, st.just("blank")),
)
endings = st.sampled_from([b"\n", b"\n", b"\r\n"])
uploads = st.lists(st.tuples(kinds, endings), max_size=25)
limits = st.tuples(
    st.integers(1, 12),
    st.one_of(st.integers(WRAPPING + 1, LIMIT - 1), st.just(LIMIT - 1)),
    st.integers(1, 12),
)
blocks_of = st.one_of(st.integers(1, 7), st.integers(8, 4 * LIMIT), st.just(1 << 20))


def plan_of(limits: Sequence[int], form: Any = "jsonl", start: int = 0) -> SplitPlan:
    """The limits are the records and bytes of a batch and, if batches grow."""
    first = min(limits[0], limits[2]) if len(limits) > 2 else limits[0]
    return SplitPlan("@cf/a/b", limits[0], limits[1], "account", form, "plain", start, first)


def in_blocks(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def cuts_of(
    plan: SplitPlan,
    data: bytes,
    size: int = 1 << 20,
    start: Checkpoint | None = None,
    number: int = 0,
) -> list[Any]:
    start = start or Checkpoint(offset=plan.start)
    found = read_batches(plan, start, number, in_blocks(data[start.offset :], size))
    return list(found)


def seen(cuts: Iterable[Any]) -> list[Any]:
    """Everything that a cut returns, comparable."""
    return [
        (one.first_id, encode_index(one.rows), one.body, one.end, StagedInfo.of_cut(one))
        for one in cuts
    ]


def records_in(one: Any) -> list[tuple[Any, bytes | None]]:
    """Each row of a cut with its record in the body; None for one that is not there."""
    pairs = zip(one.rows, record_spans(one.rows), strict=True)
    return [(row, one.body[at : at + length] if length else None) for row, (at, length) in pairs]


def check_law(cuts: Sequence[Any], plan: SplitPlan) -> None:
    """Check the invariants of every upload and every plan."""
    next_id = 0
    for number, one in enumerate(cuts):
        sent = [record for _, record in records_in(one) if record is not None]
        assert one.first_id == next_id
        assert len(one.rows) > 0
        next_id += len(one.rows)
        assert one.end.record == next_id
        assert len(one.rows) <= max_records(plan, number)
        assert one.body == (b'{"requests":[' + b",".join(sent) + b"]}" if sent else b"")
        assert len(one.body) <= plan.max_bytes or len(one.rows) == 1
        assert len(one.body) < LIMIT
        assert StagedInfo.of_cut(one) == StagedInfo(
            len(one.rows), len(sent), len(one.body), one.end
        )
        assert seen_rows(decode_index(encode_index(one.rows))) == seen_rows(one.rows)
        if number + 1 < len(cuts) and not any(
            row.code for row in (*one.rows, *cuts[number + 1].rows)
        ):
            is_full = len(one.rows) == max_records(plan, number)
            assert is_full or len(one.body) + 1 + cuts[number + 1].rows[0].length > plan.max_bytes


def seen_rows(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [
        (
            row.line,
            row.length,
            bytes(row.reference),
            row.code,
            row.message,
            bytes(row.request).strip(),
        )
        for row in rows
    ]
