"""Pictures and sound that records name, read from the stack's own buckets when they are cut."""

from __future__ import annotations

import base64
import json
import time

import pytest

import functions.submit.stage
from local.workers_ai import Behaviour, Fault, WorkersAI, expected_result
from tests.support.aws.resources import BUCKET, REGION
from tests.support.journeys.deaths import Boundaries, DiedError, mortal_world

SCOUT = "@cf/meta/llama-4-scout-17b-16e-instruct"
WHISPER = "@cf/openai/whisper-large-v3-turbo"
SOURCE = "team-pictures"


def picture(text: str, size: int = 20) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + text.encode() * (size // len(text) + 1)


def url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def chat(image: object, text: str = "What is it?") -> dict[str, object]:
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": image}}]
    return {"messages": [{"role": "user", "content": parts}]}


def named(name: str, text: str = "What is it?") -> dict[str, object]:
    return chat({"s3": name}, text)


def put(world, path: str, content: bytes, bucket: str = BUCKET, folder: str = "inbox/") -> None:
    world.s3.put_object(Bucket=bucket, Key=f"{folder}{path}", Body=content)


def test_pictures_beside_an_upload_are_sent_and_bad_ones_fail_alone(start):
    world = start()
    cat = picture("cat")
    put(world, "set/images/cat.png", cat)
    put(world, "set/images/large.png", picture("x", 7_500_001))
    put(world, "set/images/half.png", picture("x", 6_000_000))
    put(world, "set/images/note.png", b"no picture")
    put(world, "set/images/none.png", b"")
    put(world, "_private/cat.png", cat)
    two = named("images/half.png")
    two["messages"][0]["content"].append(  # type: ignore[index]
        {"type": "image_url", "image_url": {"url": {"s3": "images/half.png"}}}
    )
    records = [
        (named("images/cat.png"), None),
        (named("images/dog.png"), ("bad_record", "does not exist")),
        (named("images/large.png"), ("too_large", "7,500,000")),
        (two, ("too_large", "10,000,000")),
        (named("images/note.png"), ("bad_record", "of no known type")),
        (named("images/none.png"), ("bad_record", "is empty")),
        (named("s3://elsewhere/cat.png"), ("bad_record", "is not read")),
        (named(f"s3://{BUCKET}/results/cat.png"), ("bad_record", "is not read")),
        (named("https://example.com/cat.png"), ("bad_record", "does not exist")),
        (named(f"s3://{BUCKET}/inbox/set/images/cat.png"), None),
        (named("inbox/_private/cat.png"), None),
        (chat(url(cat), "pasted"), None),
    ]
    world.run("set/a.jsonl", [one for one, _ in records], model=SCOUT)

    assert len(world.manifests()) == 1  # the pictures are no uploads
    for line, (record, fault) in zip(world.lines(), records, strict=True):
        if fault:
            code, words = fault
            assert line["error"]["code"] == code
            assert words in line["error"]["message"]
            continue
        text = record["messages"][0]["content"][0]["text"]  # type: ignore[index]
        assert line["result"] == expected_result(SCOUT, chat(url(cat), text))
    assert world.manifest()["counts"]["failed"] == sum(fault is not None for _, fault in records)


def test_retry_file_keeps_the_reference_and_its_retry_finds_the_picture(start, api):
    world = start()
    put(world, "set/images/cat.png", picture("cat"))
    record = named("images/cat.png") | {"external_reference": "r1"}
    api.inject(Fault(kind="item_fails", times=1, contains="png"))
    world.run("set/a.jsonl", [record, {"prompt": "hello"}], model=SCOUT)
    (folder,) = world.manifests()
    retry = world.read(f"{folder}/retry.jsonl")
    assert json.loads(retry) == record

    world.run("set/a.retry.jsonl", retry, model=SCOUT)

    (other,) = set(world.manifests()) - {folder}
    (line,) = world.lines(folder=other)
    assert line["result"] == expected_result(SCOUT, chat(url(picture("cat"))))


def test_columns_and_lines_of_text_name_pictures_and_sound(start):
    world = start()
    put(world, "images/cat.png", picture("cat"))
    put(world, "audio/a.wav", b"RIFF\x01\x02\x03\x04WAVEhello")
    rows = "id,picture,question\n1,images/cat.png,What?\n2,,What?\n"
    world.run("a.csv", rows, model=SCOUT, template="{question} {picture:s3}")
    (folder,) = world.manifests()
    first, second = world.read(f"{folder}/output.csv").decode().splitlines()[1:]
    wanted = expected_result(SCOUT, chat(url(picture("cat")), "What? "))
    assert wanted["response"] in first
    assert "bad_record,Line 3: picture: The cell is empty." in second

    world.run("a.txt", "audio/a.wav\n", model=WHISPER, template="{text:s3}")

    (other,) = set(world.manifests()) - {folder}
    sound = base64.b64encode(b"RIFF\x01\x02\x03\x04WAVEhello").decode()
    assert world.lines(folder=other)[0]["result"] == expected_result(WHISPER, {"audio": sound})


def test_source_bucket_is_read_below_its_prefix_only(start):
    world = start(SOURCE_BUCKET_NAME=SOURCE, SOURCE_PREFIX="in/")
    world.s3.create_bucket(Bucket=SOURCE, CreateBucketConfiguration={"LocationConstraint": REGION})
    put(world, "cat.png", picture("cat"), SOURCE, "in/")
    put(world, "cat.png", picture("cat"), SOURCE, "secret/")
    names = [f"s3://{SOURCE}/{folder}/cat.png" for folder in ("in", "secret")]
    world.run("a.jsonl", [named(name) for name in names], model=SCOUT)

    first, second = world.lines()
    assert first["result"] == expected_result(SCOUT, chat(url(picture("cat"))))
    assert "is not read" in second["error"]["message"]


@pytest.mark.parametrize("most", [0, 16])
def test_what_was_staged_counts_if_pictures_change_between_a_death_and_the_next_run(
    monkeypatch, most
):
    """The function dies between a staged object and its item; then every picture is larger."""
    real = functions.submit.stage.create_batch

    def dies_at_third(services, job, candidate, *rest):
        if candidate.number == 2 and not died:
            died.append(True)
            raise DiedError
        return real(services, job, candidate, *rest)

    died: list[bool] = []
    monkeypatch.setattr(functions.submit.stage, "create_batch", dies_at_third)
    monkeypatch.setattr(functions.submit.stage, "MAX_AHEAD", most)
    api = WorkersAI(Behaviour(latency=8.0), now=lambda: time.time())  # noqa: PLW0108 - the clock moves
    with mortal_world(api, Boundaries(), MAX_BATCH_BYTES=100_000) as world:
        before, after = picture("a", 20_000), picture("b", 50_000)
        for number in range(20):
            put(world, f"images/{number}.png", before)
        records = [named(f"images/{number}.png", f"{number}") for number in range(20)]
        world.upload_records("a.jsonl", records, model=SCOUT)
        world.deliver("UploadQueue")
        assert died
        for number in range(20):
            put(world, f"images/{number}.png", after)

        world.settle(minutes=240)

        manifest, lines = world.manifest(), world.lines()
    assert manifest["counts"] == manifest["counts"] | {"total": 20, "succeeded": 20}
    sent = []
    for number, line in enumerate(lines):
        answers = {
            kind: expected_result(SCOUT, chat(url(content), f"{number}"))
            for kind, content in (("before", before), ("after", after))
        }
        sent.append(next(kind for kind, wanted in answers.items() if line["result"] == wanted))
    assert sent == sorted(sent, reverse=True)
    assert sent[8] == "before"  # of the third batch, whose object was there
    assert sent[-1] == "after"
