"""The command line on a whole Dropbatch: what each verb does, prints and exits with."""

import json
from types import SimpleNamespace

import pytest

from local.workers_ai import Fault
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M

GOOD = '{"text":"x","target_lang":"es"}\n'


@pytest.fixture
def finished(command):
    """A finished job: its id. One record of three failed."""
    command.world.run("reviews/july.jsonl", GOOD + "nonsense\n" + GOOD, model=M2M)
    return command.world.manifest()["job_id"]


def file(tmp_path, content=GOOD, name="july.jsonl"):
    path = tmp_path / name
    path.write_text(content)
    return path


def test_put_uploads_and_says_where(command, tmp_path):
    done = command.run("put", file(tmp_path), "--model", M2M, "--name", "reviews/")

    command.settle()
    (job_id,) = {key.split("/")[3] for key in command.world.objects("results/reviews/")}
    assert (done.code, done.out) == (0, f"s3://{BUCKET}/inbox/reviews/july.jsonl  job {job_id}\n")
    head = command.world.s3.head_object(Bucket=BUCKET, Key="inbox/reviews/july.jsonl")
    assert head["Metadata"].items() >= {"model": M2M}.items()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--name", "_private/x.jsonl"), "begins with _ or ."),
        (("-o", "modle=x"), "Did you mean model?"),
        (("-o", "tags"), "NAME=VALUE"),
        (("--format", "xml"), "It must be one of native"),
    ],
)
def test_bad_file_is_refused_before_upload(command, tmp_path, arguments, says):
    done = command.run("put", file(tmp_path), *arguments)

    assert done.code == 2
    assert says in done.err
    assert command.world.objects("inbox/") == []


def test_ls_lists_jobs_oldest_first(command, finished):
    command.world.pass_time(60)
    command.world.run("later.jsonl", GOOD, model=M2M)

    lines = command.run("ls").out.splitlines()

    assert [line.split()[-1] for line in lines] == ["reviews/july.jsonl", "later.jsonl"]
    job_id, state, seconds, *more = lines[0].split()
    assert (job_id, state, more[:4]) == (finished, "completed", ["s", "3", "1", "failed"])
    assert 60 < int(seconds) < 120


def test_get_verifies_what_manifest_lists(command, finished, tmp_path):
    done = command.run("get", finished, "-o", tmp_path, "--json")

    names = [one["path"].rpartition("/")[2] for one in done.json()]
    assert names == ["output.jsonl", "errors.jsonl", "manifest.json"]
    assert (tmp_path / "output.jsonl").read_bytes() == command.world.read(
        f"results/reviews/july.jsonl/{finished}/output.jsonl"
    )


def test_result_that_was_tampered_with_is_not_kept(command, finished, tmp_path):
    key = f"results/reviews/july.jsonl/{finished}/output.jsonl"
    command.world.s3.put_object(
        Bucket=BUCKET, Key=key, Body=command.world.read(key).replace(b"true", b"True")
    )

    done = command.run("get", finished, "-o", tmp_path)

    assert done.code == 1
    assert "does not match the manifest" in done.err
    assert list(tmp_path.iterdir()) == []


def test_running_job_has_no_files_yet(command):
    command.world.upload("july.jsonl", GOOD, model=M2M)
    command.world.deliver_all()

    for verb in ("get", "retry", "report"):
        done = command.run(verb, "july.jsonl")
        assert (done.code, "not over yet" in done.err) == (6, True), verb


def test_report_is_made_on_this_machine(command, finished, tmp_path):
    page = tmp_path / "july.html"

    done = command.run("report", finished, "-o", page)

    assert (done.code, done.out) == (0, f"{page}\n")
    said = page.read_text()
    assert "3 records for <code>@cf/meta/m2m100-1.2b</code>, 2 answered, 1 failed." in said
    assert "<pre>nonsense</pre>" in said
    assert not any(key.endswith(".html") for key in command.world.objects())


