"""Files of every format, from drop to results: examples, and those of vendors too."""

import csv
import gzip
import io
import json
import pydoc
import re
from array import array
from base64 import b64decode
from pathlib import Path

import pytest

from local.workers_ai import Behaviour, Fault, WorkersAI

BGE = "@cf/baai/bge-small-en-v1.5"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"


def folder_of(world, path):
    (folder,) = [
        folder
        for folder, one in world.manifests().items()
        if one["source"]["key"] == f"inbox/{path}"
    ]
    return folder


def result(world, path, name):
    return world.read(f"{folder_of(world, path)}/{name}")


def names(world, path):
    return {file["kind"]: file["name"] for file in world.manifest(folder_of(world, path))["files"]}


def drop_again(world, path, name, new):
    """Copy a retry file into the inbox, as a user does; its metadata go with it."""
    world.s3.copy_object(
        Bucket="dropbatch-test",
        Key=f"inbox/{new}",
        CopySource=f"dropbatch-test/{folder_of(world, path)}/{name}",
    )


TABLE = (
    b'\xef\xbb\xbfid,text,note\r\n7,"hello,\r\nthere",a\r\n8,good day,b,ragged\r\n\r\n9,fail,c\r\n'
)


def test_table_comes_back_with_its_answers(world, api):
    api.inject(Fault(kind="item_fails", contains="fail", marker="fail", code=5001))

    world.run("a.CSV", TABLE, model=BGE)

    manifest = world.manifest()
    assert manifest["format"] == "csv"
    assert manifest["counts"] == {"total": 3, "succeeded": 1, "failed": 2}
    assert names(world, "a.CSV") == {
        "output": "output.csv",
        "errors": "errors.jsonl",
        "retry": "retry.csv",
    }
    output = result(world, "a.CSV", "output.csv")
    rows = list(csv.reader(io.StringIO(output.decode("utf-8-sig"), newline="")))
    assert output.startswith(b"\xef\xbb\xbf")
    assert rows[0] == [
        *("id", "text", "note", "answer", "finish_reason", "error_code", "error_message")
    ]
    assert rows[1][:3] == ["7", "hello,\r\nthere", "a"]
    assert json.loads(rows[1][3])["shape"][-1]
    assert [row[5] for row in rows[1:]] == ["", "bad_record", "inference_failed"]
    assert output.splitlines(keepends=True)[1:3] != []
    assert b'7,"hello,\r\nthere",a,' in output
    assert result(world, "a.CSV", "retry.csv") == b"\xef\xbb\xbfid,text,note\n9,fail,c\n"
    errors = world.lines("errors.jsonl")
    assert [(one["line"], one["external_reference"]) for one in errors] == [(4, "8"), (6, "9")]
    assert errors[1]["request"] == {"id": "9", "text": "fail", "note": "c"}
    files = {file["kind"]: file for file in manifest["files"]}
    assert (files["output"]["lines"], files["retry"]["lines"]) == (3, 1)

    drop_again(world, "a.CSV", "retry.csv", "again.csv")
    world.settle()

    assert world.manifest(folder_of(world, "again.csv"))["counts"] == {
        "total": 1,
        "succeeded": 1,
        "failed": 0,
    }
    parent = folder_of(world, "a.CSV")
    (record,) = [key for key in world.objects() if key.startswith(f"{parent}/retries/")]
    told = json.loads(world.read(record))
    assert (told["joined_by"], told["counts"]["succeeded"]) == ("line", 1)
    assert told["manifest"] == f"{folder_of(world, 'again.csv')}/manifest.json"


@pytest.mark.parametrize("body", [b"", b"id,text\n", b"\n\nid,text", b"\xef\xbb\xbfid,text\r\n"])
def test_table_without_rows_gives_its_header_alone(world, body):
    world.run("a.tsv" if not body else "a.csv", body)

    (file,) = world.manifest()["files"]
    content = world.read(f"{world.only_folder()}/{file['name']}")
    bom = body[:3] if body.startswith(b"\xef") else b""
    assert content == (
        bom + b"id,text,answer,finish_reason,error_code,error_message\n" if body else b""
    )
    assert (file["bytes"], file["lines"]) == (len(content), 0)


