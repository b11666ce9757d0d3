"""Files as people have them, from drop to results.

Tables of other tools, arrays, mixtures, archives.
"""

import csv
import io
import json

import pytest

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
BGE = "@cf/baai/bge-small-en-v1.5"


def run(world, name, content, model=LLAMA, **options):
    world.upload(name, content, model=model, **options)
    world.settle(minutes=240)
    return world.manifest()


def rows(world, name="output.csv", delimiter=","):
    text = world.read(f"{world.only_folder()}/{name}").decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


@pytest.mark.parametrize(
    "content", [b"sep=;\r\nid;text\r\n1;hello\r\n", b"\xef\xbb\xbfSEP=,\nid,text\n1,hello\n"]
)
def test_excels_sep_line_is_no_header(world, api, content):
    manifest = run(world, "a.csv", content)
    assert (manifest["error"]["code"], api.accepted) == ("unknown_format", [])
    assert "Delete this line" in manifest["error"]["message"]


def test_too_large_row_keeps_its_id(world):
    big = b"7," + b"x" * 10_500_000 + b"\n"
    manifest = run(world, "a.csv", b"id,text\n1,hello\n" + big + b"2,bye\n", BGE)
    assert manifest["counts"] == {"total": 3, "succeeded": 2, "failed": 1}
    assert [(one[0], one[3]) for one in rows(world)[1:]] == [
        ("1", ""),
        ("7", "too_large"),
        ("2", ""),
    ]
    assert "retry" not in {one["kind"] for one in manifest["files"]}
    assert [one["external_reference"] for one in world.lines("errors.jsonl")] == ["7"]


LARGE = "x" * 10_500_000
LARGE_CHAT = [{"role": "user", "content": LARGE}]
TOO_LARGE = {
    "openai": (
        {"custom_id": "big", "body": {"messages": LARGE_CHAT}},
        lambda line: line["custom_id"],
    ),
    "anthropic": (
        {"custom_id": "big", "params": {"messages": LARGE_CHAT}},
        lambda line: line["custom_id"],
    ),
    "bedrock": (
        {"recordId": "big", "modelInput": {"prompt": LARGE}},
        lambda line: line["recordId"],
    ),
    "native": (
        {"external_reference": "big", "prompt": LARGE},
        lambda line: line["external_reference"],
    ),
}


@pytest.mark.parametrize("form", ["jsonl", "array"])
@pytest.mark.parametrize("format_", TOO_LARGE)
def test_too_large_record_keeps_its_reference(world, format_, form):
    record, reference_in = TOO_LARGE[format_]
    small = json.loads(json.dumps(record).replace(LARGE, "hello").replace("big", "small"))
    records = [json.dumps(one) for one in (small, record)]
    content = "\n".join(records) if form == "jsonl" else f"[{','.join(records)}]"
    manifest = run(world, "a.jsonl" if form == "jsonl" else "a.json", content.encode())
    assert (manifest["format"], manifest["counts"]["failed"]) == (format_, 1)
    output = next(
        key
        for key in world.objects(world.only_folder())
        if "/output." in key or key.endswith(".out")
    )
    lines = [json.loads(line) for line in world.read(output).splitlines()]
    assert [reference_in(line) for line in lines] == ["small", "big"]
    (error,) = world.lines("errors.jsonl")
    assert (error["external_reference"], error["error"]["code"]) == ("big", "too_large")


def test_schema_in_defaults_gives_answer_columns(world):
    schema = {
        "type": "object",
        "properties": {"mood": {"type": "string"}, "points": {"type": "integer"}},
    }
    defaults = json.dumps({"response_format": {"type": "json_schema", "json_schema": schema}})
    run(world, "a.csv", b"id,text\n1,hello\n", defaults=defaults)
    header, row = rows(world)
    assert header == ["id", "text", "answer", "mood", "points", "error_code", "error_message"]
    assert row[3:] == ["hello", "5", "", ""]
