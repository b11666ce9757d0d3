"""Uploads that S3 lists but does not hand out."""

import json
from contextlib import suppress

import pytest
from botocore.exceptions import ClientError

from shared.errors import StorageError
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M, all_good, greetings

MINUTE, HOUR = 60.0, 3_600.0
KMS = (
    "User: x is not authorized to perform: kms:Decrypt on the resource associated with this "
    "ciphertext"
)
DENIALS = {
    "policy": ("GetObject", "AccessDenied", "Access Denied", 403),
    "kms denied": ("GetObject", "AccessDenied", KMS, 403),
    "kms disabled": (
        "GetObject",
        "KMS.DisabledException",
        "arn:aws:kms:eu-west-1:1:key/a is disabled.",
        400,
    ),
    "SSE-C": (
        "GetObject",
        "InvalidRequest",
        "The object was stored using a form of Server Side Encryption.",
        400,
    ),
}
HEADS = {
    "policy": ("HeadObject", "403", "Forbidden", 403),
    "SSE-C": ("HeadObject", "400", "Bad Request", 400),
}


@pytest.fixture
def refuse(world):
    """Has S3 refuse an operation on objects under a prefix, until it is called without one."""

    def begin(operation="", code="", message="", status=0, prefix="inbox/"):
        def before(called, arguments):
            if called == operation and arguments["Key"].startswith(prefix):
                response = {"Error": {"Code": code, "Message": message}}
                raise ClientError(
                    {**response, "ResponseMetadata": {"HTTPStatusCode": status}}, operation
                )

        world.permissions.before = before

    return begin


def pass_hours(world, hours, step=HOUR):
    ends = world.now() + hours * HOUR
    while world.now() < ends:
        world.deliver_all()
        world.tick()
        world.deliver_all()
        world.pass_time(step)


def notice(world, folder="results/a.jsonl"):
    return json.loads(world.read(f"{folder}/status.json"))


def dead_letters(world):
    return [
        name
        for name in world.queues
        if "Dead" in name and world.sqs.receive_message(QueueUrl=world.queues[name]).get("Messages")
    ]


def test_archived_upload_ends_at_once(world, refuse):
    refuse(
        "GetObject",
        "InvalidObjectState",
        "The operation is not valid for the object's storage class",
        403,
    )
    world.run("a.jsonl", greetings(3), model=M2M, minutes=2)

    error = world.manifest()["error"]
    assert (world.manifest()["state"], error["code"]) == ("failed", "source_archived")
    assert "Restore it" in error["message"]


@pytest.mark.parametrize("denial", DENIALS.values(), ids=DENIALS)
def test_denied_upload_is_shown_at_once_and_read_when_allowed(world, refuse, denial, caplog):
    refuse(*denial)
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()

    status = world.status()
    assert (status["state"], status["waiting_for"]["code"]) == ("splitting", "upload_denied")
    assert denial[2] in status["waiting_for"]["message"]
    pass_hours(world, 20)
    assert world.status()["waiting_for"]["code"] == "upload_denied"
    assert world.refused == []
    assert not [one for one in caplog.records if one.levelname == "ERROR"]

    refuse()
    pass_hours(world, 0.2, MINUTE)
    assert all_good(world, 3)
    assert world.status()["waiting_for"] is None


@pytest.mark.parametrize("denial", HEADS.values(), ids=HEADS)
def test_upload_of_which_nothing_is_known_is_shown(world, refuse, denial, caplog):
    refuse(*denial)
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    began = world.now()

    told = notice(world)
    assert (told["state"], told["waiting_for"]["code"]) == ("waiting", "upload_denied")
    assert denial[2] in told["waiting_for"]["message"]
    assert world.items() == [] or not [one for one in world.items() if one["sk"]["S"] == "META"]
    pass_hours(world, 20, HOUR / 2)
    assert notice(world)["state"] == "waiting"
    assert not [one for one in caplog.records if one.levelname == "ERROR"]

    refuse()
    pass_hours(world, 1, 10 * MINUTE)
    assert all_good(world, 3)
    assert notice(world)["state"] == "read"
    assert notice(world)["job_id"] == world.job_id()
    assert world.now() - began < 22 * HOUR


