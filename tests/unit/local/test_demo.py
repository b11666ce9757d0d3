"""The demo's records, and how it finds the nearest of them."""

import json

from local import demo


def test_records_are_short_texts_with_names():
    records = list(demo.records())

    assert len(records) > 3_000
    assert len({record["external_reference"] for record in records}) == len(records)
    assert all(0 < len(record["text"]) <= demo.LONGEST_TEXT for record in records)
    assert "<" not in json.dumps(
        [record["text"] for record in records if record["external_reference"].startswith("s3.")]
    )


def test_demo_tells_calls_of_each_batch(capsys):
    demo._tell_calls({"batches": [{"polls": 1}, {"polls": 2}], "events": "used"})
    demo._tell_calls({"batches": [{"polls": 1}] * 3, "events": "none"})
    told = capsys.readouterr().out
    assert (
        "2 batches took 5 calls of Workers AI, 2.5 each:\n  Cloudflare's completion events said"
        in told
    )
    assert "3 batches took 6 calls of Workers AI, 2.0 each: by polls alone" in told
