"""Records without an input."""

import json

import pandas as pd
import pytest

import dropbatch
from tests.support.converted import LLAMA

BGE = "@cf/baai/bge-small-en-v1.5"
UPLOADS = {
    "a.jsonl": "".join(
        json.dumps({"text": "" if number % 10 == 3 else f"t{number}"}) + "\n"
        for number in range(40)
    ),
    "a.csv": "id,text\n"
    + "".join(f"r{number},{'' if number % 10 == 3 else 'a'}\n" for number in range(40)),
    "b.jsonl": "".join(
        json.dumps(
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": "/v1/embeddings",
                "body": {"model": BGE, "input": ["a", ""] if number % 10 == 3 else "a"},
            }
        )
        + "\n"
        for number in range(40)
    ),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_empty_inputs_fail_alone_and_unsent(world, api, name):
    world.upload(name, UPLOADS[name], model=BGE)
    world.settle()

    counts = world.manifest()["counts"]
    assert (counts["total"], counts["succeeded"], counts["failed"]) == (40, 36, 4)
    assert sum(api.calls["submit"].values()) == 1, "no submit is spent on isolation"
    errors = world.lines("errors.jsonl")
    assert [line["id"] for line in errors] == [3, 13, 23, 33]
    assert {line["error"]["code"] for line in errors} == {"bad_record"}
    assert all("empty" in line["error"]["message"] for line in errors)
    assert "retry" not in {file["kind"] for file in world.manifest()["files"]}


def frame_of(rows):
    """A frame in which every tenth text is empty: a null, an empty string or none."""
    empty = (None, "", float("nan"))
    texts = [
        empty[number // 10 % 3] if number % 10 == 3 else f"text {number}" for number in range(rows)
    ]
    return pd.DataFrame({"id": range(rows), "text": texts})


@pytest.mark.parametrize("rows", [1_010, pytest.param(100_000, marks=pytest.mark.slow)])
def test_frame_with_empty_cells_loses_no_good_row(command, api, rows):
    client = dropbatch.Client("dropbatch")
    with pytest.warns(
        UserWarning, match="100 of the first 1,000 records cannot be sent and will fail alone"
    ):
        job = client.submit(frame_of(rows), model=LLAMA, name="frame.csv")
    command.world.settle(minutes=240)

    manifest = job.manifest()
    assert manifest["counts"] == {"total": rows, "succeeded": rows * 9 // 10, "failed": rows // 10}
    assert sum(api.calls["submit"].values()) == len(manifest["batches"]), (
        "no submit is spent on isolation"
    )
    failed = [
        (one["id"], one["line"], one["external_reference"])
        for one in map(json.loads, errors_of(command, job))
    ]
    assert failed == [(row, row + 2, str(row)) for row in range(3, rows, 10)]


def errors_of(command, job):
    return command.world.read(f"{job.folder}errors.jsonl").splitlines()
