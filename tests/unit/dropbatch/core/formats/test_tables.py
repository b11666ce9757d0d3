"""CSV, TSV and text files: what is sent for a row, and the row with its answer."""

import csv
import json

import msgspec
import pytest

from dropbatch.client.records import records_of
from dropbatch.core.formats.base import BatchFacts, Converted, Outcome
from dropbatch.core.formats.rows import Template
from dropbatch.core.formats.table import Form, file_names, reader_of, writer_of
from dropbatch.core.formats.tables import Columns, answer_columns
from dropbatch.core.models import find_model
from dropbatch.core.read.rows import delimiters_in, first_row
from dropbatch.errors import UploadRefused
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem
from tests.support.converted import DATA, GPT, KIMI, LLAMA, SCOUT, target_of

BGE = "@cf/baai/bge-m3"


def convert(header, rows, model=BGE, template="", kind="csv"):
    """What rows become."""
    return reader_of(Form(kind, header), target_of(model, template)).convert(rows)


def sent(header, row, model=BGE, template=""):
    """The request that a row becomes."""
    (converted,) = convert(header, [row], model, template)
    assert isinstance(converted, Converted), converted
    return json.loads(converted.request)


FACTS = BatchFacts("j", BGE)
ENDS = b"finish_reason,error_code,error_message\n"


def line_of(header, row, result=None, code="", message="", kind="csv"):
    result = None if result is None else json.dumps(result).encode()
    writer = writer_of(Form(kind, header), target_of(BGE))
    return writer.line(FACTS, Outcome(0, b"null", row, result, code, message))


def error_of(function, *arguments):
    with pytest.raises(UploadRefused) as raised:
        function(*arguments)
    return raised.value


# ── which column ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("header", "column"),
    [
        (b"whatever", "whatever"),
        (b"a,text", "text"),
        (b"prompt,b", "prompt"),
        (b"a,input", "input"),
        (b"question,b", "question"),
        (b"prompt,text", "text"),
    ],
)
def test_input_is_only_column_or_one_of_known_names(header, column):
    row = b",".join(b"x-" + name for name in header.split(b","))
    assert sent(header, row)["text"] == f"x-{column}"


@pytest.mark.parametrize(
    ("row", "reference"),
    [
        (b'1\t"Hello," she said.', b'"1"'),
        (b"1\t\xff", b'"1"'),
        (b'"1"\t"Hello," she said.', b'"1"'),
        (b'"1" \tx', b"null"),
        (b'1\t"Hello," she said.\tx', b"null"),
        (b"\xff\tx", b"null"),
        (b"\t\xff", b"null"),
    ],
)
def test_row_that_cannot_be_read_keeps_its_reference(row, reference):
    (fault,) = convert(b"id\ttext", [row], kind="tsv")
    assert (bytes(fault.reference), "\t" in fault.message) == (reference, False)


@pytest.mark.parametrize(("header", "row"), [(b"text,id", b"x"), (b"text,b", b"x,\xff")])
def test_row_that_lacks_its_reference_has_none(header, row):
    (fault,) = convert(header, [row])
    assert bytes(fault.reference) == b"null"


@pytest.mark.parametrize("header", [b"a\xff", b"a\rb,c"])
def test_header_that_cannot_be_read_is_refused(header):
    assert error_of(Columns, header, b",").code == "unknown_format"


DELIMITERS = {
    b"id\ttext\n1\thello\n": ["\t"],
    b"id|text\n": ["|"],
    b'id;text;"price, EUR"\n1;x;2\n': [";"],
    b'\r\n\n"a,\nb";c\n1,1\n': [";"],
    b"text\na,b\n": [],
    b"id,text|x\n": [",", "|"],
}


def test_delimiter_is_what_header_has_outside_quotes():
    assert {header: delimiters_in(first_row(header)) for header in DELIMITERS} == DELIMITERS


def test_column_names_match_in_any_case():
    assert sent(b"ID, Text", b"1,x") == {"text": "x", "external_reference": "1"}
    assert sent(b"Title,body", b"x,y", template="{title}") == {"text": "x"}
    assert sent(b"TEXT,text,b", b"x,y,z") == {"text": "y"}
    assert error_of(convert, b"TEXT,Text,b", []).code == "bad_options"


