"""Users pass a task token.

`put --task-token`, `submit(task_token=…)`, whole and in parts, and never by accident.
"""

import pytest

import dropbatch
from dropbatch.client import upload as uploads
from dropbatch.core.task_token import MAX_TOKEN
from local.workers_ai import Fault
from tests.support.aws.resources import BUCKET

M2M = "@cf/meta/m2m100-1.2b"
GOOD = {"text": "x", "target_lang": "es"}
TOKEN = "AQCEAAAA/planted+token=="


def metadata(world, key):
    return world.s3.head_object(Bucket=BUCKET, Key=key)["Metadata"]


@pytest.mark.parametrize("part", [uploads.PART_BYTES, 40], ids=["whole", "in parts"])
def test_submit_passes_the_token(command, monkeypatch, part):
    monkeypatch.setattr(uploads, "PART_BYTES", part)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)

    job = dropbatch.Client("dropbatch").submit(
        [GOOD] * 9, model=M2M, name="a.jsonl", task_token=TOKEN
    )

    assert metadata(command.world, "inbox/a.jsonl")["task-token"] == TOKEN
    assert job.wait() == "completed"
    assert TOKEN not in repr(vars(job))


@pytest.mark.parametrize("how", ["option", "variable"])
def test_put_passes_the_token(command, tmp_path, monkeypatch, how):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"x","target_lang":"es"}\n')
    given = ["--task-token", TOKEN] if how == "option" else []
    if how == "variable":
        monkeypatch.setenv("DROPBATCH_TASK_TOKEN", TOKEN)

    done = command.run("put", path, "--model", M2M, *given)

    assert done.code == 0, done.err
    assert metadata(command.world, "inbox/a.jsonl")["task-token"] == TOKEN
    assert TOKEN not in done.out + done.err


@pytest.mark.parametrize("token", ["x" * (MAX_TOKEN + 1), "", "two words", "naïve"])
def test_wrong_token_is_refused_before_anything_is_sent(command, token):
    with pytest.raises(dropbatch.UsageError, match="1 to 1,024 ASCII characters") as caught:
        dropbatch.Client("dropbatch").submit([GOOD], model=M2M, name="a.jsonl", task_token=token)

    assert not token or token not in str(caught.value)
    assert command.world.objects("inbox/") == []


def test_token_and_options_must_fit_one_object(command):
    with pytest.raises(dropbatch.UsageError, match="S3 allows 2,048"):
        dropbatch.Client("dropbatch").submit(
            ["x"], name="a.txt", template="y" * 1_200, task_token="x" * 900
        )


def test_token_is_for_one_file(command, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("{}\n")

    done = command.run("put", tmp_path, "--model", M2M, "--task-token", TOKEN)

    assert (done.code, "one file" in done.err) == (2, True)
    assert command.world.objects("inbox/") == []


def test_copy_of_an_upload_does_not_inherit_the_token(command):
    command.world.upload_records("a.jsonl", [GOOD], model=M2M, **{"task-token": TOKEN})

    dropbatch.Client("dropbatch").submit(f"s3://{BUCKET}/inbox/a.jsonl", name="b.jsonl")

    assert metadata(command.world, "inbox/b.jsonl") == {"model": M2M}


def test_upload_of_another_execution_is_not_there_already(command, tmp_path):
    """`--skip-existing` would let this execution wait for ever."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"x","target_lang":"es"}\n')
    for token in (TOKEN, f"{TOKEN}2"):
        done = command.run("put", path, "--model", M2M, "--skip-existing", "--task-token", token)

    assert "there already" not in done.out
    assert metadata(command.world, "inbox/a.jsonl")["task-token"] == f"{TOKEN}2"


def test_retry_has_its_own_token_or_none(command, api):
    api.inject(Fault(kind="item_fails", items=(0,), code=5001, message="no", times=2))
    job = dropbatch.Client("dropbatch").submit(
        [GOOD] * 2, model=M2M, name="a.jsonl", task_token=TOKEN
    )
    job.wait()

    again = job.retry()
    assert "task-token" not in metadata(command.world, f"inbox/{again.path}")
    with pytest.warns(UserWarning, match="retried already"):
        again = job.retry(task_token=f"{TOKEN}2")

    assert metadata(command.world, f"inbox/{again.path}")["task-token"] == f"{TOKEN}2"


def test_status_shows_why_nothing_is_reported(command):
    command.world.upload_records("a.jsonl", [GOOD], model=M2M, **{"task-token": TOKEN})
    command.world.settle()

    done = command.run("status", "a.jsonl")

    assert "note     no_state_machine: The stack has no StateMachineArn" in done.out
