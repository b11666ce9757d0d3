"""Reading results, and get --merged: each record's newest answer at its place."""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.client.download import blocks_of_file
from dropbatch.client.merge import Files, Merging
from dropbatch.client.records import records_of
from dropbatch.core.formats.base import (
    BOM,
    NULL,
    BatchFacts,
    Outcome,
    RecordFault,
    encode,
    is_retried,
)
from dropbatch.core.formats.table import FORMATS, Form, describer_of, reader_of, writer_of
from dropbatch.core.read.rows import first_row, read_rows
from tests.support.converted import LLAMA, target_of

UNREADABLE = b"{bad"


@dataclass
class FinishedJob:
    """A job that is over; lines without a table's header, failed and retried records by id."""

    files: Files
    records: list[bytes]
    lines: list[bytes] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    retried: list[int] = field(default_factory=list)
    references: list[bytes | None] = field(default_factory=list)
    retry_file: bytes = b""


def finish(
    folder: Path, job_id: str, form: Form, content: bytes, fails: Callable[[int, bytes], bool]
) -> FinishedJob:
    """Write what a job of an upload leaves; `fails` says of a record whether the API fails it."""
    is_table = FORMATS[form.format].is_table
    if is_table:
        form = Form(form.format, first_row(content).rstrip(b"\r"), form.delimiter)
        delimiter = form.columns.delimiter
        rows = read_rows([content.removeprefix(BOM)], delimiter)
        records = [bytes(row) for window in rows for row in window.records][1:]  # type: ignore[arg-type] # no long rows
    else:
        records = content.splitlines()
    records = [one for one in records if one]
    target = target_of(LLAMA)
    reader, writer, describe = reader_of(form, target), writer_of(form, target), describer_of(form)
    facts = BatchFacts(job_id, LLAMA, f"request-{job_id}", 1_790_000_000.0)
    job = FinishedJob(Files(job_id, form.format, 0, folder / f"{job_id}.output", None), records)
    errors = []
    retry = [form.columns.header] if is_table else []
    for id_, record in enumerate(records):
        is_readable = record != UNREADABLE or is_table or form.format == "text"
        fault = RecordFault("invalid_json", "unreadable", NULL)
        converted = reader.convert([record])[0] if is_readable else fault
        code = "inference_failed" if fails(id_, record) else ""
        code = converted.code if isinstance(converted, RecordFault) else code
        reference = converted.reference
        message = f'failed in {job_id}, "again"\nand again' if code else ""
        result = None if code else encode({"response": f'answer {id_} of {job_id}, "quoted"\n'})
        native = {"id": id_, "external_reference": reference, "success": not code}
        native["error" if code else "result"] = (
            {"code": code, "message": message} if code else json.loads(result or b"")
        )
        outcome = Outcome(id_, reference, record if is_readable else b"", result, code, message)
        job.lines.append(writer.line(facts, outcome) if writer else encode(native) + b"\n")
        job.references.append(None if reference == NULL else bytes(reference))
        if code:
            job.failed.append(id_)
            request = json.loads(describe(record)) if is_readable else record.decode()
            errors.append(encode(native | {"line": id_ + 1, "request": request}) + b"\n")
            if is_retried(code, NULL):
                job.retried.append(id_)
                retry.append(record)
    opening = form.columns.added_header() if is_table else b""
    job.files.output.write_bytes(opening + b"".join(job.lines))
    errors_path = folder / f"{job_id}.errors"
    errors_path.write_bytes(b"".join(errors))
    job.files = job.files._replace(
        retry_lines=len(job.retried), errors=errors_path if errors else None
    )
    job.retry_file = b"".join(one + b"\n" for one in retry)
    return job


JOB = "20261121T093000Z-00000000"


def chat(text):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1}


CHAT = chat("x")
PROMPT = {"prompt": "x", "max_gen_len": 5}


def lines_of(*records):
    return "".join(json.dumps(one) + "\n" for one in records).encode()


def two(make):
    return lines_of(make("a"), make("b"))


