"""Reading results: every record's fate, in every format, whatever its bytes."""

import json

import pytest

from dropbatch.client.download import blocks_of_file
from dropbatch.client.records import records_of
from dropbatch.core.formats.table import Form
from tests.support.finished_jobs import finish

JOB = "20261121T093000Z-00000000"
CHAT = {"messages": [{"role": "user", "content": "x"}]}


def lines_of(*records):
    return "".join(json.dumps(one) + "\n" for one in records).encode()


@pytest.mark.parametrize(
    ("form", "content", "references"),
    [
        (
            Form("native"),
            lines_of({"prompt": "x", "external_reference": 7}, {"prompt": "x"}),
            [7, None],
        ),
        (
            Form("openai"),
            lines_of({"custom_id": "a", "body": CHAT}, {"custom_id": "b", "body": CHAT}),
            ["a", "b"],
        ),
        (
            Form("anthropic"),
            lines_of(*({"custom_id": one, "params": {"max_tokens": 1, **CHAT}} for one in "ab")),
            ["a", "b"],
        ),
        (
            Form("bedrock"),
            lines_of(
                *(
                    {"modelInput": {"prompt": "x", "max_gen_len": 5}, "recordId": one}
                    for one in "ab"
                )
            ),
            ["a", "b"],
        ),
        (Form("text"), b"one\ntwo\n", [None, None]),
        (Form("csv"), b'id,text\na,5" pipe\nb,"x\ny"\n', ["a", "b"]),
        (Form("csv"), b'id,text\na,"abc"def\nb,\xff\n', ["a", "b"]),
        (Form("csv"), b'\xef\xbb\xbf"first\nname",id,text\nx,a,one\ny,b,two\n', ["a", "b"]),
        (Form("csv"), b'\xef\xbb\xbf"name, first",text,id\nx,one,a\ny,two,b\n', ["a", "b"]),
        (Form("csv", delimiter=";"), b"error_message;id;text\nx;a;one\ny;b;two, too\n", ["a", "b"]),
        (Form("tsv"), b"ID\ttext\na\tone, two\nb\tx\ry\n", ["a", "b"]),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_fate_of_each_record(tmp_path, form, content, references, fails):
    job = finish(tmp_path, JOB, form, content, lambda id_, _: fails and id_ == 1)
    errors = blocks_of_file(job.files.errors) if job.files.errors else ()

    found = list(records_of(blocks_of_file(job.files.output), errors, form.format))

    assert [(one.id, one.external_reference) for one in found] == list(enumerate(references))
    assert [one.id for one in found if not one.success] == job.failed
    assert [one.error is None for one in found] == [one.success for one in found]
    assert ["answer" in str(one.result) for one in found] == [one.success for one in found]
