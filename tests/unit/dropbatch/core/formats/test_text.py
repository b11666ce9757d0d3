"""Text files: each line is an input."""

import pytest

from dropbatch.core.formats.base import Converted
from dropbatch.core.formats.table import Form, describer_of, file_names, writer_of
from dropbatch.errors import UploadRefused
from tests.support.converted import target_of
from tests.support.rows import BGE, convert, sent

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"


def error_of(function, *arguments):
    with pytest.raises(UploadRefused) as raised:
        function(*arguments)
    return raised.value


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def test_line_of_text_is_input():
    assert sent(b"", b"  x {y} ", LLAMA, kind="text") == {"prompt": "  x {y} "}
    assert sent(b"", b"x", LLAMA, "Say {text} in {{Spanish}}.", kind="text") == {
        "prompt": "Say x in {Spanish}."
    }


def test_line_that_is_not_utf8_fails_alone():
    first, second = convert(b"", [b"\xff", b"x"], kind="text")
    assert (first.code, type(second)) == ("invalid_utf8", Converted)


def test_template_for_text_knows_one_column():
    assert error_of(convert, b"", [], BGE, "{line}", None, "text").code == "bad_options"


def test_text_is_answered_as_native_format():
    form = Form("text")
    assert writer_of(form, target_of(BGE)) is None
    assert (file_names(form, "inbox/a.txt").output, file_names(form, "inbox/a.txt").retry) == (
        "output.jsonl",
        "retry.txt",
    )
    assert describer_of(form)(b"x") == b'{"text":"x"}'