@pytest.mark.parametrize("row", [b'1\t"Hello," she said.', b'1\t"a" "b"'])
def test_quotes_that_would_be_lost_make_row_bad(row):
    (fault,) = convert(b"id\ttext", [row], kind="tsv")
    assert (fault.code, "double the quotes" in fault.message) == ("bad_record", True)
    assert line_of(b"id\ttext", row, code="bad_record", message="m", kind="tsv").startswith(row)


TURNS = [{"role": "system", "content": 'Be "brief".'}, {"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("model", "request_"),
    [
        (LLAMA, {"messages": TURNS}),
        (KIMI, {"messages": TURNS}),
        (GPT, {"instructions": 'Be "brief".', "input": "x"}),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "text"])
def test_system_prompt_goes_before_each_row_and_line(model, request_, kind):
    target = target_of(model, system='Be "brief".')
    (converted,) = reader_of(Form(kind, b"text" if kind == "csv" else b""), target).convert([b"x"])
    assert json.loads(converted.request) == request_


def test_model_without_chat_takes_no_system_prompt():
    error = error_of(reader_of, Form("text"), target_of(BGE, system="Be brief."))
    assert (error.code, error.message.startswith("system: ")) == ("bad_options", True)


def test_repeated_name_gets_number():
    columns = Columns(b'text,answer,text,text,"a,b"', b",")
    assert columns.names == ["text", "answer", "text_2", "text_3", "a,b"]
    assert columns.added_header() == b'text,answer,text,text,"a,b",answer_2,' + ENDS


def test_member_named_answer_is_not_taken_for_answer():
    columns = Columns(b"text,answer", b",", ("answer", "mood"))
    header = columns.added_header()
    assert header == b"text,answer,answer_2,answer_of_answer,mood," + ENDS
    row = b'x,own,"{""answer"":""yes"",""mood"":""good""}",yes,good,,,\n'
    (record,) = records_of([header + row], [], "csv")
    assert record.text == '{"answer":"yes","mood":"good"}'


@pytest.mark.parametrize(
    ("model", "request_"),
    [
        (LLAMA, {"prompt": "x"}),
        (GPT, {"input": "x"}),
        (BGE, {"text": "x"}),
        (KIMI, {"messages": [{"role": "user", "content": "x"}]}),
        ("@cf/a/unknown", {"prompt": "x"}),
    ],
)
def test_input_goes_where_models_task_takes_it(model, request_):
    assert sent(b"text", b"x", model) == request_


@pytest.mark.parametrize("name", ["external_reference", "custom_id", "recordId", "id"])
def test_column_is_reference(name):
    assert sent(f"text,{name}".encode(), b"x,7") == {"text": "x", "external_reference": "7"}
    assert sent(f"text,{name}".encode(), b"x,") == {"text": "x"}


# ── members of the request ────────────────────────────────────────────────────────────────────────
HI = {"role": "user", "content": "hi"}
M2M, RERANKER = "@cf/meta/m2m100-1.2b", "@cf/baai/bge-reranker-base"
GUARD, WHISPER = "@cf/meta/llama-guard-3-8b", "@cf/openai/whisper-large-v3-turbo"
ONE = {"role": "system", "content": "[1]"}
SEVEN, CUT_OFF = {"max_output_tokens": 7}, {"text": "hi", "truncate_inputs": True}
SPANISH = {"text": "hi", "source_lang": "no", "target_lang": "es"}
HI_PART = {"type": "text", "text": "hi"}
PICTURE = {"type": "image_url", "image_url": {"url": DATA}}
TURNS_CELL = b'"[{""role"":""user"",""content"":""hi""}]"'


@pytest.mark.parametrize(
    ("model", "header", "row", "request_", "unused"),
    [
        (M2M, b"author,text,,source_lang,Target_Lang", b"a,hi,x,no,es", SPANISH, ["author"]),
        (
            LLAMA,
            b"text,max_tokens,temperature,system",
            b"hi,100.0,0.5,[1]",
            {"messages": [ONE, HI], "max_tokens": 100, "temperature": 0.5},
            [],
        ),
        (GPT, b"text,max_tokens", b"hi,9", {"input": "hi", "max_output_tokens": 9}, []),
        (GPT, b"text,max_tokens", b"hi,", {"input": "hi", **SEVEN}, []),
        (
            GPT,
            b"text,reasoning_effort,system",
            b"hi,low,Be brief.",
            {"instructions": "Be brief.", "input": "hi", "reasoning": {"effort": "low"}, **SEVEN},
            [],
        ),
        (
            KIMI,
            b"text,stop,user,n,stream,seed",
            b'hi,"[""x""]",bob,3,True,5',
            {"messages": [HI], "stop": ["x"], "seed": 5, "max_tokens": 7},
            ["user", "n", "stream"],
        ),
        (
            SCOUT,
            b"image,text",
            b'"%b",hi' % DATA.encode(),
            {"messages": [HI | {"content": [HI_PART, PICTURE]}], "max_tokens": 7},
            [],
        ),
        (KIMI, b"text,stop", b"hi,5", {"messages": [HI], "stop": "5", "max_tokens": 7}, []),
        (LLAMA, b"image,text", b"a.png,hi", {"prompt": "hi", "max_tokens": 7}, ["image"]),
        (LLAMA, b"query,text", b"q,hi", {"prompt": "hi", "max_tokens": 7}, ["query"]),
        (BGE, b"query,prompt,image", b"q,hi,a.png", {"text": "hi"}, ["query", "image"]),
        (
            KIMI,
            b"id,prompt,messages",
            b"1,x," + TURNS_CELL,
            {"messages": [HI], "external_reference": "1", "max_tokens": 7},
            ["prompt"],
        ),
        (GPT, b"messages", TURNS_CELL, {"input": [HI], **SEVEN}, []),
        (BGE, b"text,messages,truncate_inputs", b"hi,x,True", CUT_OFF, ["messages"]),
        (RERANKER, b"query,text", b"q,hi", {"query": "q", "contexts": [{"text": "hi"}]}, []),
        (
            BGE,
            b"query,text,contexts",
            b'q,x,"[""a"",{""text"":""b""}]"',
            {"query": "q", "contexts": [{"text": "a"}, {"text": "b"}]},
            ["text"],
        ),
    ],
)
def test_column_named_like_member_of_request_is_used(model, header, row, request_, unused):
    defaults = {"max_tokens": msgspec.Raw(b"7")} if find_model(model).task == "generation" else {}
    reader = reader_of(Form("csv", header), target_of(model, defaults=defaults))
    (made,) = reader.convert([row])
    assert (json.loads(made.request), reader.unused) == (request_, unused)
    assert problem(model, request_, "", Behaviour()) is None


def test_model_that_is_not_listed_and_embeds_takes_no_image():
    reader = reader_of(Form("csv", b"text,image"), target_of("@cf/new/x", task="embeddings"))
    assert reader.unused == ["image"]


def test_messages_go_to_a_model_that_judges_them():
    assert sent(b"messages", TURNS_CELL, GUARD) == {"messages": [HI]}


def test_column_that_template_names_is_no_member():
    found = sent(b"text,system", b"hi,calm", LLAMA, "{system}: {text}")
    assert found == {"prompt": "calm: hi"}
    with_member = sent(b"text,target_lang", b"hi,es", M2M, "Say: {text}")
    assert with_member == {"text": "Say: hi", "target_lang": "es"}


@pytest.mark.parametrize(
    ("model", "header", "row", "says"),
    [
        (LLAMA, b"text,max_tokens", b"hi,many", "row.max_tokens: It must be an integer"),
        (LLAMA, b"text,temperature", b"hi,9", "row.temperature: It must be a number from 0 to 5"),
        (SCOUT, b"text,image", b"hi,https://x/a.png", "Workers AI takes images as data URLs"),
        (LLAMA, b"id,messages", b"1,hi", "row.messages: It must be an array of messages."),
        (RERANKER, b"query,text", b",hi", "query: The cell is empty."),
    ],
)
def test_cell_that_is_no_such_member_makes_row_bad(model, header, row, says):
    (fault,) = convert(header, [row], model)
    assert (fault.code, says in fault.message) == ("bad_record", True)


@pytest.mark.parametrize(
    ("model", "header"),
    [(BGE, b"query,text"), (RERANKER, b"query,passage"), (KIMI, b"id"), (BGE, b"id,messages")],
)
def test_table_that_may_mean_several_things_is_refused(model, header):
    assert error_of(convert, header, [], model).code == "bad_options"


def test_message_lists_columns_and_one_as_an_example():
    names = [" ", "id", *map(str, range(18))]
    message = error_of(convert, ",".join(names).encode(), []).message
    assert "such as {0}." in message
    assert message.endswith("'16', '17'.")


OWN = {"id": 11, "title": "Pier", "tags": ["a"], "none": None, "max_tokens": 5}


def test_object_is_row_of_its_members():
    reader = reader_of(Form("objects"), target_of(LLAMA, "{title} {tags} {none}."))
    good, bad = reader.convert([json.dumps(OWN).encode(), b'{"id":12,"titel":"x"}'])
    request = {"prompt": 'Pier ["a"] .', "max_tokens": 5, "external_reference": 11}
    assert json.loads(good.request) == request
    assert "there is no column 'title'. The columns are: 'id', 'titel'" in bad.message
    assert reader.unused == []
    for template in ("title", "{title", "{{title}}"):
        error = error_of(reader_of, Form("objects"), target_of(LLAMA, template))
        assert error.code == "bad_options"
    reader = reader_of(Form("objects"), target_of(BGE))
    reader.convert([b'{"text":"a","tone":1}', b'{"text":"b"}'])
    assert reader.unused == ["tone"]


@pytest.mark.parametrize(
    ("own", "result", "line"),
    [
        (OWN, {"response": "Hi"}, {"answer": "Hi"}),
        ({"answer": "own"}, {"response": "Hi"}, {"answer_2": "Hi"}),
        ({"id": 1}, {"shape": [1], "data": [[0.5]]}, {"answer": {"shape": [1], "data": [[0.5]]}}),
        ({"id": 1}, None, {"answer": None, "error_code": "rejected", "error_message": "no"}),
    ],
)
def test_object_comes_back_with_its_answer(own, result, line):
    failure = {} if result else {"code": "rejected", "message": "no"}
    written = json.dumps(own).encode()
    writer = writer_of(Form("objects"), target_of(LLAMA))
    made = None if result is None else json.dumps(result).encode()
    found = writer.line(FACTS, Outcome(0, b"null", written, made, **failure))
    nothing = dict.fromkeys(("finish_reason", "error_code", "error_message"))
    assert json.loads(found) == {**own, **nothing, **line}
    (record,) = records_of([found], [], "objects")
    assert (record.external_reference, record.success) == (own.get("id"), True)


# ── templates ─────────────────────────────────────────────────────────────────────────────────────
def test_template_is_filled_from_row():
    found = sent(b"a,b c", b'x,"y\nz"', template="{b c} is {{a}} is {a}")
    assert found["text"] == "y\nz is {a} is x"


@pytest.mark.parametrize("template", ["{c}", "{a.b}", "{a!r}", "{}", "{a", "a}", "{a{b}}"])
def test_template_that_cannot_be_filled_is_refused(template):
    error = error_of(Template, template, ["a", "b", " "])
    assert error.code == "bad_options"
    assert error.message.startswith("template: ")


def test_row_without_what_its_template_names_is_bad():
    (fault,) = convert(b"a,file", [b",x.png"], template="{a}")
    assert (fault.code, fault.message[:20]) == ("bad_record", "template: All cells ")
    assert "messages" in sent(b"a,file", b",x.png", SCOUT, "{a}{file:s3}")


@pytest.mark.parametrize(
    ("model", "template", "says"),
    [
        (BGE, "{a:s3}", "takes only text"),
        (WHISPER, "{a:s3}", ""),
        (WHISPER, "{a:s3}{b:s3}", "takes one object a request"),
        (SCOUT, "{a:s3}{b:s3}", ""),
    ],
)
def test_template_names_as_many_objects_as_model_takes(model, template, says):
    if says:
        assert says in error_of(convert, b"a,b", [], model, template).message
    else:
        sent(b"a,b", b"x,y", model, template)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────
def test_answer_follows_row_as_it_came():
    row = b'  1 ,"x ""y""\r\nz",5" pipe'
    assert line_of(b"id,text,size", row, {"response": "Hi"}) == row + b",Hi,,,\n"


def test_answer_that_needs_quotes_has_them():
    assert line_of(b"text", b"x", {"response": 'a,"b"\n\rc'}) == b'x,"a,""b""\n\rc",,,\n'
    assert line_of(b"text", b"x", {"response": "a,b\tc"}, kind="tsv") == b'x\t"a,b\tc"\t\t\t\n'


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        ({"response": "Hi"}, "Hi"),
        ({"translated_text": "Hola"}, "Hola"),
        ({"choices": [{"message": {"content": "Hi"}}]}, "Hi"),
        ({"text": "spoken", "word_count": 1}, "spoken"),
        ({"response": {"a": [1, 2]}}, '{"a":[1,2]}'),
        ({"shape": [1, 2], "data": [[0.5, 1]]}, '{"shape":[1,2],"data":[[0.5,1]]}'),
        ({"response": "Hi", "tool_calls": [{"name": "f", "arguments": {}}]}, "Hi"),
        ({"tool_calls": [{"name": "f", "arguments": {}}]}, '[{"name":"f","arguments":{}}]'),
    ],
)
def test_answer_is_its_text_or_compact_json(result, answer):
    line = line_of(b"text", b"x", result).decode()
    assert next(csv.reader([line])) == ["x", answer, "", "", ""]
    assert b",empty_answer," in line_of(b"text", b"x", {"response": None})


