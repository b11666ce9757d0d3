"""What becomes of each code of the API."""

import pytest

from dropbatch.core.names import CONTROL_PK
from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, only_slowly, referenced, submits

BGE = "@cf/baai/bge-small-en-v1.5"


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "10000", "status": 403},
        {"kind": "error", "status": 401},
        {"kind": "error", "status": 403},
        *only_slowly(
            *({"kind": code, "status": 403} for code in ("9106", "9109", "6003", "3023", "7003"))
        ),
    ],
    ids=lambda fault: f"{fault['kind']}-{fault.get('status')}",
)
def test_credential_error_pauses_and_resumes_automatically(world, api, fault):
    api.inject(Fault(on="submit", times=3, **fault))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    world.deliver_all()
    world.tick()
    assert world.status()["waiting_for"]["code"] == "token_refused"

    world.settle(minutes=30)

    assert all_good(world, 3)
    assert submits(api) == 4


@pytest.mark.parametrize(
    "fault",
    [
        *({"kind": code, "status": 400} for code in ("5007", "7000")),
        *only_slowly(
            *(
                {"kind": code, "status": 400}
                for code in ("3042", "5016", "5018", "3041", "5035", "5005")
            )
        ),
        {
            "kind": "error",
            "code": 8007,
            "status": 400,
            "message": "Model does not support request queuing",
        },
        {"kind": "error", "code": 424242, "status": 410},
    ],
    ids=lambda fault: f"{fault['kind']}-{fault.get('code', '')}",
)
def test_unavailable_model_fails_its_whole_job_and_no_other(start, api, fault):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(on="submit", model=M2M, times=0, **fault))
    world.upload_records("a.jsonl", referenced(6), model=M2M)
    world.upload_records("b.jsonl", [{"text": "other"}], model=BGE)

    world.settle()

    told = {
        one["model"]: (one["state"], (one["error"] or {}).get("code"))
        for one in world.manifests().values()
    }
    assert told == {M2M: ("failed", "unknown_model"), BGE: ("completed", None)}
    assert submits(api) == 2


def test_deleted_pause_is_over_within_five_minutes(world, api):
    api.inject(Fault(kind="3036", on="submit"))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    world.deliver_all()
    world.dynamodb.delete_item(
        TableName="ledger", Key={"pk": {"S": CONTROL_PK}, "sk": {"S": "PAUSE"}}
    )

    world.settle(minutes=7)

    assert all_good(world, 3)
