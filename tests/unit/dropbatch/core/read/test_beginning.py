"""Stored bytes to unpacked bytes (plain, gzip, zstd), and the form of an upload."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.read import unpack as module
from dropbatch.core.read.form import detect_form, end_of_value
from dropbatch.core.read.unpack import (
    decompress,
    detect_compression,
    reject_foreign_format,
    zstd_module,
)
from dropbatch.errors import UploadRefused
from tests.support.uploads import in_blocks

TEXT = b"".join(b'{"text":"row %d"}\n' % number for number in range(300))
zstd = zstd_module()
PACK = {"gzip": gzip.compress, "zstd": zstd.compress, "plain": bytes}


def unpack(packing, data, size=1 << 20):
    return b"".join(decompress(packing, in_blocks(data, size)))


@pytest.mark.parametrize("packing", PACK)
@given(content=st.one_of(st.binary(max_size=200), st.just(TEXT)), size=st.integers(1, 300))
def test_packed_content_comes_out_of_any_blocks(packing, content, size):
    stored = PACK[packing](content)
    assert unpack(packing, stored, size) == content
    if packing != "plain":
        assert detect_compression(stored) == packing


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@given(pieces=st.lists(st.binary(max_size=50), min_size=1, max_size=5), size=st.integers(1, 99))
def test_several_members_are_one_text(packing, pieces, size):
    assert unpack(packing, b"".join(map(PACK[packing], pieces)), size) == b"".join(pieces)


class Counting:
    """A decompressor, and the bytes that all of them were handed."""

    handed = 0

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def decompress(self, data, most):
        Counting.handed += len(data)
        return self.real.decompress(data, most)


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_work_grows_linearly_with_archive(packing, monkeypatch):
    """A decompressor copies what it does not use."""
    begin, decompressor = zlib.decompressobj, zstd.ZstdDecompressor
    monkeypatch.setattr(module.zlib, "decompressobj", lambda **options: Counting(begin(**options)))
    monkeypatch.setattr(
        zstd, "ZstdDecompressor", lambda **options: Counting(decompressor(**options))
    )
    monkeypatch.setattr(Counting, "handed", 0)
    members = [PACK[packing](b'{"text":"%d"}\n' % number) for number in range(2_000)]
    stored = b"".join(members)

    unpack(packing, stored, len(stored))

    assert Counting.handed <= len(members) * module.FIRST_SLICE_BYTES


def test_large_window_is_tolerated():
    named = zstd.CompressionParameter
    options = {named.window_log: 27, named.enable_long_distance_matching: 1}
    compressor = zstd.ZstdCompressor(options=options)
    stored = compressor.compress(TEXT) + compressor.flush()
    assert unpack("zstd", stored) == TEXT


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_archive_cut_short_anywhere_is_broken(packing, size):
    stored = PACK[packing](TEXT[:200])
    for end in range(4, len(stored)):
        with pytest.raises(UploadRefused) as caught:
            unpack(packing, stored[:end], size)
        assert caught.value.code == "broken_archive"


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", [b"\xff" * 40, b"junk behind the archive"])
def test_trailing_junk_reports_last_good_offset(packing, damage):
    with pytest.raises(UploadRefused, match=f"{len(TEXT):,} unpacked bytes") as caught:
        unpack(packing, PACK[packing](TEXT) + damage, 50)
    assert caught.value.code == "broken_archive"


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@given(at=st.integers(4, 60), byte=st.integers(0, 255), size=st.integers(1, 99))
def test_damage_is_upload_error_or_right_text(packing, at, byte, size):
    options = {zstd.CompressionParameter.checksum_flag: 1}
    packed = {"zstd": zstd.compress(TEXT, options=options), "gzip": gzip.compress(TEXT, mtime=0)}
    stored = bytearray(packed[packing])
    stored[at] = byte
    try:
        outcome = unpack(packing, bytes(stored), size)
    except UploadRefused as error:
        outcome = error.code
    assert outcome in {TEXT, "broken_archive"}


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_bomb_is_rejected_and_never_unpacked_whole(packing, monkeypatch):
    monkeypatch.setattr(module, "MAX_RATIO", 50)
    monkeypatch.setattr(module, "RATIO_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 16)
    bomb = PACK[packing](bytes(64 << 20))
    blocks = []
    with pytest.raises(UploadRefused) as caught:
        blocks.extend(map(len, decompress(packing, in_blocks(bomb, 1 << 20))))
    assert caught.value.code == "broken_archive"
    assert max(blocks) <= module.BLOCK_BYTES
    assert sum(blocks) <= (1 << 20) + 50 * len(bomb)


def _zip():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.jsonl", TEXT)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "fix"),
    [
        (_zip(), "unzip"),
        (b"PK\x03\x04" + bytes(26) + b"xl/workbook.xml", "save the sheet as CSV"),
        (b"PK\x03\x04" + bytes(26) + b"docProps/app.xml", "is a spreadsheet; save the sheet"),
        (b"a.jsonl".ljust(257, b"\x00") + b"ustar", "unpack it"),
        (bz2.compress(TEXT), "gzip or zstd"),
        (lzma.compress(TEXT), "gzip or zstd"),
        (b"PAR1" + bytes(20), "JSON Lines"),
        (TEXT.decode().encode("utf-16"), "UTF-8"),
        (TEXT.decode().encode("utf-16-le"), "UTF-8"),
        (TEXT.decode().encode("utf-16-be"), "UTF-8"),
        (TEXT.decode().encode("utf-32"), "UTF-8"),
        (b"\xfe\xff\x00{", "UTF-8"),
        (b"\x89PNG\r\n\x1a\n", "JSON Lines"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "JSON Lines"),
        (b"GIF89a", "JSON Lines"),
        (b"RIFF\x24\x9c\x01\x00WEBPVP8 ", "JSON Lines"),
        (b"II*\x00\x08\x00", "JSON Lines"),
        (b"%PDF-1.7", "JSON Lines"),
        (b"Obj\x01\x04", "JSON Lines"),
        (b"ORC\x08", "JSON Lines"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x00\x01\x02", "JSON Lines"),
    ],
)
def test_foreign_format_is_refused_with_way_to_fix_it(content, fix):
    assert detect_compression(content) == "plain"
    with pytest.raises(UploadRefused, match=fix) as caught:
        reject_foreign_format(content[:300])
    assert caught.value.code == "unknown_format"


@pytest.mark.parametrize(
    "head",
    [
        *(b"", b"{", b'{"a":1}', b"\xef\xbb\xbf{", b"[", b" \r\n", b"P", b"text", b"\xff"),
        *(b"ORCID,text\r\n0000-0002\t\xc3\xa9,x\n", b"PAR1,PAR2\n", b"RIFF\n"),
    ],
)
def test_text_is_not_foreign(head):
    assert detect_compression(head) == "plain"
    reject_foreign_format(head)


BOM = b"\xef\xbb\xbf"


DOCUMENTS = [
    *(b'{"requests":[]}', b'{"requests":[{"text":"a"}]}', b'{"requests":[1,2]}'),
    b'\n\n {"requests" : [ {"text":"a"} ] }\n\n',
    BOM + b'{"requests":[{"text":"a"}]}',
    b'{\n  "requests": [\n    {"text": "a"}\n  ]\n}\n',
    b'{"queueRequest":true,"requests":[{"text":"a"}],"n":1}',
    b'{"n":{"requests":[1]},\r\n"requests":[{"text":"a"}]}',
    b'{"s":"\\"requests\\":[",\n"requests":[{"text":"a"}]}',
    b'{"a":1,"b":null,"c":[1,[2]],"d":"x",\n"requests":[]}',
    b'{"requests":[{"text":"cut short"},',
    *(b"[]", b"[ ]\n", b'[{"text":"a"}]', BOM + b'[{"a":1},2]', b'[{"cut":"short"}'),
    b'\n[\n {"text":"a"},\n {"text":"b"}\n]\n',
]


@pytest.mark.parametrize("text", DOCUMENTS)
def test_lone_requests_or_array_of_objects_is_document(text):
    start = len(BOM) if text.startswith(BOM) else 0
    form = "array" if text.removeprefix(BOM).strip()[:1] == b"[" else "object"
    assert detect_form(text, complete=True) == (form, start)


LINES = [
    *(b"", b" \n\t\r\n", b"17", b'"text"', b"null", b"{}", b"{", b"[", b"wrong\n{}\n"),
    *(b"[1,2]", b"[[1]]", b"[1,\n2]", b'[{"a":1}]\n[{"a":2}]\n', b'{"a":[1,2}\n{"a":1}'),
    *(b'{"text":"a"}', b'{"text":"a"}\n{"text":"b"}\n', b'{\n"text":"a"\n}'),
    *(b'{"requests":"none"}', b'{"requests":{"a":1}}', b'{"requests"\n[]}'),
    b'{"requests":[{"text":"a"}]}\n{"requests":[{"text":"b"}]}\n',
    b'{"requests":[{"text":"a"}]} {"text":"b"}',
    b'{"text":{"requests":[{"a":1}]}}',
    b'{"text":"broken\n{"text":"b"}\n',
    b'{"text":"broken"\n{"requests":[{"text":"b"}]}\n',
]


@pytest.mark.parametrize("text", LINES)
def test_everything_else_is_json_lines(text):
    assert detect_form(text, complete=True) == ("jsonl", 0)


BEGINNINGS = [
    *(b'{"text":"a"}\n{"text":', b'{"requests":[{"text":"a"}]}\n{"requests":'),
    *(b'{"text":"' + b"a" * 100, b'[{"a":1}]\n[{"a"'),
]


@pytest.mark.parametrize("head", BEGINNINGS)
def test_form_is_detected_from_head(head):
    assert detect_form(head, complete=False)[0] == "jsonl"


@pytest.mark.parametrize(
    "head",
    [
        b'{"requests":[' + b'{"text":"a"},' * 10,
        b'{"requests":[\n{"text":"a"},\n',
        b'[{"text":"a"},',
    ],
)
def test_large_document_is_refused_with_fix(head):
    with pytest.raises(UploadRefused, match="jq -c"):
        detect_form(head, complete=False)


def test_second_requests_member_is_refused():
    text = b'{"requests":[{"text":"a"}],"n":{"requests":1},"requests":[{"text":"b"}]}'
    with pytest.raises(UploadRefused, match="two members"):
        detect_form(text, complete=True)


floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    value=values,
    indent=st.sampled_from([None, 1]),
    behind=st.sampled_from([b",", b"]", b" ", b"}"]),
)
def test_value_ends_where_json_reader_says(value, indent, behind):
    text = json.dumps(value, indent=indent).encode()
    assert end_of_value(b" " + text + behind + b'{"a":1}', 1) == 1 + len(text)


@given(head=st.binary(max_size=40), complete=st.booleans())
def test_any_bytes_have_form(head, complete):
    try:
        form, start = detect_form(head, complete=complete)
    except UploadRefused:
        return
    assert form in {"jsonl", "object", "array"}
    assert 0 <= start <= len(head)
