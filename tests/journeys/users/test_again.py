"""Answers that are none, and chosen records that are sent again: `retry --incomplete`."""

import json

import pytest

import dropbatch

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
    command.world.upload(name, UPLOADS[name], model=KIMI)
    command.settle()
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
    command.world.upload("a.csv", rows, model=KIMI, defaults='{"max_tokens":10}')
    command.settle()
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
