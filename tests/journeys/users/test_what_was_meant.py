"""What is sent is what was meant: the same refusals on every way in, and what a table sends."""

import json

import pandas as pd
import pytest

import dropbatch
from dropbatch.errors import UploadRefused, UsageError
from local.workers_ai import Fault

BGE, LLAMA = "@cf/baai/bge-m3", "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
M2M, RERANKER = "@cf/meta/m2m100-1.2b", "@cf/baai/bge-reranker-base"
REVIEWS = "id,review,author\n1,Long and wooden.,Ann\n2,Short.,Bob\n"
LINES = '{"id":1,"review":"Long."}\n'

REFUSED = {
    "column in no braces": ("a.csv", REVIEWS, LLAMA, "review", "it names no column"),
    "column in two braces": ("a.csv", REVIEWS, LLAMA, "{{review}}", "it names no column"),
    "name of a file": ("a.csv", REVIEWS, LLAMA, "@prompt.txt", "it names no column"),
    "another column": ("a.csv", REVIEWS, LLAMA, "{text}", "there is no column 'text'"),
    "text without {text}": ("a.txt", "Long.\n", LLAMA, "text", "it names no column"),
    "objects without {}": ("a.jsonl", LINES, LLAMA, "review", "it names no column"),
    "no member": ("a.jsonl", LINES, LLAMA, "{text}", "there is no column 'text'"),
    "no input": ("a.csv", REVIEWS, LLAMA, "", "template: none is given"),
    "reference alone": ("a.csv", "id\n1\n", LLAMA, "", "template: none is given"),
    "rank or embed": ("a.csv", "query,text\na,b\n", BGE, "", "to rank, or to embed"),
    "no texts to rank": ("a.csv", "query,title\na,b\n", RERANKER, "", "template: none is given"),
    "wrong members": ("a.csv", "text,max_tokens\na,many\n", LLAMA, "", "row.max_tokens: It must"),
    "no language": ("a.csv", "text,lang\na,es\n", M2M, "", "target_lang: It is missing"),
    "short name": ("a.csv", REVIEWS, "bge-m3", "{review}", f"Did you mean {BGE}?"),
    "LiteLLM's name": ("a.csv", REVIEWS, f"workers-ai/{BGE}", "{review}", f"Did you mean {BGE}?"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_was_not_meant_is_refused_everywhere(command, api, tmp_path, case):
    name, content, model, template, says = REFUSED[case]
    path = tmp_path / name
    path.write_text(content)
    options = {"model": model, **({"template": template} if template else {})}
    arguments = [part for one in options.items() for part in (f"--{one[0]}", one[1])]

    put = command.run("put", path, *arguments)
    assert (put.code in {1, 2}, says in put.err) == (True, True)
    checked = command.run("validate", path, *arguments)
    assert (checked.code, says in checked.out) == (1, True)
    with pytest.raises((UsageError, UploadRefused)) as refused:
        dropbatch.Client("dropbatch").submit(path, **options)
    assert says in str(refused.value)
    assert command.world.objects("inbox/") == []

    command.world.run(name, content, **options)
    manifest = command.world.manifest()
    failed = manifest["error"] or command.world.lines("errors.jsonl")[0]["error"]
    assert says in failed["message"]
    assert (manifest["counts"]["succeeded"], api.accepted) == (0, [])


def test_table_says_what_it_sends(command, tmp_path):
    (tmp_path / "a.csv").write_text(
        "id,text,target_lang,author,date\n1,Hello,es,Ann,May\n2,Bye,fr,,\n"
    )
    (tmp_path / "b.csv").write_text("text,target_lang,author,date\nHello,es,Ann,May\n")

    done = command.run("put", tmp_path, "--model", M2M, "--wait")

    assert (done.code, done.err.count("not sent: author, date")) == (0, 1)
    assert "first request" not in done.err  # This is no terminal.
    outputs = [name for name in command.world.objects("results/") if name.endswith("output.csv")]
    first = command.world.read(min(outputs)).decode().splitlines()
    assert first[1].startswith("1,Hello,es,Ann,May,[es] Hello,")
    assert first[2].startswith("2,Bye,fr,,,[fr] Bye,")
    checked = command.run("validate", tmp_path / "a.csv", "--model", M2M)
    assert "not sent  author, date\n" in checked.out
    request = '{"text":"Hello","target_lang":"es","external_reference":"1"}'
    assert f"first     {request}\n" in checked.out


def test_long_prompt_comes_from_file(command, tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "prompt.txt").write_text("Translate:\n{review}\n")
    put = (
        "put",
        tmp_path / "a.jsonl",
        "--model",
        LLAMA,
        "--template-file",
        tmp_path / "prompt.txt",
    )

    twice = command.run(*put, "--template", "{review}")
    assert (twice.code, "Write it once." in twice.err) == (2, True)
    assert command.run(*put, "--wait").code == 0
    (line,) = command.world.lines()
    assert line["id"] == 1
    assert "Translate:\nLong." in line["answer"]
    none = command.run("put", tmp_path / "a.jsonl", "--template-file", tmp_path / "none.txt")
    assert (none.code, "none.txt cannot be read" in none.err) == (2, True)


def test_long_prompt_that_no_metadata_holds_is_sent_whole(command, api, tmp_path):
    """Beside its upload; a retry has it too, and one that is gone is never ignored."""
    api.inject(Fault(kind="item_fails", contains="once", marker="once", code=3040))
    shots = "".join(f"Example {n}: é.\n" for n in range(200))
    (tmp_path / "prompt.txt").write_text(shots + "Translate {review}")
    (tmp_path / "a.csv").write_text("id,review\n1,Long.\n2,once\n")
    given = ("--model", LLAMA, "--template-file", tmp_path / "prompt.txt", "-o", 'tags={"a":"b"}')
    put = ("put", tmp_path / "a.csv", *given)

    assert command.run("validate", *put[1:]).code == 0
    assert command.run(*put, "--wait", "--retry", "1").code == 0
    assert "is there already" in command.run(*put, "--skip-existing").out
    template = f"{shots}Translate {{review}}"
    for key in command.world.objects("results/"):
        if key.endswith("options.json"):
            assert json.loads(command.world.read(key))["template"] == template
    jobs = list(dropbatch.Client("dropbatch").jobs())
    assert [one.manifest()["tags"] for one in jobs] == [{"a": "b"}] * 2
    assert [one.manifest()["counts"]["failed"] for one in jobs] == [1, 0]

    command.world.run("b.csv", "id,review\n1,a\n", **{"options-at": "none"})
    failed = command.run("status", "b.csv").out
    assert "bad_options: inbox/_options/none.json was deleted" in failed


def test_members_of_rows_come_back_as_columns(command):
    rows = [
        {"id": 11, "title": "Pier", "tags": ["a"], "none": None},
        {"id": 12, "title": "Mole", "tags": [], "none": 1},
    ]
    client = dropbatch.Client("dropbatch")
    job = client.submit(iter(rows), model=BGE, template="{title}")
    assert job.wait(progress=False) == "completed"

    frame = job.to_pandas()
    assert list(frame.columns)[:6] == ["id", "title", "tags", "none", "success", "embedding"]
    own = frame[["id", "title", "tags", "none"]].astype(object).where(pd.notna, None)
    assert own.to_numpy().tolist() == [["11", "Pier", '["a"]', None], ["12", "Mole", "[]", "1"]]
    assert all(len(one) > 3 for one in frame["embedding"])
    assert [one.external_reference for one in job.results()] == [11, 12]


def test_retry_for_model_that_nobody_knows_is_refused(command, api):
    command.world.run("a.jsonl", json.dumps({"text": ""}) + "\n", model=BGE)
    done = command.run("retry", "a.jsonl", "-o", "model=@cf/baai/bge-m33")
    assert (done.code, f"Did you mean {BGE}?" in done.err) == (2, True)
