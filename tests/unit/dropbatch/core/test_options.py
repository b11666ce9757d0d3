"""Options: where they come from, what they may be, and what is said of those that are wrong."""

import base64
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.formats.table import merge_defaults
from dropbatch.core.options import (
    GONE,
    MAX_OPTIONS_BYTES,
    decode_options,
    encode_options,
    file_options,
    metadata_of,
    metadata_options,
    named_options,
    options_keys,
    resolve,
)
from dropbatch.errors import UploadRefused, UsageError

EVERYTHING = {
    "model": "@cf/baai/bge-m3",
    "format": "csv",
    "task": "embeddings",
    "template": "Say {text}.",
    "defaults": {"max_tokens": 100, "stop": ["."]},
    "deadline_hours": 1.5,
    "max_failed_fraction": 0.25,
    "max_cost": 12.30,
    "output_tokens": 300,
    "tags": {"team": "é"},
}


def refused(function, *arguments):
    with pytest.raises(UploadRefused) as raised:
        function(*arguments)
    assert raised.value.code == "bad_options"
    return raised.value.message


def in_file(**members):
    return file_options(json.dumps(members).encode())


def test_unknown_member_is_named_with_nearest():
    message = refused(file_options, b'{"dead_line_hours":5}')
    assert message.startswith("_options.json: There is no option 'dead_line_hours'.")
    assert "max_failed_fraction" in message
    assert message.endswith("Did you mean deadline_hours?")


WRONG = {
    "model": [5, ""],
    "format": ["cvs", 5],
    "template": [None],
    "defaults": [[], {"external_reference": "x"}],
    "endpoint": ["/v1/moderations"],
    "task": ["embedding", ""],
    "deadline_hours": [0, 721, "5"],
    "max_failed_fraction": [1.1, -0.1, True],
    "max_cost": [-1, "5", 1e12],
    "output_tokens": [0, 1_000_001, 2.5, "many"],
    "tags": [{"a": 5}, {str(n): "" for n in range(17)}, {"": "x"}, {"a": "x" * 513}],
}


def test_wrong_value_is_refused_with_its_member(subtests):
    for member, value in [(name, one) for name, values in WRONG.items() for one in values]:
        with subtests.test(member, value=str(value)[:40]):
            message = refused(file_options, json.dumps({member: value}).encode())
            assert message.startswith(f"_options.json, {member}: It must ")


def test_nearest_file_is_looked_for_first():
    assert options_keys("inbox/a/b/c.csv") == [
        "inbox/a/b/_options.json",
        "inbox/a/_options.json",
        "inbox/_options.json",
    ]
    assert options_keys("inbox/c.csv") == ["inbox/_options.json"]


@pytest.mark.parametrize("written", ["max_cost", "max-cost", "MAX-COST", "Max_Cost"])
def test_option_is_read_in_every_spelling(written):
    found = {"max_cost": Decimal("0.5")}

    assert metadata_options({written: "0.5"}) == found
    assert in_file(**{written: 0.5}) == found
    assert metadata_of({written: 0.5}) == {"max-cost": "0.5"}


def test_spellings_that_differ_are_refused():
    said = refused(metadata_options, {"max_cost": "5", "max-cost": "6"})
    assert said.startswith("max_cost: max_cost differs from max-cost, which is the same option.")
    said = refused(file_options, b'{"max_cost":5,"Max-Cost":6}')
    assert said.startswith("_options.json, max_cost: Max-Cost differs from max_cost, ")
    with pytest.raises(UsageError, match="max-cost: It is given twice"):
        metadata_of({"max_cost": 5, "max-cost": 6})


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("max-costs", "max_cost"),
        ("maxcost", "max_cost"),
        ("max_failure", "max_failed_fraction"),
        ("deadline", "deadline_hours"),
        ("modelname", "model"),
        ("modle", "model"),
        ("tags2", "tags"),
        ("tag", "tags"),
    ],
)
def test_metadata_like_an_option_is_told_as_ignored(written, nearest):
    options = resolve([metadata_options({written: "5", "max_cost": "1"})])

    assert json.loads(encode_options(options)) == {"max_cost": 1, "ignored": {written: nearest}}
    assert resolve([named_options(options)]).ignored is None, "a retry has metadata of its own"


