"""`get --merged`: newer answers at the places of failed ones, in every format of an output."""

import json

import pytest

from dropbatch.merging import is_success, overlay, records

OK, BAD = "ok", "bad"


def native(number, outcome, text):
    if outcome == OK:
        return {"id": number, "external_reference": None, "success": True, "result": {"response": text}}
    return {"id": number, "external_reference": None, "success": False, "error": {"code": "expired", "message": text}}


def openai(number, outcome, text):
    status, body = (200, {"text": text}) if outcome == OK else (500, {"error": {"message": text}})
    response = {"status_code": status, "request_id": "r", "body": body}
    return {"id": f"batch_req_{number}", "custom_id": f"row-{number}", "response": response, "error": None}


def bedrock(number, outcome, text):
    end = {"modelOutput": {"text": text}} if outcome == OK else {"error": {"errorCode": 500, "errorMessage": text}}
    return {"modelInput": {}, **end, "recordId": f"RECORD{number:05}"}


def write(path, lines):
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


def merged(tmp_path, old, new, places):
    target = tmp_path / "merged"
    taken = list(overlay(old, new, places, target))
    return taken, target


@pytest.mark.parametrize("line", [native, openai, bedrock])
def test_newer_answers_stand_at_places_of_failed_ones(tmp_path, line):
    old = write(tmp_path / "old", [line(n, BAD if n in {1, 3} else OK, f"old {n}") for n in range(5)])
    new = write(tmp_path / "new", [line(0, OK, "new 1"), line(1, OK, "new 3")])

    taken, target = merged(tmp_path, old, new, [1, 3])

    assert taken == [1, 3]
    lines = target.read_text().splitlines()
    assert ["new" in one for one in lines] == [False, True, False, True, False]
    assert [one for number, one in enumerate(lines) if number not in {1, 3}] == [
        one for number, one in enumerate(old.read_text().splitlines()) if number not in {1, 3}
    ]


@pytest.mark.parametrize(("line", "name"), [(native, "id"), (bedrock, "recordId")])
def test_newer_answer_has_id_of_this_job(tmp_path, line, name):
    old = write(tmp_path / "old", [line(n, BAD, "old") for n in range(3)])
    new = write(tmp_path / "new", [line(0, OK, "new")])

    _, target = merged(tmp_path, old, new, [2])

    old_ids = [json.loads(one)[name] for one in old.read_text().splitlines()]
    assert [json.loads(one)[name] for one in target.read_text().splitlines()] == old_ids


@pytest.mark.parametrize("line", [native, openai, bedrock])
def test_newer_failure_never_replaces_success(tmp_path, line):
    old = write(tmp_path / "old", [line(0, OK, "old"), line(1, BAD, "old")])
    new = write(tmp_path / "new", [line(0, BAD, "new"), line(1, BAD, "new")])

    taken, target = merged(tmp_path, old, new, [0, 1])

    assert taken == [1]
    assert ["new" in one for one in target.read_text().splitlines()] == [False, True]


def test_rows_of_table_may_hold_line_ends(tmp_path):
    old = tmp_path / "old"
    old.write_bytes(
        b'text,answer,error_code,error_message\n"a\nb",,expired,late\n"say ""x""",good,,\nz,,expired,late\n'
    )
    new = tmp_path / "new"
    new.write_bytes(b'text,answer,error_code,error_message\n"a\nb","A\n,B",,\nz,,expired,again\n')

    taken, target = merged(tmp_path, old, new, [0, 2])

    assert taken == [0, 2]
    assert target.read_bytes() == (
        b'text,answer,error_code,error_message\n"a\nb","A\n,B",,\n"say ""x""",good,,\nz,,expired,again\n'
    )


def test_records_of_table_are_whole_rows():
    assert list(records([b"a,b\n", b'"x\n', b'y",1\n'], is_table=True)) == [b"a,b\n", b'"x\ny",1\n']


@pytest.mark.parametrize(
    ("header", "row", "good"),
    [
        (b"id;text;answer;error_code;error_message\n", b"1;a,b;Hi, you;;\n", True),
        (b"id|answer|error_code_2|error_message_2\n", b"1||expired|late, very\n", False),
        (b"id,answer,error_code,error_message\n", b"1,a\tb,,\n", True),
    ],
)
def test_header_tells_delimiter(header, row, good):
    assert is_success(row, is_table=True, header=header) is good


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ({"custom_id": "a", "result": {"type": "succeeded", "message": {}}}, True),
        ({"custom_id": "a", "result": {"type": "errored", "error": {}}}, False),
        ({"custom_id": "a", "result": {"type": "expired"}}, False),
        ({"key": "a", "response": {"candidates": []}}, True),
        ({"key": "a", "error": {"code": 400}}, False),
        ({"request": {}, "response": {"candidates": []}, "status": "", "processed_time": "2026-11-21"}, True),
        ({"request": {}, "response": {}, "status": "no", "processed_time": "2026-11-21"}, False),
    ],
)
def test_success_is_known_for_anthropic_and_gemini(line, good):
    assert is_success(json.dumps(line).encode(), is_table=False) is good


@pytest.mark.parametrize(("row", "good"), [(b"x\tanswer\t\t\n", True), (b"x\t\texpired\tlate, very\n", False)])
def test_tabs_separate_fields_of_tsv(row, good):
    assert is_success(row, is_table=True) is good
