"""Items with neither `id` nor `index`.

Their `external_reference` names their record, if it is the only one.
"""

import json

import msgspec
import pytest

from functions.poll.join import sort_answers
from shared.workers_ai.results import parse_answer


def sorted_by(references, *items):
    """Place and result of each item that is placed, and how many are foreign."""
    sent = [
        msgspec.Raw(one if isinstance(one, bytes) else json.dumps(one).encode())
        for one in references
    ]
    body = json.dumps({"responses": [{"result": str(at), **item} for at, item in enumerate(items)]})
    answers = sort_answers(parse_answer(body.encode()), sent)
    return {
        place: json.loads(bytes(item.result)) for place, item in answers.items.items()
    }, answers.foreign


def test_items_without_number_are_placed_by_reference():
    items = [{"external_reference": "b"}, {"external_reference": "a", "id": None, "index": None}]

    assert sorted_by(["a", "b"], *items) == ({1: "0", 0: "1"}, 0)


@pytest.mark.parametrize("reference", ["a", None, "c", 1, ["a"]])
def test_reference_that_names_no_single_record_is_foreign(reference):
    assert sorted_by(["a", "a", "b", None], {"external_reference": reference}) == ({}, 1)


def test_references_are_compared_as_texts():
    assert sorted_by(
        [b'"\\u0061"', 7, {"x": 1}], {"external_reference": "a"}, {"external_reference": 7}
    ) == (
        {0: "0", 1: "1"},
        0,
    )


@pytest.mark.parametrize("number", [{"id": 9}, {"index": "9"}, {"id": 9.0}, {"id": 9, "index": 8}])
def test_a_number_is_never_overruled_by_a_reference(number):
    assert sorted_by(["a", "b"], {"external_reference": "a", **number}) == ({}, 1)


@pytest.mark.parametrize("opaque", ["x", "01a9-4f00", 1.5, "9" * 30, True, [1], ""])
def test_id_that_is_no_number_names_no_record(opaque):
    items = [{"id": opaque, "external_reference": "b"}, {"id": opaque, "index": 0}]

    assert sorted_by(["a", "b"], *items) == ({1: "0", 0: "1"}, 0)


def test_index_places_an_item_whose_id_is_any_number():
    assert sorted_by(["a", "b"], {"id": 81_234, "index": 1}) == ({1: "0"}, 0)


def test_two_items_for_one_reference_contradict_each_other():
    assert sorted_by(["a", "b"], {"external_reference": "a"}, {"external_reference": "a"}) == (
        {},
        0,
    )
