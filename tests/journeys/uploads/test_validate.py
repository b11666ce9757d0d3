"""What `dropbatch validate` says of a file is what its job then does."""

import gzip
import io
import json

from dropbatch.client.validate import check_file
from dropbatch.core.options import metadata_of
from dropbatch.core.read.unpack import zstd_module
from tests.support.journeys.world import BUCKET
from tests.support.shipped import ROOT

WILD = json.loads((ROOT / "tests/files/foreign.json").read_text("utf-8"))
BGE, LLAMA = "@cf/baai/bge-m3", "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
LINES = b"".join(
    b'{"text":"hello %d","external_reference":"r%d"}\n' % (n, n % 200) for n in range(300)
)
MANY = json.dumps({"text": ["hello"] * 101}).encode()
CHAT = (
    b'{"custom_id":"a","url":"/v1/chat/completions","body":{"model":"%b","messages":[]}}\n'
    % LLAMA.encode()
)


def sample(content, name="a.jsonl", **options):
    return name, content, options


SAMPLES = {
    "lines": sample(LINES, model=BGE),
    "gzip": sample(gzip.compress(LINES), "a.jsonl.gz", model=BGE),
    "zstd": sample(zstd_module().compress(LINES + b"\n" * 300 + b"x\n"), "a.zst", model=BGE),
    "document": sample(
        b'{"requests":[' + LINES.strip().replace(b"\n", b",") + b"]}", "a.json", model=BGE
    ),
    "broken document": sample(b'[{"text":"x"},{"text":"y"}', "a.json", model=BGE),
    "cut archive": sample(gzip.compress(LINES)[:-20], "a.gz", model=BGE),
    "empty": sample(b""),
    "blank": sample(b"\n \r\n" * 50, model=BGE),
    "bad lines": sample(
        b'\xef\xbb\xbf{"a":1}\r\nx\n[1]\n\xff\n{"text":"' + b"x" * 10_500_000 + b'"}', model=BGE
    ),
    "no model": sample(LINES),
    "bad model": sample(LINES, model="bge"),
    "model of LiteLLM": sample(LINES, model=f"workers-ai/{BGE}"),
    "model in path": sample(LINES, f"{BGE}/a.jsonl"),
    "model in file": sample(CHAT * 3),
    "long path": sample(LINES, "x" * 890 + "/" + "y" * 40, model=BGE),
    "zip": sample(b"PK\x03\x04" + bytes(100), model=BGE),
    "prose": sample(b"prose", model=BGE),
    "named, unreadable": sample(b"prose\n" * 200 + CHAT, format="openai", model=LLAMA),
    "crowded": sample(b'{"text":"x"}\n' + MANY + b"\nx\n" + MANY, model=BGE),
    "template": sample(
        b"id,text\n1,a\n2,b\n", "a.csv", model=LLAMA, template="Say: {text}", system="Be brief."
    ),
    "template without a column": sample(
        b"id,review\n1,a\n", "a.csv", model=LLAMA, template="{{review}}"
    ),
    "template of text without a column": sample(b"one\n", "a.txt", model=LLAMA, template="text"),
    "reference alone": sample(b"id\n1\n", "a.csv", model=LLAMA),
    "template over lines": sample(
        b'{"id":1,"review":"a","max_tokens":5}\n{"id":2}\n', model=LLAMA, template="{review}"
    ),
    "template over an array": sample(b'[{"id":1,"a":"x"}]', "a.json", model=LLAMA, template="{a}"),
    "template over lines without a member": sample(LINES, model=LLAMA, template="text"),
    "rank or embed": sample(b"query,text\na,b\n", "a.csv", model=BGE),
    "members": sample(b"text,max_tokens,n\na,5,2\nb,x,1\n", "a.csv", model=LLAMA),
    "template elsewhere": sample(CHAT, template="{"),
    "table": sample(
        b'id;text\n1;a\n2;"b\nc"\n3\n', "a.csv", model=LLAMA, tags='{"team":"x"}', max_cost="1"
    ),
    "header alone": sample(b"id,text\n", "a.csv", model=LLAMA),
    "two delimiters": sample(b"id,text|x\n1,a\n", "a.csv", model=LLAMA),
    "open quote": sample(b'text\none\n"two', "a.csv", model=LLAMA),
    "text": sample(b"one\n\ntwo\n", "a.txt", model=LLAMA, defaults='{"max_tokens":9}'),
    "defaults": sample(LINES, model=BGE, defaults='{"pooling":"cls"}'),
    "no price": sample(LINES, model="@cf/some/model", max_cost="1"),
    **{name: sample(one["content"].encode(), name, model=LLAMA) for name, one in WILD.items()},
    **{
        path.name: sample(path.read_bytes(), path.name, model=BGE)
        for path in sorted((ROOT / "examples").iterdir())
    },
}


def check(key, content, options):
    return check_file(io.BytesIO(content), key, metadata_of(options))


def test_job_does_what_validate_says(world):
    said = {}
    for number, (path, content, options) in enumerate(SAMPLES.values()):
        key = f"inbox/{path if path.startswith('@cf/') else f'{number}/{path}'}"
        world.s3.put_object(Bucket=BUCKET, Key=key, Body=content, Metadata=metadata_of(options))
        said[key] = check(key, content, options)
    world.settle()

    codes = set()
    for folder, manifest in world.manifests().items():
        ours = said.pop(manifest["source"]["key"])
        assert manifest["error"] == ours["error"]
        assert (manifest["model"], manifest["format"]) == (ours["model"], ours["format"])
        codes.add((ours["error"] or {"code": ""})["code"])
        if ours["error"]:
            continue
        assert manifest["counts"]["total"] == ours["records"]
        errors = f"{folder}/errors.jsonl"
        failed = world.read(errors).splitlines() if errors in world.objects("results/") else []
        found = [(one["id"], one["error"]["code"]) for one in map(json.loads, failed)]
        assert {(one["id"], one["code"]) for one in ours["bad_first"]} <= set(found)
    assert said == {}
    assert codes > {
        "",
        "no_model",
        "bad_model",
        "bad_options",
        "unknown_format",
        "broken_document",
        "broken_archive",
    }


def test_more_texts_than_model_takes_are_bad():
    _, content, options = SAMPLES["crowded"]
    report = check("inbox/a.jsonl", content, options)

    assert (report["bad"], report["warnings"]) == (3, [])
    assert report["bad_first"][0]["message"] == "Line 2: text: Expected `array` of length <= 100."
