"""What docs/pipelines.md and its examples promise: of results, and night after night."""

import json
import re
import shlex

import boto3
import pytest
import yaml

import dropbatch
from tests.support import vendors
from tests.support.aws.resources import AWS_ACCOUNT, BUCKET, REGION
from tests.support.shipped import ROOT
from tests.support.translations import M2M

GOOD, BAD = (
    '{"text":"x","target_lang":"es","external_reference":{"row":1}}\n',
    '{"text":"no language"}\n',
)
PAGE = (ROOT / "docs/pipelines.md").read_text("utf-8")
DUCKDB = "FILTER (NOT success)"


def statements(contains):
    """The block of the page that contains a text."""
    (found,) = [
        block for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) if contains in block
    ]
    return found


@pytest.fixture
def reviews(command):
    """A path with two jobs and one with one; beside them, another folder."""
    for path, content in (
        ("a.jsonl", GOOD * 2),
        ("b/c.jsonl", GOOD * 3 + BAD),
        ("a.jsonl", GOOD + BAD * 2),
    ):
        command.world.run(f"reviews/{path}", content, model=M2M)
        command.world.pass_time(60)
    command.world.run("else/d.jsonl", GOOD, model=M2M)
    return command


@pytest.mark.slow
def test_duckdb_reads_jobs_and_answers(reviews, tmp_path):
    for key in reviews.world.objects("results/"):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(reviews.world.read(key))
    views = (ROOT / "examples/results.sql").read_text("utf-8").replace("s3://BUCKET", str(tmp_path))
    found = []
    for query in (
        statements(DUCKDB),
        "SELECT state, total, failed, dollars > 0 FROM jobs ORDER BY job_id",
        (
            "SELECT external_reference.row, result.translated_text IS NULL, error.code FROM "
            "answers ORDER BY upload, id"
        ),
    ):
        (tmp_path / "query.sql").write_text(views + query)
        found.append(vendors.run("duckdb_runs.py", tmp_path / "query.sql")["rows"])

    assert found[0] == [["inbox/reviews/a.jsonl", 3, 2], ["inbox/reviews/b/c.jsonl", 4, 1]]
    assert found[1] == [
        ["completed", total, failed, True] for total, failed in ((2, 0), (4, 1), (3, 2))
    ]
    assert found[2][0] == ["1", False, None]
    assert found[2][1] == [None, True, "bad_record"]


def test_event_reaches_a_queue(command):
    """By the pattern of the example."""
    pattern = re.search(r"--event-pattern '(.*?)'", (ROOT / "examples/job-events.sh").read_text())[
        1
    ]
    events, sqs = boto3.client("events"), boto3.client("sqs")
    queue = sqs.create_queue(QueueName="job-events")["QueueUrl"]
    events.put_rule(Name="job-events", EventPattern=pattern)
    arn = f"arn:aws:sqs:{REGION}:{AWS_ACCOUNT}:job-events"
    events.put_targets(Rule="job-events", Targets=[{"Id": "queue", "Arn": arn}])
    command.world.run("a.jsonl", GOOD, model=M2M)

    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    detail = json.loads(message["Body"])["detail"]
    assert (detail["state"], detail["results"]["bucket"]) == ("completed", BUCKET)


def test_sensors_key_exists_when_the_job_is_over(command):
    """Not before, although an older job of the same path is over."""
    client = dropbatch.Client("dropbatch")
    keys = []
    for count in (1, 2):
        command.world.pass_time(60)
        job = client.submit([json.loads(GOOD)] * count, name="reviews.jsonl", model=M2M)
        keys.append(f"{job.folder}manifest.json")
        assert keys[-1] not in command.world.objects("results/")
        command.settle()

    assert set(keys) <= set(command.world.objects("results/"))
    assert client.job(keys[0]).manifest()["counts"]["total"] == 1
    assert client.job(keys[1]).wait(check=True) == "completed"


WORKFLOW = yaml.safe_load((ROOT / "examples/github-actions.yml").read_text())
CRONTAB = re.search(
    r"^0 2 \* \* \* (dropbatch .*)$", (ROOT / "docs/pipelines.md").read_text("utf-8"), re.MULTILINE
)[1]


def workflow_line(verb):
    """The workflow's command of Dropbatch with this verb."""
    scripts = [step.get("run", "") for step in WORKFLOW["jobs"]["translate"]["steps"]]
    return re.search(rf"^dropbatch {verb} .*$", "\n".join(scripts), re.MULTILINE)[0]


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"text":"{text}","target_lang":"es"}}\n')


@pytest.fixture
def run(command, tmp_path, monkeypatch):
    """Run a line of the examples in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda line: command.run(*shlex.split(line)[1:])


def jobs(command):
    return len(
        {key.split("/")[-2] for key in command.world.objects("results/") if "manifest" in key}
    )


def test_workflow_translates_what_is_new_each_night(command, run, tmp_path):
    for number in range(8):
        write(tmp_path / f"texts/{number}.jsonl", f"text {number}")

    for night, text in ((8, "text 0"), (9, "another text")):
        write(tmp_path / "texts/0.jsonl", text)
        assert run(workflow_line("put")).code == 0
        command.settle()
        assert run(workflow_line("get")).code == 0
        assert jobs(command) == night
        answers = sorted((tmp_path / "answers").rglob("output.jsonl"))
        assert len(answers) == 8
        assert text in answers[0].read_text()


def test_crontab_sends_what_is_new_and_fetches_what_is_over(command, run, tmp_path):
    for night in (1, 2):
        write(tmp_path / f"exports/{night}.jsonl", f"night {night}")
        outcome = run(CRONTAB)
        assert outcome.code == 0, outcome.err
        assert jobs(command) == night
        assert len(list((tmp_path / "answers").rglob("output.jsonl"))) == night
