"""Halves of surrogate pairs become U+FFFD, piece by piece, wherever they lie.

Everything else stays byte for byte.
"""

import json
import mmap
import tempfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.workers_ai import replies as module
from shared.workers_ai.replies import without_lone_surrogates

written = st.lists(
    st.sampled_from([rb"\ud83d", rb"\uDE00", rb"\\", rb"\n", rb"\u00e9", b"x", rb"\\ud83d"]),
    max_size=30,
)


def on_disk(content):
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@pytest.mark.parametrize("kept", [bytes, on_disk])
@given(text=written.map(b"".join))
def test_text_equals_pythons_with_replacements(kept, text):
    content = b'["' + text + b'"]'
    expected = [
        json.loads(content)[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    ]

    repaired = without_lone_surrogates(kept(content))

    assert json.loads(repaired[:]) == expected


@given(text=written.map(b"".join), size=st.integers(1, 20))
def test_size_of_pieces_does_not_matter(text, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", size)
        in_pieces = without_lone_surrogates(text)
    assert in_pieces == without_lone_surrogates(text)


def test_large_reply_takes_pieces_worth_of_memory():
    content = on_disk(b'["' + b"a" * (32 << 20) + rb"\ud83d" + b'"]')
    tracemalloc.start()
    try:
        repaired = without_lone_surrogates(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(repaired, mmap.mmap)
    assert repaired[-10:] == rb"aa\ufffd" + b'"]'
    assert peak < 3 * module.CHUNK_BYTES