@pytest.mark.parametrize(
    ("row", "fitted"),
    [
        (b"1", b"1,,"),
        (b"1,2,3,4", b"1,2,3"),
        (b'"1,\n2"', b'"1,\n2",,'),
        (b"", b",,"),
        (b"1,\xff,3", b"1,\xef\xbf\xbd,3"),
        (b"1,a\rb,3", b'1,"a\rb",3'),
        (b'1,"a"\rb,3', b'1,"""a""\rb",3'),
        (b'1,"a\rb",3', b'1,"a\rb",3'),
        (b"1,\xc3\xa9,3", b"1,\xc3\xa9,3"),
    ],
)
def test_row_is_padded_or_cut_to_header(row, fitted):
    assert line_of(b"a,b,c", row, code="bad_record", message="m") == fitted + b",,,bad_record,m\n"


SCHEMA = {"type": "object", "properties": {"mood": {"type": "string"}, "points, 0-5": {}}}


@pytest.mark.parametrize(
    "format_",
    [
        {"type": "json_schema", "json_schema": SCHEMA},
        {"name": "s", "schema": SCHEMA},
        {"json_schema": {"schema": SCHEMA}},
    ],
)
def test_schema_gives_each_member_of_answer_column(format_):
    names = answer_columns({"response_format": json.dumps(format_).encode()})
    form = Form("csv", b"id,mood", ",", tuple(names))
    opening = file_names(form, "inbox/a.csv").output_opening
    assert opening == b'id,mood,answer,mood_2,"points, 0-5",' + ENDS
    writer = writer_of(form, target_of(BGE))

    def cells(answer, *failure):
        line = writer.line(FACTS, Outcome(0, b"null", b"1,x", answer, *failure))
        return next(csv.reader([line.decode()]))[2:]

    good = b'{"response":{"points, 0-5":[4],"mood":"a,b"}}'
    assert cells(good)[1:] == ["a,b", "[4]", "", "", ""]
    assert cells(b'{"response":"no JSON"}') == ["no JSON", "", "", "", "", ""]
    assert cells(None, "rejected", "no") == ["", "", "", "", "rejected", "no"]