@pytest.mark.parametrize("name", ["max_cost", "deadline-hours", "model", "template"])
def test_empty_argument_is_no_option(name):
    """A limit of a variable that is not set must not be none."""
    with pytest.raises(UsageError, match=f"{name}: It is empty, as of a variable that is not set"):
        metadata_of({name: ""})


TEMPLATES = {
    "Say {text}": "Say {text}",
    '"one\\ntwo"': "one\ntwo",
    '{"a": 1}': '{"a": 1}',
    "=?UTF-8?Q?=C3=A9_{text}?=": "é {text}",
    "=?UTF-8?B?" + base64.b64encode("é\n{text}".encode()).decode() + "?=": "é\n{text}",
    "=?UTF-8?B?" + base64.b64encode(b'"a\\nb"').decode() + "?=": "a\nb",
    "2 =? 3": "2 =? 3",
}


def test_template_is_literal_unless_it_is_json_string():
    for written, template in TEMPLATES.items():
        assert metadata_options({"template": written}) == {"template": template}


def test_options_together_are_bounded():
    half = "x" * (MAX_OPTIONS_BYTES * 2 // 3)
    said = refused(resolve, [{"template": half}, in_file(defaults={"system": half})])
    assert "the maximum is 65,536" in said


def test_pinned_options_are_read_again_as_they_were():
    options = resolve([in_file(**EVERYTHING)])
    again = decode_options(encode_options(options))
    assert encode_options(again) == encode_options(options)
    assert resolve([named_options(again)]) == again


names = st.text(max_size=3)
members = st.dictionaries(
    names, st.one_of(st.none(), st.integers(), st.text(max_size=5)), max_size=4
)


@given(request=members, defaults=members)
def test_own_members_precede_defaults(request, defaults):
    raw = json.dumps(request).encode()
    written = {name: json.dumps(value).encode() for name, value in defaults.items()}
    merged = merge_defaults(raw, written)
    assert json.loads(merged) == {**defaults, **request}
    assert merged.startswith(raw[:-1])


AWKWARD = st.one_of(
    st.text(min_size=1, max_size=200),
    st.text(alphabet=" \t\r\n\"\\'{}=?b\x00\x85\u2028é", min_size=1, max_size=40),
    st.sampled_from(
        ['"x" {a}', "About {policy}:\n{content}", " x ", "=?utf-8?b?YQ==?=", "x" * 1_900, "é" * 700]
    ),
)


@given(AWKWARD, st.sampled_from(["template", "system"]))
def test_text_arrives_as_given(text, name):
    (header,) = metadata_of({name: text}).values()

    assert header.isascii()
    assert header.isprintable()
    assert header == header.strip()
    assert metadata_options({name: header}) == {name: text}


def test_options_arrive_as_given():
    found = resolve([metadata_options(metadata_of(EVERYTHING))])
    assert found == resolve([in_file(**EVERYTHING)])
    written = {"deadline-hours": "1.5", "tags": '{"team":"é"}', "delimiter": "tab"}
    assert resolve([metadata_options(metadata_of(written))]).tags == {"team": "é"}


@pytest.mark.parametrize("name", GONE)
def test_option_that_is_gone_is_refused_by_name(name):
    header = name.replace("_", "-").title()

    for refused in (
        lambda: metadata_options({header: "x"}),
        lambda: file_options(json.dumps({name: True}).encode()),
    ):
        with pytest.raises(UploadRefused, match=r"It is gone since 0\.9\. ") as refusal:
            refused()
        assert refusal.value.code == "bad_options"
    with pytest.raises(UsageError, match=rf"{name}: It is gone since 0\.9\. "):
        metadata_of({name: "x"})
