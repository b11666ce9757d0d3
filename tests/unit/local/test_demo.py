"""The demo's records, and how it finds the nearest of them.

That it runs at all is seen by running it.
"""

import json

import pytest

from local import demo
from local.processes import LocalAwsError


def test_records_are_short_texts_with_names():
    records = list(demo.records())

    assert len(records) > 3_000
    assert len({record["external_reference"] for record in records}) == len(records)
    assert all(0 < len(record["text"]) <= demo.LONGEST_TEXT for record in records)
    assert "<" not in json.dumps(
        [record["text"] for record in records if record["external_reference"].startswith("s3.")]
    )


def test_text_is_cut_at_sentence_or_word():
    assert demo._first_sentences("Short. Not cut.") == "Short. Not cut."
    assert demo._first_sentences(
        "One sentence of the two that are here, long enough. " + "word " * 60
    ) == ("One sentence of the two that are here, long enough.")
    assert demo._first_sentences("word " * 60) == ("word " * 40).strip()


def test_nearest_come_first_whatever_their_length():
    def line(number, vector):
        return {"id": number, "result": {"data": [vector]}}

    found = demo.nearest(
        [1.0, 0.0], [line(0, [0.0, 1.0]), line(1, [5.0, 5.0]), line(2, [0.1, 0.0])], 2
    )

    assert [(round(score, 3), number) for score, number in found] == [(1.0, 2), (0.707, 1)]


def test_demo_says_which_transports_there_are():
    assert demo._transport("", 4570) == demo._transport("rest", 4570) == ""
    with pytest.raises(demo.DemoError, match="rest or worker"):
        demo._transport("pigeon", 4570)


def test_missing_node_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalAwsError, match=r"Node\.js"):
        demo._transport("worker", 4570)


def test_demo_tells_calls_of_each_batch(capsys):
    demo._tell_calls({"batches": [{"polls": 1}, {"polls": 2}], "events": "used"})
    demo._tell_calls({"batches": [{"polls": 1}] * 3, "events": "none"})
    told = capsys.readouterr().out
    assert (
        "2 batches took 5 calls of Workers AI, 2.5 each:\n  Cloudflare's completion events said"
        in told
    )
    assert "3 batches took 6 calls of Workers AI, 2.0 each: by polls alone" in told
