"""Whatever is sent, the server answers in OpenAI's shapes, and never with a fault of its own."""

import json
import string

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dropbatch.serve.batches import BATCH_ENDPOINTS
from dropbatch.serve.objects import new_id

ids = st.one_of(
    st.text(max_size=40),
    st.text(string.hexdigits, max_size=30).map("file-{}".format),
    st.sampled_from(["file-", "batch_", "file-output-", "file-error-"]).map(
        lambda kind: kind + new_id(0)
    ),
)
methods = st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"])
places = st.sampled_from(
    ["/files", "/files/{}", "/files/{}/content", "/batches", "/batches/{}", "/batches/{}/cancel"]
)
pages = st.dictionaries(
    st.sampled_from(["limit", "after", "order", "purpose"]),
    ids | st.integers().map(str),
    max_size=3,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20), st.lists, max_leaves=5
)
batches = st.fixed_dictionaries(
    {"input_file_id": ids | values},
    optional={
        "endpoint": st.sampled_from(BATCH_ENDPOINTS) | values,
        "completion_window": st.sampled_from(["24h", "1h"])
        | st.text("0123456789h", max_size=6)
        | values,
        "metadata": st.dictionaries(
            st.text(max_size=70), values | st.text(max_size=600), max_size=18
        )
        | values,
        "output_expires_after": values,
    },
)
bodies = st.one_of(
    st.binary(max_size=2_000),
    (batches | values).map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 10_000),
)
types = st.sampled_from(
    [
        "application/json",
        "multipart/form-data; boundary=b",
        "multipart/form-data",
        'multipart/form-data; boundary="',
        "x/y",
    ]
)


@pytest.fixture
def line(url):
    with httpx.Client(base_url=url) as line:
        yield line


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(methods, places, ids, pages, bodies, types)
def test_every_request_has_an_answer_in_shape(line, method, place, its_id, page, body, kind):
    path = place.format(httpx.URL("http://x", params={"": its_id}).query.decode()[1:])
    answer = line.request(method, path, params=page, content=body, headers={"content-type": kind})

    assert answer.status_code in {200, 400, 404, 409, 413}
    if method == "HEAD":
        return
    found = answer.json()
    if answer.status_code == 200:
        assert found["object"] == "list"
    else:
        assert set(found) == {"error"}
        assert set(found["error"]) == {"message", "type", "param", "code"}
        assert found["error"]["message"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=3))
def test_damaged_form_makes_no_file(line, junk, cuts):
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{}\n\r\n--b--\r\n'
    )
    for cut in cuts:
        form = form[:cut] + junk + form[cut + len(junk) :]
    answer = line.post(
        "/files", content=form, headers={"content-type": "multipart/form-data; boundary=b"}
    )

    assert answer.status_code in {200, 400}
    if answer.status_code == 200:
        assert line.get(f"/files/{answer.json()['id']}/content").content in form
