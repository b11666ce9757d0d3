"""The life of a stack: a deployment under load, a new token, its deletion.

One stack for the file, in a folder and on ports of its own. The tests run in this order.
"""

import json
import time

import pytest

import dropbatch
from local import aws
from tests.support.aws.stack import MODEL, as_lines, requests, running_stack

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = "team-exports"
PARAMETERS = f"SourceBucketName={SOURCE} SourcePrefix=exports/"


@pytest.fixture(scope="module")
def stack():
    with running_stack("test-life", f"{PARAMETERS} MaxRequestsPerBatch=100") as made:
        yield made


@pytest.fixture(scope="module")
def events(stack):
    """The queue to which every notice is sent."""
    url = stack.sqs.create_queue(QueueName="events")["QueueUrl"]
    asked = stack.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    bus, arn = stack.client("events"), asked["Attributes"]["QueueArn"]
    bus.put_rule(Name="listen", EventPattern=json.dumps({"source": ["dropbatch"]}))
    bus.put_targets(Rule="listen", Targets=[{"Id": "queue", "Arn": arn}])
    return url


def test_deploy_over_jobs_in_flight_loses_nothing(stack, events):
    """The local AWS kills running functions, where AWS lets them end."""
    records = requests(2_000, "flight")
    stack.local("behaviour", "PUT", {"latency": 15.0})
    stack.drop(f"{MODEL}/flight.jsonl", records)
    table = "id,text\n" + "".join(f"{number},flying {number}\n" for number in range(300))
    # Its items carry another schema than those of native records.
    stack.drop(f"{MODEL}/flight.csv", table.encode())
    while len(stack.bill()) < 3:
        time.sleep(0.2)
    before = stack.resources()

    new = f"{PARAMETERS} MaxRequestsPerBatch=50 LogLevel=DEBUG"
    aws.up({"LOCAL_PORT": str(stack.port), "LOCAL_PARAMETERS": new}, stack.home)

    assert stack.resources() == before, "a deploy of new settings replaces nothing"
    functions = stack.client("lambda")
    about = functions.get_function_configuration(FunctionName=before["SubmitFunction"])
    assert about["Environment"]["Variables"]["MAX_REQUESTS_PER_BATCH"] == "50"
    # A function may be killed between its claim and its POST: its lease ends after some minutes.
    _, manifest = stack.wait_for_all(f"{MODEL}/flight.jsonl", records, seconds=800)
    assert [batch["requests"] for batch in manifest["batches"]] == [100] * 20, (
        "a job keeps the limits it began with"
    )
    table_folder, table_manifest = stack.wait(f"{MODEL}/flight.csv", seconds=600)
    assert table_manifest["counts"] == {"total": 300, "succeeded": 300, "failed": 0}
    rows = stack.read(f"{table_folder}/output.csv").splitlines()
    assert [row.split(b",")[0] for row in rows[1:]] == [b"%d" % number for number in range(300)]
    both = [*manifest["batches"], *table_manifest["batches"]]
    assert len(stack.bill()) - len(both) <= sum(batch["unknowable_submits"] for batch in both)
    stack.local("behaviour", "PUT", {"latency": 2.0})


def test_changed_token_needs_no_deploy(stack):
    stack.drop(f"{MODEL}/old-token.jsonl", requests(10, "old"))
    stack.wait(f"{MODEL}/old-token.jsonl")  # Both functions have read the old one by now.
    secret = stack.resources()["ApiToken"]
    stack.client("secretsmanager").put_secret_value(SecretId=secret, SecretString="changed")
    stack.local("behaviour", "PUT", {"tokens": ["changed"]})

    stack.drop(f"{MODEL}/new-token.jsonl", requests(10, "new"))

    assert stack.wait(f"{MODEL}/new-token.jsonl")[1]["counts"]["succeeded"] == 10
    assert stack.control_item("PAUSE").get("reason") != {"S": "token_refused"}


def test_source_object_is_answered_in_stacks_bucket(stack, monkeypatch):
    """The template's rule, queue policy and role suffice; the bucket is not the stack's."""

    def put(key, records):
        place = {"Bucket": SOURCE, "Key": key}
        stack.s3.put_object(**place, Body=as_lines(records), Metadata={"model": MODEL})

    stack.s3.create_bucket(Bucket=SOURCE)
    put("exports/older.jsonl", requests(10, "older"))
    events = {"EventBridgeConfiguration": {}}
    stack.s3.put_bucket_notification_configuration(Bucket=SOURCE, NotificationConfiguration=events)
    records, path = requests(30, "source"), "reviews/50% off + café.jsonl"
    put(f"exports/{path}", records)
    put("else.jsonl", records)

    _, manifest = stack.wait_for_all(path, records)

    assert (manifest["source"]["bucket"], manifest["source"]["key"]) == (SOURCE, f"exports/{path}")
    assert not stack.folders("else.jsonl")

    # What caused no event is started where it lies.
    monkeypatch.setenv("DROPBATCH_LOCAL", str(stack.home.stack_file))
    client = dropbatch.Client(local=True)
    jobs = [client.submit(f"s3://{SOURCE}/exports/older.jsonl") for _ in range(2)]
    assert jobs[0].wait(check=True, timeout=240) == "completed"
    assert jobs[0] == jobs[1]
    assert jobs[0].manifest()["source"]["bucket"] == SOURCE
    assert not any("older" in key for key in stack.keys("inbox/"))


def test_each_finished_job_was_announced(stack, events):
    """The local AWS enforces the poll function's role, which may put no other event."""
    uploads = ("flight.jsonl", "flight.csv", "old-token.jsonl", "new-token.jsonl")
    wanted = {stack.wait(f"{MODEL}/{name}")[1]["job_id"] for name in uploads}
    announced = set()
    ask = {"QueueUrl": events, "MaxNumberOfMessages": 10}
    while messages := stack.sqs.receive_message(**ask).get("Messages"):
        announced |= {json.loads(one["Body"])["detail"]["job_id"] for one in messages}
    assert wanted <= announced


def test_deleted_stack_leaves_bucket_and_table(stack, events):
    formation = stack.client("cloudformation")
    formation.delete_stack(StackName=aws.STACK_NAME)
    formation.get_waiter("stack_delete_complete").wait(
        StackName=aws.STACK_NAME, WaiterConfig={"Delay": 1}
    )

    folder, _ = stack.wait(f"{MODEL}/new-token.jsonl")
    assert len(stack.lines(folder)) == 10
    assert stack.client("dynamodb").scan(TableName=stack.told["table"])["Count"] > 0
    assert stack.client("lambda").list_functions()["Functions"] == []
    assert stack.sqs.list_queues()["QueueUrls"] == [events]
