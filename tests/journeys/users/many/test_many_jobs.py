"""Verbs over many jobs: a prefix, a pattern, ids from standard input."""

import io
import json

import pytest

import dropbatch
from dropbatch.client import wait as waiting
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M

GOOD = '{"text":"x","target_lang":"es"}\n'
BAD = '{"text":"(refused)","target_lang":"es"}\n'
JOBS = 7


@pytest.fixture
def many(command):
    """Finished jobs below reviews/, one of them twice, two with a failed record."""
    for number in range(JOBS):
        command.world.upload(f"reviews/{number:02}.jsonl", GOOD + BAD * (number < 2), model=M2M)
    command.world.run("other.jsonl", GOOD, model=M2M)
    command.world.pass_time(60)
    command.world.run("reviews/05.jsonl", GOOD * 2, model=M2M)
    return command


@pytest.fixture
def few(command):
    """Three finished jobs below reviews/, two with a failed record."""
    for number in range(3):
        command.world.upload(f"reviews/{number:02}.jsonl", GOOD + BAD * (number < 2), model=M2M)
    command.settle()
    return command


@pytest.fixture
def calls(before_calls):
    made = []

    def note(operation, arguments):
        made.append((operation, str(arguments.get("Key", "")).rpartition("/")[2]))

    before_calls(note)
    return made


def test_get_of_many_lies_beside_their_names(many, tmp_path):
    meant = {
        "reviews/": JOBS,
        "reviews/*": JOBS,
        "inbox/reviews/": JOBS,
        f"s3://{BUCKET}/results/reviews/0[0-5]*": 6,
    }
    for at, (name, count) in enumerate(meant.items()):
        out = tmp_path / str(at)
        done = many.run("get", name, "-o", out)

        found = sorted(one.parent.relative_to(out).as_posix() for one in out.rglob("manifest.json"))
        assert (done.code, found) == (0, [f"reviews/{number:02}.jsonl" for number in range(count)])
        # The newest job's.
        assert len((out / "reviews/05.jsonl/output.jsonl").read_text().splitlines()) == 2


def test_get_of_jobs_of_one_path_keeps_both(many, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(many.run("ls", "--json").out))

    done = many.run("get", "-", "-o", tmp_path)

    assert done.code == 0
    assert len(list((tmp_path / "reviews/05.jsonl").iterdir())) == 2
    assert len(list(tmp_path.rglob("manifest.json"))) == JOBS + 2


def test_uploads_without_a_job_yet_are_meant_too(many, tmp_path):
    """As when `wait` and `get` follow at once on a `put` of a folder."""
    many.world.upload("reviews/03.jsonl", GOOD * 3, model=M2M)
    many.world.upload("reviews/new.jsonl", GOOD, model=M2M)
    many.world.upload("reviews/_no.jsonl", GOOD, model=M2M)
    many.world.upload("reviews/images/a.png", b"no", model=M2M)

    early = many.run("get", "reviews/", "-o", tmp_path)
    assert (early.code, early.out.count("  not over")) == (6, 2)
    waited = {one["source"]["key"]: one for one in many.run("wait", "reviews/*", "--json").json()}
    assert len(waited) == JOBS + 1
    assert waited["inbox/reviews/03.jsonl"]["counts"]["total"] == 3
    assert waited["inbox/reviews/new.jsonl"]["state"] == "completed"


def test_retry_of_many_tries_what_failed(many):
    done = many.run("retry", "reviews/", "--wait", "--json")

    assert [one["path"] for one in done.json()[:2]] == [
        "reviews/00.retry.jsonl",
        "reviews/01.retry.jsonl",
    ]
    assert done.err.count("has no retry file: no record failed.") == JOBS - 2


def test_wait_has_a_time_limit(command):
    command.world.secrets.put_secret_value(SecretId="token", SecretString="wrong-token")
    for number in range(JOBS):
        command.world.upload(f"reviews/{number}.jsonl", GOOD, model=M2M)
    command.world.deliver_all()
    began = command.world.now()

    done = command.run("wait", "reviews/", "--timeout", "2m")

    assert (done.code, f"{JOBS} of {JOBS} jobs are not over after 120 seconds" in done.err) == (
        6,
        True,
    )
    assert 120 <= command.world.now() - began < 140
    assert "Job " in command.run("wait", "reviews/1.jsonl", "--timeout", "90").err
    assert command.run("wait", "reviews/1.jsonl", "--timeout", "soon").code == 2


NO_JOB = "20200101T000000Z-00000000"


@pytest.fixture
def three(command, monkeypatch):
    """Three running jobs, whose ids standard input gives beside others."""
    for number in range(3):
        command.world.upload(f"reviews/{number}.jsonl", GOOD, model=M2M)
    command.world.deliver_all()
    first, *others = command.run("ls").out.splitlines(keepends=True)
    lines = [first, f"{NO_JOB}  gone.jsonl\n", '{"path": 1}\n', *others]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(lines)))
    return command