def test_unknown_upload_is_given_up_after_a_day(world, refuse):
    refuse(*HEADS["policy"])
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    pass_hours(world, 26, HOUR / 2)

    told = notice(world)
    assert (told["state"], told["error"]["code"], told["waiting_for"]) == (
        "failed",
        "upload_denied",
        None,
    )
    assert dead_letters(world) == []


@pytest.mark.parametrize("part", ["/request", "/part", "/raw-"])
def test_denied_write_is_shown_and_goes_on_when_allowed(world, refuse, part):
    def before(operation, arguments):
        if (
            operation == "PutObject"
            and arguments["Key"].startswith("staging/")
            and part in arguments["Key"]
        ):
            error = {
                "Error": {"Code": "AccessDenied", "Message": KMS},
                "ResponseMetadata": {"HTTPStatusCode": 403},
            }
            raise ClientError(error, operation)

    world.permissions.before = before
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    pass_hours(world, 0.05, MINUTE)

    for _ in range(8):
        waiting = world.status()["waiting_for"]
        assert waiting
        assert waiting["code"] == "results_denied"
        assert KMS in waiting["message"]
        pass_hours(world, 0.05, MINUTE)
    world.permissions.before = None
    pass_hours(world, 1.5, 5 * MINUTE)
    assert all_good(world, 3)
    assert world.status()["waiting_for"] is None


def test_denied_write_that_cannot_be_shown_is_an_alarm(world, refuse, caplog):
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver("UploadQueue")
    refuse("PutObject", "AccessDenied", KMS, 403, prefix="results/")
    pass_hours(world, 0.1, MINUTE)

    assert "call denied, and not shown" in caplog.text
    refuse()
    pass_hours(world, 0.2, MINUTE)
    assert all_good(world, 3)


@pytest.mark.parametrize(
    ("operation", "code", "part"),
    [
        ("GetObject", "AccessDenied", "/request"),
        ("GetObject", "KMS.DisabledException", "/part"),
        ("PutObject", "AccessDenied", "/output.jsonl"),
        ("UpdateItem", "AccessDeniedException", ""),
        ("SendMessageBatch", "KMS.AccessDeniedException", ""),
    ],
)
def test_what_a_job_needs_and_aws_refuses_is_shown(start, operation, code, part):
    """Within a minute, and at each look for half an hour."""
    world = start(MAX_REQUESTS_PER_BATCH=1)

    def before(called, arguments):
        if called == operation and (not part or part in arguments["Key"]):
            error = {
                "Error": {"Code": code, "Message": KMS},
                "ResponseMetadata": {"HTTPStatusCode": 403},
            }
            raise ClientError(error, operation)

    world.permissions.before = before
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    with suppress(StorageError):
        pass_hours(world, 1 / 60, MINUTE / 2)

    for _ in range(12):
        waiting = world.status()["waiting_for"]
        assert waiting
        assert waiting["code"] == "results_denied"
        assert KMS in waiting["message"]
        with suppress(StorageError):  # A tick fails without the table.
            pass_hours(world, 1 / 60, MINUTE / 2)
    world.permissions.before = None
    pass_hours(world, 3, 5 * MINUTE)
    assert all_good(world, 3)
    assert world.status()["waiting_for"] is None


@pytest.mark.parametrize("operation", ["HeadObject", "GetObject"])
def test_denied_options_end_upload_at_once(world, refuse, operation):
    world.s3.put_object(Bucket=BUCKET, Key="inbox/_options.json", Body=b'{"max_cost": 1}')
    refuse(operation, "AccessDenied", KMS, 403, prefix="inbox/_options.json")
    world.run("a.jsonl", greetings(3), model=M2M, minutes=2)

    error = world.manifest()["error"]
    assert error["code"] == "bad_options"
    assert "inbox/_options.json" in error["message"]
