"""The page of a validation: what it says, and that text from outside stays text."""

import pytest

from functions.submit.validation_page import validation_page

REPORT = {
    "path": "reviews/july.jsonl",
    "error": None,
    "format": "native",
    "model": "@cf/meta/m2m100-1.2b",
    "records": 1_000,
    "bytes": 45_000,
    "batches": 2,
    "calls": 6,
    "bad": 2,
    "bad_first": [
        {"id": 4, "line": 5, "code": "invalid_json", "message": "no JSON"},
        {"id": 8, "line": 9, "code": "too_large", "message": "too long"},
    ],
    "warnings": ["2 records have <more> texts"],
    "repeated": 3,
    "longest": {"line": 9, "bytes": 12_345},
    "estimate": {"input_tokens": 9_000, "output_tokens": None, "cost": None},
}


def test_it_says_what_was_found():
    page = validation_page(REPORT).decode()

    for text in (
        "1,000 records",
        "2 bad",
        "3 records have the same reference",
        "2 records have &lt;more&gt; texts",
        "12,345 bytes",
        "9,000",
        "invalid_json",
        "too long",
    ):
        assert text in page


def test_cost_names_day_of_its_prices():
    cost = {"amount": "0.0123", "currency": "USD", "priced_at": "2026-07-09", "estimated": True}
    page = validation_page(REPORT | {"estimate": REPORT["estimate"] | {"cost": cost}}).decode()

    assert "$0.0123" in page
    assert "2026-07-09" in page


def test_file_that_cannot_be_job_says_why():
    page = validation_page(
        REPORT | {"error": {"code": "no_model", "message": "Name one."}}
    ).decode()

    assert "<code>no_model</code>: Name one." in page


@pytest.mark.parametrize("place", ["path", "model", "format"])
def test_text_from_outside_stays_text(place):
    planted = "<script>alert(1)</script>"
    bad = [{"id": 1, "line": None, "code": planted, "message": planted}]
    page = validation_page(REPORT | {place: planted, "bad_first": bad}).decode()

    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 3
