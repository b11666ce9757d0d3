"""No record that its model's published schema refuses is sent: for every model, in every format."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.models import find_model
from dropbatch.core.options import Options
from dropbatch.core.plan import Checkpoint, StackLimits, first_plan, make_reader, plan_upload
from dropbatch.core.read.cut import read_batches
from dropbatch.core.read.form import Beginning
from dropbatch.core.requests import alternatives, content
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem
from tests.support.examples import examples

MODELS = [
    model
    for schema in content()["schemas"].values()
    for model in schema["models"]
    if find_model(model).schema in content()["schemas"]
]
"""Those whose schema is read."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "utmost", "")
words = st.sampled_from(["", "a", "user", "system", "tool", "robot", "es", "cls", "text", *EFFORTS])
plain = (
    st.none()
    | st.booleans()
    | st.integers(-2, 130)
    | st.sampled_from([0.0005, 0.5, 1.5, 2.5, 5.5])
    | words
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "text", "type", "effort", "name"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
turns = st.fixed_dictionaries(
    {"role": words}, optional={"content": words | values, "tool_calls": values}
)
inputs = st.fixed_dictionaries(
    {},
    optional={
        "text": words | st.lists(words, max_size=2) | st.just(["a"] * 101),
        "prompt": words | plain,
        "messages": st.lists(turns, max_size=2)
        | st.just([{"role": "user", "content": "a"}])
        | plain,
        "input": words | st.just([]) | plain,
        "contexts": st.lists(st.fixed_dictionaries({}, optional={"text": words}), max_size=2),
        "query": words,
        "audio": words,
        "target_lang": words,
        "reasoning_effort": st.sampled_from(EFFORTS) | st.none(),
        "reasoning": st.fixed_dictionaries(
            {}, optional={"effort": st.sampled_from(EFFORTS), "summary": words}
        ),
    },
)
NAMES = sorted(
    {name for schema in content()["schemas"] for one in alternatives(schema) for name in one.known}
)
bodies = st.tuples(inputs, st.dictionaries(st.sampled_from(NAMES), values, max_size=2)).map(
    lambda two: two[1] | two[0]
)
cells = st.sampled_from(["", " ", "a", '"a, b"', '""', "[]", "{", "5", "1.0"])
RECORDS = {
    "native": bodies,
    "objects": bodies.map(lambda body: {"id": 1, **body}),
    "openai": bodies.map(lambda body: {"custom_id": "a", "body": body}),
    "anthropic": bodies.map(lambda body: {"custom_id": "a", "params": body}),
    "bedrock": bodies.map(lambda body: {"recordId": "a", "modelInput": body}),
}
LINES = {
    **{name: record.map(json.dumps) for name, record in RECORDS.items()},
    "csv": st.tuples(*[cells] * 6).map(",".join),
    "tsv": st.tuples(cells, cells).map("\t".join),
    "text": st.sampled_from(["a", "b c", "{", '"', " \u00a0"]),
}
HEADERS = {"csv": "id,text,max_tokens,stop,target_lang,messages\n", "tsv": "id\ttext\n"}


def sent(format_, model, lines):
    """The requests that are sent of an upload."""
    text = (HEADERS.get(format_, "") + "".join(f"{line}\n" for line in lines)).encode()
    limits, options = StackLimits(), Options(model=model, format=format_)
    first = first_plan(options, limits, by_default=False)
    planned = plan_upload(
        first, options, "inbox/a", Beginning("plain", text, complete=True), limits
    )
    reader = make_reader(planned.plan, planned.options, planned.header)
    place = Checkpoint(planned.plan.start, planned.plan.start_line)
    for one in read_batches(planned.plan, place, 0, [text[place.offset :]], reader):
        yield from json.loads(one.body)["requests"] if one.body else ()


def test_every_format_and_schema_is_drawn():
    assert LINES.keys() == FORMATS.keys()
    assert {find_model(model).schema for model in MODELS} == {
        find_model(one).schema for one in MODELS
    } - {""}
    assert len(MODELS) >= 14


@pytest.mark.parametrize("format_", LINES)
@examples(20)
@given(data=st.data(), model=st.sampled_from(MODELS))
def test_no_drawn_record_is_sent_and_refused(format_, data, model):
    lines = data.draw(st.lists(LINES[format_], min_size=1, max_size=4))
    try:
        for request in sent(format_, model, lines):
            assert problem(model, request, "", Behaviour()) is None, request
    except UploadRefused:
        pass  # none of it is sent


@examples(60)
@given(body=bodies, model=st.sampled_from(MODELS))
def test_native_record_is_sent_if_schema_takes_it(body, model):
    if (efforts := find_model(model).efforts) and not efforts.values:
        body.pop("reasoning_effort", None)  # Their schemas do not name it.
    is_taken = problem(model, body, "", Behaviour()) is None
    assert list(sent("native", model, [json.dumps(body)])) == [body] * is_taken
