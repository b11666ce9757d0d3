"""Records without an input."""

import json

import pytest

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
