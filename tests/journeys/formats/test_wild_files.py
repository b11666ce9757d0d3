"""Files as people have them, from drop to results: tables of other tools, arrays, mixtures, archives."""

import csv
import io
import json
import tarfile
import zipfile

import pytest

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
BGE = "@cf/baai/bge-small-en-v1.5"


def chat(number):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"hello {number}"}]}
    return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def run(world, name, content, model=LLAMA, **options):
    world.upload(name, content, model=model, **options)
    world.settle(minutes=240)
    return world.manifest()


def rows(world, name="output.csv", delimiter=","):
    text = world.read(f"{world.only_folder()}/{name}").decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        (b"id\ttext\n1\thello\n2\tbye\n", "\t"),
        (b"id|text\n1|hello\n2|bye\n", "|"),
        (b'id;text;"price, EUR"\n1;hello;2\n2;bye;3\n', ";"),
        (b"\xef\xbb\xbfID,Text\r\r\n1,hello\r\r\n2,bye\r\r\n", ","),
        (b",text\n0,hello\n1,bye\n", ","),
    ],
)
def test_table_of_another_tool_keeps_its_form(world, content, delimiter):
    manifest = run(world, "a.csv", content)
    assert (manifest["state"], manifest["counts"]["succeeded"]) == ("completed", 2)
    header, *answers = rows(world, delimiter=delimiter)
    assert header[-3:] == ["answer", "error_code", "error_message"]
    assert [one[-3].rpartition(": ")[2] for one in answers] == ["hello", "bye"]
    assert world.read(f"{world.only_folder()}/output.csv").startswith(b"\xef\xbb\xbf") == content.startswith(b"\xef")


@pytest.mark.parametrize("content", [b"sep=;\r\nid;text\r\n1;hello\r\n", b"\xef\xbb\xbfSEP=,\nid,text\n1,hello\n"])
def test_excels_sep_line_is_no_header(world, api, content):
    manifest = run(world, "a.csv", content)
    assert (manifest["error"]["code"], api.accepted) == ("unknown_format", [])
    assert "Delete this line" in manifest["error"]["message"]


def test_too_large_row_keeps_its_id(world):
    big = b"7," + b"x" * 10_500_000 + b"\n"
    manifest = run(world, "a.csv", b"id,text\n1,hello\n" + big + b"2,bye\n", BGE)
    assert manifest["counts"] == {"total": 3, "succeeded": 2, "failed": 1}
    assert [(one[0], one[3]) for one in rows(world)[1:]] == [("1", ""), ("7", "too_large"), ("2", "")]
    assert "retry" not in {one["kind"] for one in manifest["files"]}
    assert [one["external_reference"] for one in world.lines("errors.jsonl")] == ["7"]


LARGE = "x" * 10_500_000
LARGE_CHAT = [{"role": "user", "content": LARGE}]
TOO_LARGE = {
    "openai": ({"custom_id": "big", "body": {"messages": LARGE_CHAT}}, lambda line: line["custom_id"]),
    "anthropic": ({"custom_id": "big", "params": {"messages": LARGE_CHAT}}, lambda line: line["custom_id"]),
    "gemini": ({"key": "big", "request": {"contents": [{"parts": [{"text": LARGE}]}]}}, lambda line: line["key"]),
    "bedrock": ({"recordId": "big", "modelInput": {"prompt": LARGE}}, lambda line: line["recordId"]),
    "native": ({"external_reference": "big", "prompt": LARGE}, lambda line: line["external_reference"]),
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
    output = next(key for key in world.objects(world.only_folder()) if "/output." in key or key.endswith(".out"))
    lines = [json.loads(line) for line in world.read(output).splitlines()]
    assert [reference_in(line) for line in lines] == ["small", "big"]
    (error,) = world.lines("errors.jsonl")
    assert (error["external_reference"], error["error"]["code"]) == ("big", "too_large")


def test_schema_in_defaults_gives_answer_columns(world):
    schema = {"type": "object", "properties": {"mood": {"type": "string"}, "points": {"type": "integer"}}}
    defaults = json.dumps({"response_format": {"type": "json_schema", "json_schema": schema}})
    run(world, "a.csv", b"id,text\n1,hello\n", defaults=defaults)
    header, row = rows(world)
    assert header == ["id", "text", "answer", "mood", "points", "error_code", "error_message"]
    assert row[3:] == ["hello", "5", "", ""]


@pytest.mark.parametrize("indent", [None, 1])
def test_array_of_openais_records_is_batch_file(world, api, indent):
    manifest = run(world, "a.json", json.dumps([chat(number) for number in range(600)], indent=indent).encode())
    assert (manifest["format"], manifest["counts"]["succeeded"]) == ("openai", 600)
    assert len(api.accepted) == 2
    assert [line["custom_id"] for line in world.lines()] == [f"c{number}" for number in range(600)]


def test_first_record_without_custom_id_fails_alone(world):
    first = chat(0)
    del first["custom_id"], first["url"]
    records = [first, *(chat(number) for number in range(1, 5))]
    manifest = run(world, "a.jsonl", "\n".join(map(json.dumps, records)).encode())
    assert (manifest["format"], manifest["counts"]["failed"]) == ("openai", 1)
    assert world.lines()[0]["response"]["body"]["error"]["param"] == "custom_id"


def tar_of(content):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("a.jsonl")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def workbook():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return packed.getvalue()


LINES = b'{"text":"a"}\n'
TWO = json.dumps(chat(0)).encode() + b"\n" + json.dumps({"custom_id": "a", "params": {}}).encode()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", tar_of(LINES), "tar archive"),
        ("a.xlsx", workbook(), "Excel workbook; save the sheet as CSV"),
        ("a.db", b"SQLite format 3\x00" + LINES, "SQLite"),
        ("a.jsonl", TWO, "Line 1 is of the format openai, and line 2 is of the format anthropic"),
        ("a.jsonl", b'{"custom_id":"a","response":{"status_code":200}}\n', "batch's result"),
        ("a.jsonl", b'{"model":"text-embedding-3-small","input":"a"}\n', "bare body"),
    ],
)
def test_other_files_are_refused_with_advice(world, api, name, content, words):
    manifest = run(world, name, content)
    assert (manifest["state"], manifest["error"]["code"]) == ("failed", "unknown_format")
    assert words in manifest["error"]["message"]
    assert api.accepted == []
