"""Files as people have them, from drop to results."""

import json

import pytest

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"


def run(world, name, content, model=LLAMA, **options):
    world.upload(name, content, model=model, **options)
    world.settle(minutes=240)
    return world.manifest()


@pytest.mark.parametrize(
    "content", [b"sep=;\r\nid;text\r\n1;hello\r\n", b"\xef\xbb\xbfSEP=,\nid,text\n1,hello\n"]
)
def test_excels_sep_line_is_no_header(world, api, content):
    manifest = run(world, "a.csv", content)
    assert (manifest["error"]["code"], api.accepted) == ("unknown_format", [])
    assert "Delete this line" in manifest["error"]["message"]


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