def test_cancel_goes_on_after_an_id_that_means_no_job(three):
    done = three.run("cancel", "-")

    assert (done.code, len(three.world.objects("control/jobs/"))) == (5, 3)
    assert f"There is no job {NO_JOB}" in done.err
    assert 'This line names no job: {"path": 1}' in done.err


def test_waiting_for_many_lists_pages(command, calls):
    client = dropbatch.Client("dropbatch")
    for number in range(30):
        command.world.upload(f"reviews/{number:02}.jsonl", GOOD, model=M2M)
    command.world.deliver_all()
    jobs = list(client.jobs(prefix="reviews/"))
    calls.clear()

    done = [job.path for job in dropbatch.wait(jobs)]

    assert sorted(done) == [f"reviews/{number:02}.jsonl" for number in range(30)]
    mine = [name for operation, name in calls if operation == "GetObject"]
    assert mine.count("manifest.json") >= 30
    looks = [operation for operation, _ in calls].count("ListObjectsV2")
    assert mine.count("status.json") <= waiting.SHOWN_JOBS * looks


def delete(command, *names):
    """Delete files of all jobs, as the lifecycle does, or somebody who cleans up."""
    for key in command.world.objects("results/"):
        if key.rpartition("/")[2] in names:
            command.world.s3.delete_object(Bucket=BUCKET, Key=key)


DELETED = [("status.json", "manifest.json"), ("manifest.json",)]


@pytest.mark.parametrize(("jobs", "gone"), [(1, DELETED[0]), (JOBS, DELETED[1])])
def test_wait_ends_for_jobs_whose_results_were_deleted(many, jobs, gone):
    ids = [line.split()[0] for line in many.run("ls").out.splitlines()[:jobs]]
    delete(many, *gone)
    began = many.world.now()

    done = many.run("wait", *ids)

    assert (done.code, many.world.now() - began < 400) == (5, True)
    assert f"{ids[0]}" in done.out + done.err
    assert "were deleted" in done.out + done.err


@pytest.mark.parametrize(("jobs", "lists"), [(1, True), (JOBS, False)])
def test_wait_ends_when_results_are_deleted_meanwhile(command, monkeypatch, jobs, lists):
    command.world.secrets.put_secret_value(SecretId="token", SecretString="wrong-token")
    for number in range(jobs):
        command.world.upload(f"reviews/{number:02}.jsonl", GOOD, model=M2M)
    command.world.deliver_all()
    if not lists:
        monkeypatch.setattr(waiting, "MIN_PAGES", 0)
        monkeypatch.setattr(waiting, "pages_of", lambda *_: iter([[]] * 50))
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        command.world.pass_time(seconds)
        if sum(slept) > 400:
            delete(command, "status.json")

    monkeypatch.setattr(waiting.time, "sleep", sleep)

    done = command.run("wait", *(f"reviews/{number:02}.jsonl" for number in range(jobs)))

    assert (done.code, done.err.count("were deleted") + done.out.count("were deleted")) == (5, jobs)
    assert sum(slept) < 1_100


def test_many_uploads_without_jobs_are_given_up_with_what_their_notices_say(command, monkeypatch):
    client = dropbatch.Client("dropbatch")
    jobs = [
        client.submit([{"text": "x", "target_lang": "es"}], name=f"{one}.jsonl", model=M2M)
        for one in "ab"
    ]
    waiting_for = {"code": "upload_denied", "message": "S3 refuses."}
    notice = {"state": "waiting", "error": None, "waiting_for": waiting_for, "job_id": None}
    notice["version"] = jobs[0].uploaded.version
    command.world.s3.put_object(
        Bucket=BUCKET, Key="results/a.jsonl/status.json", Body=json.dumps(notice).encode()
    )

    monkeypatch.setattr(waiting, "JOB_SECONDS", -1.0)

    found = {job.path: str(error) for job, error in waiting.Watch(jobs).look()}

    assert found["a.jsonl"] == "a.jsonl has no job: upload_denied: S3 refuses."
    assert found["b.jsonl"].startswith("b.jsonl has no job after")


def test_status_says_what_and_why(few):
    lines = few.run("status", "reviews/00.jsonl").out.splitlines()

    assert [line.split()[0] for line in lines[1:]] == [
        "file",
        "model",
        "age",
        "cost",
        "failed",
        "results",
    ]
    assert "model    @cf/meta/m2m100-1.2b, format native" in lines
    assert lines[5].startswith("failed   1 record; the first: line 2: rejected: ")

    few.world.upload("no-model.jsonl", GOOD)
    few.settle()
    says = few.run("status", "no-model.jsonl").out
    assert "because  no_model: No model was named" in says
    assert (
        json.loads(few.run("status", "no-model.jsonl", "--json").out)["error"]["code"] == "no_model"
    )
