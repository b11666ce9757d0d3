"""Finding what a record names, and splicing its content in."""

import base64
import json
from dataclasses import replace

import pytest

from dropbatch.core import names
from dropbatch.core.formats.base import Converted, RecordFault
from dropbatch.core.models import find_model
from dropbatch.core.read.attachments import UNNAMED, attach, marked, names_any
from tests.support.uploads import cuts_of, plan_of

PNG, WAV = b"\x89PNG\r\n\x1a\nabc", b"RIFF\x01\x02\x03\x04WAVEabc"
CONTENTS = {"a.png": PNG, 'ä "b".png': PNG, "a.wav": WAV, "a.txt": b"text"}
MODEL, TURBO = "@cf/meta/llama-4-scout-17b-16e-instruct", "@cf/openai/whisper-large-v3-turbo"


def text(content: bytes, kind: str = "") -> str:
    return (f"data:{kind};base64," if kind else "") + base64.b64encode(content).decode()


def sent(record: bytes, model: str = MODEL):
    def load(wanted):
        return (CONTENTS.get(name, f"{name} is missing.") for name in wanted)

    (found,) = attach([Converted(marked(record), b"7")], load, find_model(model))
    return found


SENT = {
    "a URL": (b'{"url":{"s3":"a.png"}}', {"url": text(PNG, "image/png")}),
    "space, escapes": (
        b'{"x":{"image_url" :\t{ "s3" : "\\u00e4 \\"b\\".png" } } }',
        {"x": {"image_url": text(PNG, "image/png")}},
    ),
    "two": (b'{"a":[{"data":{"s3":"a.wav"}},{"image":{"s3":"a.png"}}]}', None),
    "array": (b'{"image":{"s3":"a.png"}}', {"image": list(PNG)}),
    "base64": (b'{"data":{"s3":"a.wav"}}', {"data": text(WAV)}),
}


@pytest.mark.parametrize("name", SENT)
def test_content_stands_for_what_names_it(name):
    record, wanted = SENT[name]
    wanted = wanted or {"a": [{"data": text(WAV)}, {"image": list(PNG)}]}

    found = sent(record)

    assert json.loads(found.request) == wanted
    assert found.reference == b"7"


IN_CHAT = b'{"messages":[{"role":"user","content":[{"image_url":{"url":{"s3":"a.png"}}}]}]}'


@pytest.mark.parametrize("record", [b'{"prompt":"a","image":{"s3":"a.png"}}', IN_CHAT])
def test_record_that_names_an_object_fails_alone_where_none_is_read(record):
    upload = b'{"prompt":"a"}\n' * 20 + record + b'\n{"prompt":"a"}\n'
    (found,) = cuts_of(replace(plan_of((99, 9_999)), model=MODEL), upload)
    (fault,) = found.rows.faults
    assert (fault, found.rows[fault].message) == (20, f"Line 21: {UNNAMED}")


def test_audio_is_base64_for_a_model_whose_schema_says_so():
    assert json.loads(sent(b'{"audio":{"s3":"a.wav"}}', TURBO).request) == {"audio": text(WAV)}
    whisper = sent(b'{"audio":{"s3":"a.wav"}}', "@cf/openai/whisper")
    assert json.loads(whisper.request) == {"audio": list(WAV)}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b'{"url":{"s3":"b.png"}}', "url: b.png is missing."),
        (b'{"url":{"s3":"a.wav"}}', "url: 'a.wav' is audio/wav. Take image/png"),
        (b'{"audio":{"s3":"a.png"}}', "audio: 'a.png' is image/png. Take audio/wav"),
        (b'{"data":{"s3":"a.txt"}}', "data: 'a.txt' is of no known type"),
        (b"[%b]" % b",".join([b'{"url":{"s3":"a.png"}}'] * 101), "s3: The record names more"),
    ],
)
def test_record_whose_object_does_not_fit_fails_alone(record, words):
    found = sent(record)
    assert isinstance(found, RecordFault)
    assert (found.code, found.reference) == ("bad_record", b"7")
    assert found.message.startswith(words)


@pytest.mark.parametrize(
    "record",
    [
        b'{"text":"{\\"url\\":{\\"s3\\":\\"a.png\\"}}"}',
        b'{"parameters":{"s3":"a.png"}}',
        b'{"url":{"s3":"a.png","other":1}}',
        b'{"url":{"s3":7}}',
    ],
)
def test_what_only_looks_like_a_name_is_left_as_it_is(record):
    assert not names_any(record)
    assert sent(record).request == record


def test_contents_of_a_record_that_fails_are_not_those_of_the_next():
    requests = [
        Converted(marked(b'{"url":{"s3":"a.txt"},"x":{"url":{"s3":"a.png"}}}'), b"1"),
        RecordFault("bad_record", "x: y"),
        Converted(marked(b'{"data":{"s3":"a.wav"}}'), b"2"),
    ]
    first, _, last = attach(requests, lambda found: map(CONTENTS.get, found), find_model(MODEL))
    assert first.code == "bad_record"
    assert json.loads(last.request) == {"data": text(WAV)}


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("images/a.PNG", True),
        ("set/images/b/a.jpeg", True),
        ("audio/a.mp3", True),
        ("a.png", False),
        ("images/a.jsonl", False),
        ("my-images/a.png", False),
        ("images/a.png.jsonl", False),
    ],
)
def test_pictures_and_sounds_in_their_folders_are_no_uploads(path, is_one):
    assert names.is_attachment(path) is is_one
    assert names.is_upload(names.INBOX + path) is not is_one