def test_text_is_record_for_each_line(world, api):
    api.inject(Fault(kind="item_fails", contains="fail", marker="fail", code=5001))

    world.run("a.txt.gz", gzip.compress(b"hello\r\n\n  \nfail\nlast"), model=BGE)

    assert names(world, "a.txt.gz") == {
        "output": "output.jsonl",
        "errors": "errors.jsonl",
        "retry": "retry.txt",
    }
    assert [line["success"] for line in world.lines()] == [True, False, True]
    assert result(world, "a.txt.gz", "retry.txt") == b"fail\n"
    (error,) = world.lines("errors.jsonl")
    assert (error["line"], error["request"]) == (4, {"text": "fail"})


def chat(number, **more):
    body = {
        "model": "gpt-4o-mini",
        "messages": [{"role": "user", "content": f"hello {number}"}],
        **more,
    }
    return {
        "custom_id": f"c{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }


def test_openai_file_is_answered_in_openais_lines(world, api):
    api.inject(Fault(kind="item_fails", contains="hello 2", marker="hello 2", code=5001))
    lines = [
        json.dumps(chat(0)),
        json.dumps(chat(1, n=2)),
        json.dumps(chat(2)),
        "nonsense",
        json.dumps(chat(4)),
    ]

    world.run("a.jsonl", "\n".join(lines), model=LLAMA)

    job_id, output = world.manifest()["job_id"], world.lines()
    assert [line["id"] for line in output] == [
        f"batch_req_{job_id}_{number}" for number in range(5)
    ]
    assert [line["custom_id"] for line in output] == ["c0", "c1", "c2", None, "c4"]
    assert [line["response"] and line["response"]["status_code"] for line in output] == [
        200,
        400,
        500,
        None,
        200,
    ]
    assert output[0]["response"]["body"]["object"] == "chat.completion"
    assert output[1]["response"]["body"]["error"]["param"] == "body.n"
    assert output[3]["error"]["code"] == "invalid_json"
    assert result(world, "a.jsonl", "retry.jsonl").decode() == f"{lines[2]}\n"
    assert [one["line"] for one in world.lines("errors.jsonl")] == [2, 3, 4]


GPT = "@cf/openai/gpt-oss-120b"
KIMI = "@cf/moonshotai/kimi-k2.6"
WRONG = (
    *({"max_tokens": "100"}, {"max_tokens": 100.5}, {"max_tokens": -5}),
    *({"temperature": "0.7"}, {"temperature": 9}, {"top_p": "1"}, {"image": "AAAA"}),
)


@pytest.mark.parametrize("model", [GPT, LLAMA, KIMI])
def test_wrong_values_fail_alone_and_unsent(world, api, model):
    hello = {"messages": [{"role": "user", "content": "Name a tide."}]}
    wrong = [one for one in WRONG if model != KIMI or "image" not in one]
    lines = [
        {"custom_id": str(index), "url": "/v1/chat/completions", "body": hello | one}
        for index, one in enumerate(({}, *wrong))
    ]
    world.run("a.jsonl", "".join(json.dumps(one) + "\n" for one in lines), model=model)

    assert world.manifest()["counts"]["failed"] == len(wrong)
    assert {one["error"]["code"] for one in world.lines("errors.jsonl")} == {"bad_record"}
    assert [one["count"] for one in api.accepted] == [1]


def test_lines_of_objects_come_back_with_their_answers(world, api):
    api.inject(Fault(kind="item_fails", contains="fail", marker="fail", code=5001))
    own = [{"id": 11, "body": "Long.", "label": 0}, {"id": 12, "body": "fail", "label": 1}]
    lines = "".join(json.dumps(one) + "\n" for one in [*own, {"id": 13}])

    world.run("a.jsonl", lines, model=BGE, template="Say: {body}")

    output = world.lines()
    assert [one["id"] for one in output] == [11, 12, 13]
    assert output[0]["answer"]["shape"][0] == 1
    assert [one["error_code"] for one in output] == [None, "inference_failed", "bad_record"]
    assert [one["external_reference"] for one in world.lines("errors.jsonl")] == [12, 13]
    assert result(world, "a.jsonl", "retry.jsonl").decode() == json.dumps(own[1]) + "\n"

    drop_again(world, "a.jsonl", "retry.jsonl", "again.jsonl")
    world.settle()

    assert world.manifest(folder_of(world, "again.jsonl"))["format"] == "objects"
    assert world.manifest(folder_of(world, "again.jsonl"))["counts"]["succeeded"] == 1


VENDORS = json.loads((Path(__file__).parents[2] / "files/vendors.json").read_text("utf-8"))
"""Batch files by name, each as its lines."""
M3 = "@cf/baai/bge-m3"
VISION = "@cf/meta/llama-4-scout-17b-16e-instruct"

MODELS = {
    "anthropic-guide": LLAMA,
    "anthropic-tools": KIMI,
    "openai-guide": LLAMA,
    "openai-guide-embeddings": M3,
    "openai-guide-responses": GPT,
    "openai-cookbook-captions": VISION,
    "openai-cookbook-movies": LLAMA,
    "bedrock-guide-converse": LLAMA,
    "bedrock-guide-embeddings": M3,
    "bedrock-guide-llama": LLAMA,
    "bedrock-guide-messages": LLAMA,
    "bedrock-guide-titan": LLAMA,
}
TYPES = {
    "chat.completion": "chat.ChatCompletion",
    "list": "CreateEmbeddingResponse",
    "response": "responses.Response",
}
"""The types of OpenAI's own package, in `openai.types`, by what a body says it is."""


def test_each_file_is_run():
    assert sorted(MODELS) == sorted(VENDORS)


EVERY_DAY = {"openai-guide", "openai-guide-embeddings", "bedrock-guide-messages"}


@pytest.mark.parametrize(
    "name",
    [name if name in EVERY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_vendors_file_is_answered_in_its_own_form(world, name):
    content = "".join(f"{line}\n" for line in VENDORS[name]).encode()
    records = [json.loads(line) for line in content.splitlines() if line.strip()]

    world.run(f"{name}.jsonl", content, model=MODELS[name], minutes=240)

    manifest = world.manifest()
    assert (manifest["format"], manifest["counts"]["failed"]) == (name.partition("-")[0], 0)
    if manifest["format"] == "anthropic":
        lines = world.lines()
        assert [line["custom_id"] for line in lines] == [record["custom_id"] for record in records]
        assert all(line["result"]["message"]["content"] for line in lines)
    elif manifest["format"] == "openai":
        lines = world.lines()
        assert [line["custom_id"] for line in lines] == [record["custom_id"] for record in records]
        for line in lines:
            body = line["response"]["body"]
            for one in body["data"] if body["object"] == "list" else ():
                if isinstance(one["embedding"], str):
                    one["embedding"] = array("f", b64decode(one["embedding"])).tolist()
            # Its import takes 2 s, which no other test should wait for.
            pydoc.locate(f"openai.types.{TYPES[body['object']]}").model_validate(body, strict=False)
    else:
        lines = world.lines(f"{name}.jsonl.out")
        assert [line["modelInput"] for line in lines] == [
            record["modelInput"] for record in records
        ]
        assert all(line["modelOutput"] for line in lines)


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


EXAMPLE_MODELS = dict(ROW.findall((EXAMPLES / "README.md").read_text("utf-8")))


def test_every_example_is_in_table():
    files = [path.name for path in EXAMPLES.iterdir() if path.suffix in {".jsonl", ".json", ".csv"}]
    assert set(EXAMPLE_MODELS) == {name for name in files if not name.endswith(".asl.json")}


@pytest.mark.parametrize("name", EXAMPLE_MODELS)
def test_api_answers_every_record_of_example(name):
    api = WorkersAI(Behaviour(embedder="hash"))
    requests = requests_of(EXAMPLES / name)
    path = f"/client/v4/accounts/{'0' * 32}/ai/run/{EXAMPLE_MODELS[name]}"
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
