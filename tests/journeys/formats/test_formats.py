"""Files of every format, from drop to results."""

import csv
import gzip
import io
import json

import pytest

from local.workers_ai import Fault

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

    world.upload("a.CSV", TABLE, model=BGE)
    world.settle()

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
    world.upload("a.tsv" if not body else "a.csv", body)
    world.settle()

    (file,) = world.manifest()["files"]
    content = world.read(f"{world.only_folder()}/{file['name']}")
    bom = body[:3] if body.startswith(b"\xef") else b""
    assert content == (
        bom + b"id,text,answer,finish_reason,error_code,error_message\n" if body else b""
    )
    assert (file["bytes"], file["lines"]) == (len(content), 0)


def test_text_is_record_for_each_line(world, api):
    api.inject(Fault(kind="item_fails", contains="fail", marker="fail", code=5001))

    world.upload("a.txt.gz", gzip.compress(b"hello\r\n\n  \nfail\nlast"), model=BGE)
    world.settle()

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

    world.upload("a.jsonl", "\n".join(lines), model=LLAMA)
    world.settle()

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
    world.upload("a.jsonl", "".join(json.dumps(one) + "\n" for one in lines), model=model)
    world.settle()

    assert world.manifest()["counts"]["failed"] == len(wrong)
    assert {one["error"]["code"] for one in world.lines("errors.jsonl")} == {"bad_record"}
    assert [one["count"] for one in api.accepted] == [1]


def test_lines_of_objects_come_back_with_their_answers(world, api):
    api.inject(Fault(kind="item_fails", contains="fail", marker="fail", code=5001))
    own = [{"id": 11, "body": "Long.", "label": 0}, {"id": 12, "body": "fail", "label": 1}]
    lines = "".join(json.dumps(one) + "\n" for one in [*own, {"id": 13}])

    world.upload("a.jsonl", lines, model=BGE, template="Say: {body}")
    world.settle()

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