def test_wait_says_why_most_records_failed_if_it_can_be_read(command, finished):
    done = command.run("wait", finished)
    command.world.s3.delete_object(
        Bucket=BUCKET, Key=f"results/reviews/july.jsonl/{finished}/errors.jsonl"
    )
    later = command.run("wait", finished)

    assert (done.code, later.code) == (0, 0)
    assert "1 record failed: invalid_json: " in done.err
    assert "1 record failed" not in later.err
    assert "shows why records failed" in later.err


@pytest.mark.parametrize(
    ("arguments", "key", "word"),
    [
        (("cancel", "{id}"), "control/jobs/{id}", b"cancel"),
        (("cancel", "{id}", "--now"), "control/jobs/{id}", b"cancel now"),
        (("pause", "{id}"), "control/jobs/{id}", b"pause"),
        (("resume", "{id}"), "control/jobs/{id}", b"run"),
        (("pause", "--yes"), "control/stack", b"pause"),
        (("resume",), "control/stack", b"run"),
    ],
)
def test_control_verbs_write_one_word_in_one_object(command, tmp_path, arguments, key, word):
    (put,) = command.run("put", file(tmp_path), "--model", M2M, "--json").json()

    # The job does not exist yet.
    done = command.run(*(one.format(id="july.jsonl") for one in arguments))

    assert done.code == 0
    assert command.world.objects("control/") == [key.format(id=put["job_id"])]
    assert command.world.read(key.format(id=put["job_id"])) == word


def test_whole_stack_is_not_paused_unasked(command, monkeypatch):
    done = command.run("pause")

    assert (done.code, "all jobs of stack dropbatch are paused. Add --yes" in done.err) == (2, True)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    for answer, written in ((False, []), (True, ["control/stack"])):
        monkeypatch.setattr("click.confirm", lambda *_, answer=answer, **__: answer)
        assert command.run("pause").code == 0
        assert command.world.objects("control/") == written


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_commands_for_finished_job_say_it_is_over(command, finished, verb):
    done = command.run(verb, finished)

    assert (done.code, done.out) == (0, f"{finished}  is over already: completed\n")
    assert command.run(verb, finished, "--json").json() == [
        {"job_id": finished, "control": None, "state": "completed"}
    ]
    assert command.world.objects("control/") == []


def test_retry_changes_option_and_stays_mergeable(command, api, tmp_path):
    api.inject(Fault(kind="item_fails", contains="once", marker="once", code=5001))
    command.world.run(
        "a.jsonl", GOOD + GOOD.replace('"x"', '"once"'), model=M2M, tags='{"team":"x"}'
    )

    done = command.run(
        "retry", "a.jsonl", "-o", 'defaults={"source_lang":"fr"}', "--wait", "--json"
    )

    assert done.json()[1]["counts"] == {"total": 1, "succeeded": 1, "failed": 0}
    assert done.json()[1]["tags"] == {"team": "x"}
    assert command.run("get", "a.jsonl", "--merged", "-o", tmp_path).code == 0
    merged = (tmp_path / "output.merged.jsonl").read_text().splitlines()
    assert [json.loads(line)["success"] for line in merged] == [True, True]


def test_redrive_sends_dead_letters_back(command, monkeypatch):
    # moto waits by the clock, which stands still.
    monkeypatch.setattr("dropbatch.cli.operate.LONG_POLL_SECONDS", 0)
    queues = command.world.queues
    for number in range(12):
        command.world.sqs.send_message(
            QueueUrl=queues["SubmitQueue-dead"], MessageBody=f"message {number}"
        )

    done = command.run("redrive", "--json")

    assert {one["queue"]: one["moved"] for one in done.json()} == {
        "Poll": 0,
        "Submit": 12,
        "Upload": 0,
    }
    assert "Messages" not in command.world.sqs.receive_message(QueueUrl=queues["SubmitQueue-dead"])
