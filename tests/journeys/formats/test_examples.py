"""The files in examples/: each is dropped as it is, and every record of it is answered."""

import csv
import json
import re
from pathlib import Path

import pytest

from local.workers_ai import Behaviour, WorkersAI

EXAMPLES = Path(__file__).parents[3] / "examples"
ROW = re.compile(r"^\| \[([^]]+)\]\(\1\) \| `(@[^`]+)` \|", re.MULTILINE)


def requests_of(path):
    text = path.read_text("utf-8")
    if path.suffix == ".csv":
        return [{"prompt": row["text"]} for row in csv.DictReader(text.splitlines(keepends=True))]
    return (
        json.loads(text)["requests"]
        if path.suffix == ".json"
        else [json.loads(line) for line in text.splitlines()]
    )


FILES = dict(ROW.findall((EXAMPLES / "README.md").read_text("utf-8")))


def test_every_example_is_in_table():
    files = [path.name for path in EXAMPLES.iterdir() if path.suffix in {".jsonl", ".json", ".csv"}]
    assert set(FILES) == {name for name in files if not name.endswith(".asl.json")}


@pytest.mark.parametrize("name", FILES)
def test_api_answers_every_record_of_example(name):
    api = WorkersAI(Behaviour(embedder="hash"))
    requests = requests_of(EXAMPLES / name)
    path = f"/client/v4/accounts/{'0' * 32}/ai/run/{FILES[name]}"
    headers = {"authorization": "Bearer local-token"}
    reply = api.handle("POST", path, "", headers, json.dumps({"requests": requests}).encode())
    result = json.loads(reply.body)["result"]
    answers = sorted(
        result.get("responses") or result["results"],
        key=lambda one: one.get("id", one.get("index")),
    )
    assert [one["success"] for one in answers] == [True] * len(requests)
    assert [one["external_reference"] for one in answers] == [
        one.get("external_reference") for one in requests
    ]
