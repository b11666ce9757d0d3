"""Answers that are none, and chosen records that are sent again: `retry --incomplete`."""

import gzip
import io
import json
from dataclasses import dataclass

import msgspec
import pytest

import dropbatch
from dropbatch.client.again import Wanted, send_chosen
from dropbatch.client.records import Record, RecordError
from local.workers_ai import Fault

BGE = "@cf/baai/bge-small-en-v1.5"
KIMI = "@cf/moonshotai/kimi-k2.6"


@pytest.fixture
def client(command):
    return dropbatch.Client("dropbatch")


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


LIMITS = (2, 900, 3)
ASKED = [chat("words and more", max_tokens=at) for at in LIMITS]
UPLOADS = {
    "a.jsonl": "".join(json.dumps(one) + "\n" for one in ASKED),
    "a.json": json.dumps({"requests": ASKED}, indent=1),
    "b.jsonl": "".join(json.dumps({"custom_id": "x", "body": one}) + "\n" for one in ASKED),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_records_with_answers_that_are_none_are_sent_again(command, client, name):
    command.world.run(name, UPLOADS[name], model=KIMI)
    job = client.job(name)

    assert job.manifest()["incomplete"] == job.status()["incomplete"] == 2
    assert job.manifest()["counts"] == {"total": 3, "succeeded": 3, "failed": 0}
    assert [one.flaw and one.flaw.code for one in job.results()] == [
        "truncated_answer",
        None,
        "truncated_answer",
    ]
    assert "answers  3 answered, 2 of them cut off" in command.run("status", job.id).out
    waited = command.run("wait", job.id)
    assert f"3 answered, 2 of them cut off: `dropbatch retry {job.id} --incomplete" in waited.err
    again = job.retry(incomplete=True)
    again.wait()

    assert again.manifest()["counts"]["total"] == 2
    own = [one.result for one in job.results()]
    merged = list(job.results(merged=True))
    assert [one.id for one in merged] == [0, 1, 2]
    assert (merged[1].result, len(merged)) == (own[1], 3)
    assert [one.success for one in merged] == [True] * 3


def test_table_gets_whole_answers_in_place(command, tmp_path):
    """The row in the middle is short enough at once, and stays."""
    text = "many words and more " * 5
    rows = f"id,text\n7,{text}\n8,hi\n9,{text}too\n"
    command.world.run("a.csv", rows, model=KIMI, defaults='{"max_tokens":10}')
    job = dropbatch.Client("dropbatch").job("a.csv")
    before = job.to_pandas()
    assert before["finish_reason"].tolist() == ["length", "stop", "length"]
    assert before["error_code"].fillna("").tolist() == [
        *("truncated_answer", "", "truncated_answer")
    ]

    option = 'defaults={"max_tokens":900}'
    done = command.run("retry", job.id, "--incomplete", "-o", option, "--wait")
    assert (done.code, "a.retry.csv" in done.out) == (0, True)
    assert command.run("get", job.id, "--merged", "-o", tmp_path).code == 0

    after = job.to_pandas(merged=True)
    assert not after["error_code"].any()
    assert after["id"].tolist() == ["7", "8", "9"]
    assert after["answer"][1] == before["answer"][1]
    assert [one.endswith("too") for one in after["answer"]] == [False, False, True]
    assert not any("too" in one for one in before["answer"])
    with pytest.raises(dropbatch.NotFound, match="no such records"):
        dropbatch.Client("dropbatch").job("a.retry.csv").retry(incomplete=True)


# ── retried by itself ─────────────────────────────────────────────────────────────────────────────


BUSY = {"kind": "item_fails", "code": 3040, "contains": "busy", "marker": "busy"}
WRONG = {"kind": "item_fails", "code": 5001, "contains": "wrong", "marker": "wrong"}
TEXTS = ["good", "busy", "wrong"]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def put(command, tmp_path, *options):
    upload = tmp_path / "a.jsonl"
    upload.write_text("".join(json.dumps({"text": one}) + "\n" for one in TEXTS))
    return command.run("put", upload, "--model", BGE, *options)


def test_what_passes_is_sent_again_and_merged(command, api, tmp_path):
    """The busy record is answered by the second retry; the wrong one is never sent again."""
    api.inject(Fault(**BUSY, times=4), Fault(**WRONG, times=0))  # A retry submits thrice.

    done = put(command, tmp_path, "--get", tmp_path / "out", "--retry", "3", "--strict")

    assert done.code == 3, done.err
    assert done.err.count("sent and billed again: 1 of 3 records, under $0.0001") == 2
    merged = lines_of(tmp_path / "out/output.merged.jsonl")
    assert [one["success"] for one in merged] == [True, True, False]
    assert len(command.world.manifests()) == 3


def test_nothing_is_sent_again_unasked(command, api, tmp_path):
    api.inject(Fault(**BUSY))

    assert put(command, tmp_path, "--get", tmp_path / "out").code == 0
    assert len(command.world.manifests()) == 1
    assert put(command, tmp_path, "--wait", "--misfits").code == 2


def test_waiting_sends_again_what_passes(command, client, api):
    api.inject(Fault(**BUSY), Fault(**WRONG, times=0))
    job = client.submit([{"text": one} for one in TEXTS], model=BGE, name="a.jsonl")

    assert job.wait(retry=1) == "completed"
    assert [one.success for one in job.results()] == [True, False, False]
    assert [one.success for one in job.results(merged=True)] == [True, True, False]
    before = len(command.world.manifests())
    done = command.run("wait", job.id, "--retry", "2", "--strict")
    assert (done.code, len(command.world.manifests())) == (3, before)


def test_retry_of_interrupted_wait_is_not_sent_twice(command, client, api):
    api.inject(Fault(**BUSY))
    job = client.submit([{"text": one} for one in TEXTS], model=BGE, name="a.jsonl")
    job.wait()
    send_chosen(job, Wanted(failed=True), {})  # Its wait was interrupted: it runs.

    job.wait(retry=1)

    assert len(command.world.manifests()) == 2
    assert [one.success for one in job.results(merged=True)] == [True] * 3


@pytest.mark.parametrize("wanted", [Wanted(failed=True), Wanted(failed=True, unknown=True)])
def test_reasons_that_pass(wanted, subtests):
    passing = {
        ("inference_failed", "3040: Capacity temporarily exceeded"): True,
        ("inference_failed", "Workers AI had no capacity for this batch."): True,
        ("inference_failed", "5001: something else"): False,
        ("inference_failed", "no code"): False,
        ("missing_response", "x"): True,
        ("expired", "x"): True,
        ("submit_unknown", "x"): wanted.unknown,
        ("rejected", "3040: x"): False,
        ("cancelled", "x"): False,
        ("cost_limit", "x"): False,
    }
    for error, passes in passing.items():
        with subtests.test(str(error)):
            record = Record(0, None, success=False, result=None, error=RecordError(*error))
            assert wanted.has(record) == passes


# ── answers that do not fit ───────────────────────────────────────────────────────────────────────


class Mood(msgspec.Struct):
    mood: str
    score: float


@dataclass
class Scored:
    mood: str
    score: float


SCHEMA = {
    "type": "object",
    "properties": {"mood": {"type": "string"}, "score": {"type": "number", "maximum": 5}},
    "required": ["mood", "score"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
LONG = "x" * 60
"""A prompt; the local API's score is its length."""


def asked(text):
    return chat(text, response_format=FORMAT)


FITTING = {
    "native": ("a.jsonl", [asked("hi!"), asked(LONG)], {}),
    "openai": (
        "a.jsonl",
        [{"custom_id": str(at), "body": asked(text)} for at, text in enumerate(["hi!", LONG])],
        {},
    ),
    "csv": ("a.csv", f"id,text\n1,hi!\n2,{LONG}\n", {"defaults": {"response_format": FORMAT}}),
    "option": (
        "a.jsonl",
        [chat("hi!", response_format={"type": "json_object"})] * 2,
        {"schema": {"required": ["nothing"]}},
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_answers_that_do_not_fit_are_named_and_sent_again(command, client, name, tmp_path):
    path, records, options = FITTING[name]
    source = io.BytesIO(records.encode()) if isinstance(records, str) else records
    job = client.submit(source, name=path, model=KIMI, **options)
    job.wait()

    found = list(job.results(check=True))
    fits = [False, False] if name == "option" else [True, False]
    assert [one.misfit is None for one in found] == fits
    assert found[-1].misfit.code == "misfit"
    says = "must contain ['nothing']" if name == "option" else "score: must be smaller than"
    assert says in found[-1].misfit.message
    done = command.run("get", job.id, "-o", tmp_path, "--check", "--strict")
    assert (done.code, f" 2 of the output: {found[-1].misfit.message}" in done.err) == (3, True)
    assert "s schema: `dropbatch retry" in done.err.replace("their", "its")

    again = command.run("retry", job.id, "--misfits", "--wait", "--json").json()[0]
    assert client.job(again["job_id"]).manifest()["counts"]["total"] == fits.count(False)
    assert job.wait(retry=1, misfits=True) == "completed"
    assert len(list(job.results(merged=True))) == 2


@pytest.mark.parametrize("kind", [Mood, Scored, "pydantic"])
def test_answers_are_made_of_a_type(command, client, kind):
    if kind == "pydantic":
        pydantic = pytest.importorskip("pydantic")
        kind = pydantic.create_model("Mood", mood=(str, ...), score=(float, ...))
    texts = ["hi!", "hello"]
    job = client.submit([asked(one) for one in texts], name="a.jsonl", model=KIMI)
    job.wait()

    values = [one.value for one in job.results(into=kind)]
    assert [type(one) for one in values] == [kind, kind]
    assert values[0].score < values[1].score

    class Other(msgspec.Struct):
        score: str

    (first, _) = job.results(into=Other)
    assert (first.value, first.misfit.message[:6]) == (None, "score:")
    with pytest.raises(dropbatch.UsageError, match="into: "):
        list(job.results(into=print))


ROWS = b'\xef\xbb\xbfid;text\r\n1;one\r\n\r\n2;"two\r\nlines"\r\n3;three\r\n'
LINES = b'{"text":"one"}\r\n\n{ "text" : "two" }\n{"text":"three"}'
KEPT = {
    "a.csv": (ROWS, b"\xef\xbb\xbfid;text\n1;one\n3;three\n"),
    "a.txt": (b"one\r\n\r\ntwo\r\nthree\r\n", b"one\nthree\n"),
    "a.jsonl": (LINES, b'{"text":"one"}\n{"text":"three"}\n'),
    "a.jsonl.gz": (gzip.compress(LINES), b'{"text":"one"}\n{"text":"three"}\n'),
    "a.json": (
        b'[{"text":\n"one"}, {"text":"two"}, {"text":"three"}]',
        b'{"text":"one"}\n{"text":"three"}\n',
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_chosen_records_are_as_they_were_written(command, client, name):
    content, wanted = KEPT[name]
    job = client.submit(io.BytesIO(content), name=name, model=BGE)
    job.wait()
    assert [one.success for one in job.results()] == [True] * 3

    class Chosen(Wanted):
        def has(self, record):
            return record.id != 1

    again, count = send_chosen(job, Chosen(), {})

    assert (count, command.world.read(again.uploaded.key)) == (2, wanted)
    assert again.wait() == "completed"
    found = [one.embedding for one in job.results(merged=True)]
    assert found == [one.embedding for one in job.results()]
