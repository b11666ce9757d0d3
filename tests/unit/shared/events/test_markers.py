"""The marker on the wire: where it goes, that the other records stay as they were, and how a reply shows it."""

import json

import msgspec
import pytest

from dropbatch.core.records.index import build_body
from shared.events.markers import (
    MAX_REFERENCE_CHARACTERS,
    Marked,
    as_sent,
    draw_marker,
    marked,
    marked_body,
    marker_in,
)
from shared.workers_ai.results import Item

MARKER = "~db1.YvtRRr9GtsuXyrZYiJpyuw"
NULL = msgspec.Raw(b"null")


def raw(value):
    return msgspec.Raw(json.dumps(value).encode())


def items(*references):
    return [Item(place, external_reference=one) for place, one in enumerate(references)]


def test_marker_is_27_characters_and_random():
    drawn = {draw_marker() for _ in range(100)}
    assert len(drawn) == 100
    assert all(len(one) == len(MARKER) == 27 and one.isascii() and one.startswith("~db1.") for one in drawn)


@pytest.mark.parametrize(
    ("references", "found"),
    [
        ([None, None], (0, MARKER)),
        (["a", None, None], (1, MARKER)),
        (["a", "b"], (0, f"a~{MARKER}")),
        ([MARKER, "b"], (0, f"{MARKER}~{MARKER}")),
        (["x" * MAX_REFERENCE_CHARACTERS], (0, "x" * MAX_REFERENCE_CHARACTERS + f"~{MARKER}")),
        (["x" * (MAX_REFERENCE_CHARACTERS + 1), "b"], None),
        ([5, "b"], None),
        ([{"a": 1}], None),
        ([], None),
    ],
)
def test_first_record_without_reference_carries_marker(references, found):
    assert marked([raw(one) for one in references], MARKER) == (found and Marked(found[0], raw(found[1])))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("record", [b'{"text": "\\u00e9", "n": 1e999}', b'{"text":"a","external_reference":null}'])
def test_other_records_stay_byte_for_byte(place, record):
    records = [b'{"text":  "one"}', record, b'{ "text":"three" , "more":[1, 2] }']
    body = build_body(records)

    sent = marked_body(body, [len(one) for one in records], Marked(place, raw(MARKER)))

    start, stop = body.index(records[place]), len(body) - body.index(records[place]) - len(records[place])
    assert sent.startswith(body[:start])
    assert sent.endswith(body[-stop:])
    changed = msgspec.json.decode(sent[start : len(sent) - stop], type=dict[str, msgspec.Raw])
    before = msgspec.json.decode(records[place], type=dict[str, msgspec.Raw])
    assert changed == {**before, "external_reference": raw(MARKER)}


def test_reply_is_compared_with_what_was_sent():
    own = [raw("a"), raw("b")]
    assert as_sent(own, MARKER, items(raw("b"), raw(f"a~{MARKER}"))) == [raw(f"a~{MARKER}"), raw("b")]


@pytest.mark.parametrize("shown", [[NULL, NULL], [raw("a"), raw("b")], []])
def test_reply_without_marker_is_compared_with_own_references(shown):
    """The API echoes none, or a submit without marker is answered."""
    own = [raw("a"), raw("b")]
    assert as_sent(own, MARKER, items(*shown)) == own
    assert as_sent(own, "", items(*shown)) == own


WHOLE = f"a~{MARKER}"


@pytest.mark.parametrize("shown", [WHOLE[:10], WHOLE[:2], WHOLE.replace("~", "_"), f"a {MARKER}", WHOLE + "."])
def test_altered_marker_is_no_contradiction(shown):
    """What an item shows that names the record, and has what the user wrote."""
    reply = [Item(id=1, external_reference=raw("b")), Item(id=0, external_reference=raw(shown))]
    assert as_sent([raw("a"), raw("b")], MARKER, reply) == [raw(shown), raw("b")]


@pytest.mark.parametrize("own", ["a", None])
def test_shortened_marker_shows_its_record(own):
    """Of an item that has no other name."""
    shown = (WHOLE if own else MARKER)[:12]
    reply = [Item(external_reference=raw(one)) for one in ("b", shown)]
    assert as_sent([raw(own), raw("b")], MARKER, reply) == [raw(shown), raw("b")]


@pytest.mark.parametrize(("place", "shown"), [(1, WHOLE[:10]), (0, "other"), (0, "b"), (None, "a-other"), (None, "")])
def test_other_reference_is_no_altered_marker(place, shown):
    own = [raw("a"), raw("b")]
    assert as_sent(own, MARKER, [Item(id=place, external_reference=raw(shown))]) == own


@pytest.mark.parametrize("names", [{"index": 0, "id": "f00d-1"}, {"id": 0.0}, {"id": "00"}, {"id": "f00d-1"}])
def test_altered_marker_is_recognized_however_its_item_is_named(names):
    """As answers are: by a number, or without one by the reference."""
    reply = [Item(**names, external_reference=raw(WHOLE[:10])), Item(id=1, external_reference=raw("b"))]
    assert as_sent([raw("a"), raw("b")], MARKER, reply) == [raw(WHOLE[:10]), raw("b")]


@pytest.mark.parametrize("shown", ["row-", "row-1", "r"])
def test_reference_that_is_shortened_itself_may_be_anothers(shown):
    """The record with the marker has no answer in this reply."""
    own = [raw("row-11"), raw("row-12")]
    assert as_sent(own, MARKER, [Item(external_reference=raw(shown))]) == own


def test_two_altered_markers_are_none():
    own = [raw("a"), raw("b")]
    assert as_sent(own, MARKER, [Item(external_reference=raw(WHOLE[:end])) for end in (9, 8)]) == own


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        (MARKER, MARKER),
        (f"row-1~{MARKER}", MARKER),
        (f"{MARKER}x", None),
        ("~db1.short", None),
        ("row", None),
        (None, None),
        (5, None),
        ([MARKER], None),
    ],
)
def test_reply_shows_marker_at_end_of_a_reference(reference, found):
    shown = marker_in(items(NULL, raw(reference)))
    assert (shown and shown[0]) == found