@pytest.mark.parametrize(
    ("form", "content", "references"),
    [
        (Form("native"), two(lambda ref: {"prompt": "x", "external_reference": ref}), ["a", "b"]),
        (Form("native"), two(lambda _: {"prompt": "x"}), [None, None]),
        (Form("openai"), two(lambda ref: {"custom_id": ref, "body": CHAT}), ["a", "b"]),
        (Form("anthropic"), two(lambda ref: {"custom_id": ref, "params": CHAT}), ["a", "b"]),
        (Form("bedrock"), two(lambda ref: {"modelInput": PROMPT, "recordId": ref}), ["a", "b"]),
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


def all_fail(*_):
    return True


def none_fail(*_):
    return False


def fail_marked(_, record):
    return b"fail" in record


def merge(tmp_path, first, *retries):
    merging = Merging(first.files, tmp_path)
    for retry in retries:
        merging.add(retry.files, first.files.job_id)
    merged = merging.write()
    merging.close()
    return merged


def child(number):
    return f"20261121T09300{number}Z-0000000{number}"


@pytest.mark.parametrize(
    ("format_", "delimiter", "content"),
    [
        ("csv", "", b'id,text\n1,a 5" pipe\n2,b\n3,a 6" pipe\n4,c\n5,fail me\n6,d\n'),
        ("csv", "", b'id,text\n1,ok\n2,fail 5" pipe\n3,last\n4,"fail\ntoo"\n5,x\n'),
        ("csv", ";", b"id;text\n1;ok, fine\n2;fail, me\n3;x,y\n"),
        ("csv", "", b"id,text\n1,ok\n2,fail " + b"x" * 140_000 + b"\n3,last\n"),
        ("csv", "", b'id,text\n1,ok\n2,a\rb\n3,fail x\n4,"abc"def\n5,\xff\xfe fail\n'),
        ("csv", "", b"\xef\xbb\xbfid,text\r\n1,ok\r\n2,fail\r\n"),
        ("tsv", "", b"id\ttext\n1\tok, fine\n2\tfail, me\n"),
        ("tsv", "", b'id\ttext\n1\tok "so"\n2\tfail 5"\n3\tfail 6"\n'),
        ("csv", "|", b'error_message|text\nx|ok\n"y|z"|fail\n'),
    ],
)
def test_rows_are_read_by_the_stacks_rules(tmp_path, format_, delimiter, content):
    form = Form(format_, delimiter=delimiter)
    first = finish(tmp_path, JOB, form, content, fail_marked)
    retry = finish(tmp_path, child(1), form, first.retry_file, none_fail)

    merged = merge(tmp_path, first, retry)

    expected = list(first.lines)
    for at, line in zip(first.retried, retry.lines, strict=True):
        expected[at] = line
    assert (merged.skipped, merged.retries, merged.replaced) == ([], 1, len(first.retried))
    header = first.files.output.read_bytes()[: -len(b"".join(first.lines))]
    assert merged.path.read_bytes() == header + b"".join(expected)


def test_columns_that_differ_are_skipped(tmp_path):
    first = finish(tmp_path, JOB, Form("csv"), b"id,text\n1,fail\n", all_fail)
    retry = finish(tmp_path, child(1), Form("csv"), b"text,id\nfail,1\n", none_fail)

    merged = merge(tmp_path, first, retry)

    assert [(one.job_id, "other columns" in one.message) for one in merged.skipped] == [
        (child(1), True)
    ]
    assert merged.path.read_bytes() == first.files.output.read_bytes()


def test_ids_within_a_users_record_stay(tmp_path):
    record = b'{"id":4711,"text":"fail","metadata":{"id":9,"k":1},"external_reference":{"id":812,"page":2}}'  # noqa: E501
    first = finish(tmp_path, JOB, Form("native"), b'{"text":"ok"}\n' + record + b"\n", fail_marked)

    error = json.loads(merge(tmp_path, first).errors.read_bytes())

    assert (error["id"], error["external_reference"]) == (1, {"id": 812, "page": 2})
    assert error["request"] == json.loads(record)


def test_merge_that_dies_leaves_no_part_of_errors(tmp_path, monkeypatch):
    """What an earlier merge wrote is gone, and what this one wrote is not taken for all of it."""
    first = finish(
        tmp_path, JOB, Form("native"), lines_of(*({"prompt": "x"} for _ in range(3))), all_fail
    )
    errors = merge(tmp_path, first).errors
    assert len(errors.read_bytes().splitlines()) == 3

    (tmp_path / "answers.sqlite").unlink()
    broken = "SELECT place, iif(place > 1, json('broken'), line) FROM failures"
    monkeypatch.setattr("dropbatch.client.merge._STILL_FAILED", broken)
    with pytest.raises(sqlite3.OperationalError, match="malformed"):
        merge(tmp_path, first)

    assert not errors.exists()


def test_retry_of_skipped_retry_is_named(tmp_path):
    content = lines_of({"prompt": "fail"})
    first = finish(tmp_path, JOB, Form("native"), content, all_fail)
    other = finish(tmp_path, child(1), Form("text"), b"fail\n", all_fail)
    grandchild = finish(tmp_path, child(2), Form("text"), b"fail\n", none_fail)
    merging = Merging(first.files, tmp_path)
    merging.add(other.files, JOB)
    merging.add(grandchild.files, child(1))

    assert [one.job_id for one in merging.write().skipped] == [child(1), child(2)]
    merging.close()


TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
    min_size=1,
    max_size=6,
)
RECORDS = {
    "native": lambda text, ref: {"prompt": text, "external_reference": ref},
    "openai": lambda text, ref: {"custom_id": ref, "body": chat(text)},
    "anthropic": lambda text, ref: {"custom_id": ref, "params": chat(text)},
    "objects": lambda text, ref: {"text": text, "id": ref},
    "bedrock": lambda text, ref: {"modelInput": {**PROMPT, "prompt": text}, "recordId": ref},
}
FIELDS = st.one_of(
    TEXT,
    st.sampled_from(
        [b'a 5" pipe', b'"q ""x"", y"', b'"two\nlines"', b"a\rb", b'"abc"def', b"\xff", b"a,b;c|d"]
    ),
)


@st.composite
def uploads(draw):
    """A format's form, and records with and without references, some of them unreadable."""
    format_ = draw(st.sampled_from([*FORMATS, "semicolons"]))
    references = draw(
        st.lists(st.one_of(st.none(), st.sampled_from("abcdeé😀/")), min_size=1, max_size=8)
    )
    if format_ in {"csv", "tsv", "semicolons"}:
        delimiter = {"csv": b",", "tsv": b"\t", "semicolons": b";"}[format_]
        fields = [draw(FIELDS) for _ in references]
        cells = [
            one if isinstance(one, bytes) else one.encode().replace(b'"', b"'") for one in fields
        ]
        names = [b"id", *((ref or "").encode() for ref in references)]
        pairs = zip(names, [b"text", *cells], strict=True)
        form = Form("tsv" if format_ == "tsv" else "csv", delimiter=delimiter.decode())
        return form, b"".join(delimiter.join(pair) + b"\n" for pair in pairs)
    texts = [draw(TEXT) for _ in references]
    if format_ == "text":
        return Form("text"), "".join(f"x{text}\n" for text in texts).encode()
    made = []
    for text, ref in zip(texts, references, strict=True):
        one = RECORDS[format_](text, ref)
        made.append({name: value for name, value in one.items() if value is not None})
    lines = [draw(st.sampled_from([UNREADABLE, *[json.dumps(one).encode()] * 9])) for one in made]
    return Form(format_), b"".join(line + b"\n" for line in lines)


def unique(references):
    return {one for one in references if one is not None and references.count(one) == 1}


def places_by_model(parent, retry, is_changed):
    """Where a retry's records belong."""
    if not is_changed:
        return dict(enumerate(parent.retried))
    ours, theirs = [parent.references[at] for at in parent.failed], retry.references
    both = unique(ours) & unique(theirs)
    return {at: parent.failed[ours.index(one)] for at, one in enumerate(theirs) if one in both}


@given(uploads(), st.data())
def test_merged_equals_model(tmp_path_factory, upload, data):
    form, content = upload
    folder = tmp_path_factory.mktemp("merge")
    fails = lambda *_: data.draw(st.booleans())  # noqa: E731
    first = finish(folder, JOB, form, content, fails)
    jobs, places = [first], {JOB: {at: at for at in range(len(first.records))}}
    model = {at: (line, at not in first.failed, JOB) for at, line in enumerate(first.lines)}
    merging = Merging(first.files, folder)
    unplaced = {}
    for number in range(1, data.draw(st.integers(1, 4)) + 1):
        parent = data.draw(st.sampled_from(jobs))
        unsendable = {*parent.failed} - {*parent.retried}
        sendable = [at for at in range(len(parent.records)) if at not in unsendable]
        is_chosen = bool(sendable) and data.draw(st.booleans())
        sent = parent.retried
        if is_chosen:
            sent = sorted(data.draw(st.sets(st.sampled_from(sendable), min_size=1)))
        kept = len(sent) - (0 if is_chosen else data.draw(st.integers(0, 1)))
        if kept <= 0:
            continue
        is_table = bool(FORMATS[form.format].delimiter)
        is_changed = kept < len(sent)
        records = [parent.records[at] for at in sent][:kept]
        header = parent.retry_file.partition(b"\n")[0] + b"\n" if is_table else b""
        retry = finish(
            folder, child(number), form, header + b"".join(one + b"\n" for one in records), fails
        )
        assert len(retry.records) == kept
        ids = (lambda sent=sent: iter(sent)) if is_chosen else None
        merging.add(retry.files._replace(ids=ids), parent.files.job_id)
        found = dict(enumerate(sent)) if is_chosen else places_by_model(parent, retry, is_changed)
        above = places[parent.files.job_id]
        places[child(number)] = own = {
            at: above[place] for at, place in found.items() if place in above
        }
        unplaced[child(number)] = kept - len(own)
        jobs.append(retry)
        for at, place in own.items():
            is_good, (_, was_good, newest) = at not in retry.failed, model[place]
            # What comes after a good answer was asked for again, or is a retry of that.
            if not was_good or (is_good and (is_chosen or newest == JOB)):
                model[place] = (retry.lines[at], is_good, child(number))

    merged = merging.write()
    merging.close()

    written = merged.path.read_bytes()
    if FORMATS[form.format].delimiter:
        header = first.files.output.read_bytes()[: -len(b"".join(first.lines))]
        assert written == header + b"".join(line for line, *_ in model.values())
    else:
        expected = [json.loads(line) for line, *_ in model.values()]
        for own, one in zip(first.lines, expected, strict=True):
            if name := {"native": "id", "text": "id", "bedrock": "recordId"}.get(form.format):
                one[name] = json.loads(own)[name]
        assert [json.loads(line) for line in written.splitlines()] == expected
    assert {one.job_id: one.records for one in merged.skipped} == {
        job: n for job, n in unplaced.items() if n
    }
    failed = [(one.id, one.error.message) for one in merged.files().records() if not one.success]
    newest = [
        (place, f'failed in {job}, "again"\nand again')
        for place, (_, good, job) in model.items()
        if not good
    ]
    assert failed == newest
