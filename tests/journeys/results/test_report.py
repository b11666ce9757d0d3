"""A finished job's report page.

Written before the manifest, for every kind of end, and never in its way.
"""

import functions.poll.results.report
from tests.support.aws.resources import BUCKET

M2M = "@cf/meta/m2m100-1.2b"
GOOD = '{"text":"x","target_lang":"es"}\n'


def page(world):
    return world.read(f"{world.only_folder()}/report.html").decode()


def test_job_has_page_that_says_how_it_ended(world):
    world.upload("reviews/july.jsonl", GOOD + "<script>alert(1)</script>\n" + GOOD, model=M2M)

    world.settle()

    said = page(world)
    assert "3 records for <code>@cf/meta/m2m100-1.2b</code>, 2 answered, 1 failed." in said
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in said
    assert "<script" not in said
    assert world.manifest()["files"][0]["sha256"] in said
    head = world.s3.head_object(Bucket=BUCKET, Key=f"{world.only_folder()}/report.html")
    assert head["ContentType"] == "text/html; charset=utf-8"


def test_manifest_follows_page_and_omits_it(world):
    world.upload("july.jsonl", GOOD, model=M2M)
    written = []
    world.permissions.before = lambda operation, arguments: (
        written.append(arguments["Key"].rpartition("/")[2]) if operation == "PutObject" else None
    )

    world.settle()

    assert written.index("report.html") < written.index("manifest.json")
    assert "report.html" not in [file["name"] for file in world.manifest()["files"]]


def test_page_that_cannot_be_made_holds_up_no_job(world, monkeypatch):
    def broken(*_):
        raise KeyError("unexpected")

    monkeypatch.setattr(functions.poll.results.report, "job_page", broken)
    world.upload("july.jsonl", GOOD, model=M2M)

    world.settle()

    assert world.manifest()["state"] == "completed"
    assert not [key for key in world.objects() if key.endswith("report.html")]


def test_batches_beyond_limit_are_left_out(start, monkeypatch):
    monkeypatch.setattr(functions.poll.results.report, "MAX_BATCHES", 2)
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.upload("july.jsonl", GOOD * 4, model=M2M)

    world.settle()

    assert "Only the first batches are shown." in page(world)
