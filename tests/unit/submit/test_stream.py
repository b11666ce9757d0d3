"""An upload is read as a stream, from any place in its bytes; the first tell packing and form."""

import gzip
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.options import path_options
from dropbatch.core.read import form
from dropbatch.core.read.form import detect_form, read_beginning
from dropbatch.core.read.unpack import zstd_module
from dropbatch.errors import UploadRefused
from functions.submit import read as reading
from functions.submit.read import read_decompressed, read_stored
from shared.models import Upload

TEXT = b"".join(b'{"text":"row %d"}\n' % number for number in range(400))
PACK = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd_module().compress}
RANGE = 700


@pytest.fixture(autouse=True, scope="module")
def _small_ranges():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "RANGE_BYTES", RANGE)
        patch.setattr(form, "HEAD_BYTES", 2_000)
        yield


class Stored:
    """A store that holds one upload and keeps what was asked of it."""

    def __init__(self, content):
        self.content = content
        self.asked = []

    def read_version(self, key, version, etag, start, length):
        assert (key, version, etag) == ("inbox/a", "v1", "etag")
        assert length > 0
        self.asked.append((start, length))
        return self.content[start : start + length]


def upload_of(store):
    return Upload("bucket", "inbox/a", "v1", "etag", len(store.content))


def read(store, packing, start, check=lambda *, skipping: None):
    """Read from a place on; there is always time."""
    read_on = partial(read_stored, store, upload_of(store))
    return read_decompressed(read_on, packing, start, SimpleNamespace(check=check))


@pytest.mark.parametrize("packing", PACK)
@given(
    start=st.one_of(
        st.integers(0, len(TEXT) + 1),
        st.sampled_from([0, RANGE, RANGE + 1, len(TEXT), len(TEXT) + 1]),
    )
)
def test_reading_resumes_at_any_offset(packing, start):
    assert b"".join(read(Stored(PACK[packing](TEXT)), packing, start)) == TEXT[start:]


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_time_is_checked_while_unpacking(packing):
    pieces, checks = [TEXT[:1_000], *[b""] * 50, TEXT[1_000:], *[TEXT] * 9], []
    store = Stored(b"".join(map(PACK[packing], pieces)))

    list(read(store, packing, 1_500, lambda *, skipping: checks.append(skipping)))

    assert checks.count(True) > 50
    assert False in checks


def test_no_range_is_before_its_place_beyond_upload_or_read_twice():
    store = Stored(TEXT)
    list(read(store, "plain", 5_000))
    assert min(start for start, _ in store.asked) == 5_000
    assert sum(length for _, length in store.asked) == len(TEXT) - 5_000
    assert max(length for _, length in store.asked) == RANGE


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize(
    ("content", "found"),
    [
        (TEXT, ("jsonl", 0)),
        (b"\xef\xbb\xbf" + TEXT, ("jsonl", 3)),
        (b"", ("jsonl", 0)),
        (b'{"requests":[{"a":1}]}', ("object", 0)),
        (b'[{"a":1}]\n', ("array", 0)),
    ],
)
def test_first_bytes_tell_packing_form_and_place(packing, content, found):
    store = Stored(PACK[packing](content))
    beginning = read_beginning(read_stored(store, upload_of(store)))
    assert (beginning.packing, *detect_form(beginning.head, complete=beginning.complete)) == (
        packing,
        *found,
    )


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("document", [b'[{"a":"%b"}]', b'{"requests":[{"a":"%b"}]}\n'])
def test_document_of_one_line_just_above_limit_is_refused(packing, document):
    store = Stored(PACK[packing](document % (b"x" * 2_010)))
    beginning = read_beginning(read_stored(store, upload_of(store)))
    with pytest.raises(UploadRefused, match="jq -c"):
        detect_form(beginning.head, complete=beginning.complete)


def test_looking_at_large_upload_reads_only_its_head():
    store = Stored(TEXT)
    read_beginning(read_stored(store, upload_of(store)))
    assert sum(length for _, length in store.asked) <= 2_000 + RANGE


@pytest.mark.parametrize("packing", PACK)
def test_foreign_format_is_detected_in_archive(packing):
    store = Stored(PACK[packing](b"PAR1" + bytes(100)))
    with pytest.raises(UploadRefused, match="Parquet"):
        read_beginning(read_stored(store, upload_of(store)))


PATHS = {
    "inbox/a.jsonl": None,
    "inbox/@cf/baai/bge-m3/july.jsonl": "@cf/baai/bge-m3",
    "inbox/@hf/baai/bge-m3/a/b/july.jsonl": "@hf/baai/bge-m3",
    "inbox/x/@cf/baai/bge-m3/july.jsonl": None,
    "inbox/@other/baai/bge-m3/july.jsonl": None,
}


def test_path_may_begin_with_model_id():
    assert {key: path_options(key).get("model") for key in PATHS} == PATHS
