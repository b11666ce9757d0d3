"""The report page: what it says of each kind of job, and that text from outside stays text."""

from html.parser import HTMLParser

import msgspec
import pytest

from dropbatch.client import report

SCRIPT = "<script>alert(1)</script>"
COST = {"amount": "0.0123", "priced_at": "2026-07-09", "estimated": True}


def manifest(**changes):
    return {
        "job_id": "20261121T093000Z-5f3a9c1e",
        "state": "completed",
        "error": None,
        "model": "@cf/meta/m2m100-1.2b",
        "source": {"key": "inbox/reviews/july.jsonl"},
        "counts": {"total": 1_000, "succeeded": 998, "failed": 2},
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 12_345},
        "cost": None,
        "unknowable_submits": 0,
        "files": [{"name": "output.jsonl", "bytes": 98_765, "sha256": "ab" * 32, "lines": 1_000}],
        "created_at": "2026-11-21T09:30:00Z",
        "completed_at": "2026-11-21T09:40:00Z",
        **changes,
    }


def failed(line=1, code="rejected", message="AiError: bad", request=None):
    error = {"code": code, "message": message}
    return msgspec.json.encode(
        {"id": 0, "line": line, "error": error, "request": request or {"text": "x"}}
    )


def failures(*lines):
    return report.failures_in([b"\n".join(lines)])


class Elements(HTMLParser):
    """Which elements a page has, and with which attributes."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def read(page):
    elements = Elements()
    elements.feed(page.decode())
    return elements


def shown(page):
    return " ".join(read(page).text.split())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"counts": {"total": 1, "succeeded": 1, "failed": 0}}, "Completed: 1 record for"),
        ({"counts": {"total": 5, "succeeded": 0, "failed": 5}}, "0 answered, 5 failed."),
        ({"counts": dict.fromkeys(("total", "succeeded", "failed"), 0)}, "Completed: 0 records"),
        ({"state": "cancelled"}, "Cancelled: 1,000 records"),
        (
            {"state": "failed", "model": None, "error": {"code": "x", "message": "Name a model."}},
            "Failed: 1,000 records. x: Name a model.",
        ),
        ({"cost": COST}, "about $0.0123"),
        (
            {"cost": COST | {"uncollected_batches": 2}},
            "answer was not collected: 2, which are billed",
        ),
        ({"unknowable_submits": 3}, "submits of unknown outcome: 3, which may be billed twice"),
        ({"usage": {"total_tokens": None}}, "not reported"),
    ],
)
def test_every_kind_of_end_is_described(changes, says):
    assert says in shown(report.job_page(manifest(**changes), report.Failures()))


def test_text_from_outside_stays_text():
    hostile = manifest(
        model=SCRIPT,
        source={"key": f"inbox/{SCRIPT}"},
        state="failed",
        error={"code": SCRIPT, "message": SCRIPT},
        files=[{"name": SCRIPT, "bytes": 1, "sha256": SCRIPT, "lines": 1}],
        cost={"amount": SCRIPT, "priced_at": SCRIPT, "estimated": False},
    )
    groups = failures(failed(1, SCRIPT, SCRIPT, SCRIPT), failed(2, "x", "y", {SCRIPT: SCRIPT}))
    page = report.job_page(hostile, groups)

    assert "script" not in read(page).tags
    assert page.count(b"&lt;script&gt;") >= 9


def test_nothing_is_fetched_and_nothing_runs():
    elements = read(report.job_page(manifest(), failures(failed())))

    assert not {"script", "link", "img", "iframe", "object"} & set(elements.tags)
    names = {name for name, _ in elements.attributes}
    assert not {name for name in names if name in {"src", "href", "style"} or name[:2] == "on"}
    policy = next(value for _, value in elements.attributes if value and "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_failures_are_grouped_by_code_and_message():
    lines = [failed(n, "invalid_json", f"Line {n}: no JSON.") for n in range(1, 101)] + [
        failed(500, "expired", "late")
    ]

    groups = failures(*lines).groups

    assert {key: group.records for key, group in groups.items()} == {
        ("invalid_json", "no JSON."): 100,
        ("expired", "late"): 1,
    }
    first = groups["invalid_json", "no JSON."]
    assert first.lines == list(range(1, report.MAX_LINES + 1))
    assert len(first.examples) == report.MAX_EXAMPLES


def test_ever_new_messages_do_not_grow_page():
    found = failures(*(failed(n, "inference_failed", f"request {n:08}") for n in range(5_000)))

    assert len(found.groups) == report.MAX_GROUPS
    assert found.others == 5_000 - report.MAX_GROUPS
    page = report.job_page(
        manifest(counts={"total": 5_000, "succeeded": 0, "failed": 5_000}), found
    )
    assert len(page) < 100_000
    assert f"{found.others:,} failures of other kinds" in shown(page)
