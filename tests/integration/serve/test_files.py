"""Files: uploaded, listed, read, deleted; what is no upload leaves nothing."""

import socket
import time
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from dropbatch.serve import files as module
from dropbatch.serve.files import BLOCK_BYTES
from tests.support.aws.resources import BUCKET

LINE = b'{"custom_id":"a"}\n'
CUT_OFF = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{}\n'
)
LARGE = bytes(range(256)) * ((8 * BLOCK_BYTES + BLOCK_BYTES // 2) // 256)


def upload(ai, content=LINE, name="july.jsonl", **more):
    return ai.files.create(file=(name, content), purpose="batch", **more)


def kept(s3):
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def test_file_is_shown_as_it_was_uploaded(ai):
    made = upload(ai, name="/home/me/Größe.jsonl")

    assert made == ai.files.retrieve(made.id)
    assert (made.bytes, made.filename, made.purpose, made.status) == (
        len(LINE),
        "Größe.jsonl",
        "batch",
        "processed",
    )
    assert abs(made.created_at - time.time()) < 60
    assert made.expires_at == made.created_at + 30 * 86_400
    assert ai.files.content(made.id).content == LINE


def test_files_are_listed_newest_first(ai, url):
    made = []
    for _ in range(5):
        made.append(upload(ai).id)
        time.sleep(0.002)

    assert [file.id for file in ai.files.list(limit=2)] == made[::-1]
    page = ai.files.list(limit=2, after=made[3])
    assert ([file.id for file in page.data], page.has_more) == ([made[2], made[1]], True)
    ai.files.delete(made[2])
    assert [file.id for file in ai.files.list(limit=2, after=made[2])] == [made[1], made[0]]
    assert ai.files.list(purpose="fine-tune").data == []
    answer = httpx.get(f"{url}/files?order=asc")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "order")


@pytest.mark.parametrize(
    "its_id",
    ["file-x", "file-" + "0" * 27, "batches%2Fx.json", "..%2Finbox%2Fa.jsonl", "file-output-x"],
)
def test_unknown_id_reaches_no_object(url, s3, its_id):
    s3.put_object(Bucket=BUCKET, Key="inbox/a.jsonl", Body=b"x")
    for call in (httpx.get, httpx.delete):
        answer = call(f"{url}/files/{its_id}")
        assert answer.status_code == 404
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert httpx.get(f"{url}/files/{its_id}/content").status_code == 404


def test_file_expires_when_it_was_asked_to(ai, monkeypatch):
    made = upload(ai, expires_after={"anchor": "created_at", "seconds": 3_600})
    assert made.expires_at == made.created_at + 3_600
    assert ai.files.list().data == [made]

    monkeypatch.setattr(module, "time", type("Later", (), {"time": lambda: made.expires_at + 1}))
    with pytest.raises(openai.NotFoundError):
        ai.files.retrieve(made.id)
    assert ai.files.list().data == []


def test_expired_files_end_no_page(ai, monkeypatch):
    """A client takes a page without entries for the last one."""
    lasting = [upload(ai).id for _ in range(2)]
    time.sleep(0.002)
    made = [upload(ai, expires_after={"anchor": "created_at", "seconds": 3_600}) for _ in range(4)]
    monkeypatch.setattr(
        module, "time", type("Later", (), {"time": lambda: made[-1].expires_at + 1})
    )
    time.sleep(0.002)

    assert {file.id for file in ai.files.list(limit=1)} == set(lasting)
    assert not ai.files.list(limit=2).has_more


def form(files=LINE, **data):
    return {"data": data, "files": files if isinstance(files, list) else {"file": files}}


def raw(content):
    return {"content": content, "headers": {"content-type": "multipart/form-data; boundary=b"}}


EXPIRES = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600" + "0" * 500}


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (form(purpose="fine-tune"), "purpose"),
        (form(LARGE, purpose="assistants"), "purpose"),
        (form(), "purpose"),
        (form([("other", LINE)], purpose="batch"), "file"),
        (form(b"", purpose="batch"), "file"),
        (form([("file", LINE), ("file", LINE)], purpose="batch"), "file"),
        (form(purpose="batch", x="y" * 5_000), None),
        (form(purpose="batch", **{"expires_after[seconds]": "5"}), "expires_after"),
        (form(purpose="batch", **EXPIRES), "expires_after"),
        (form(**{f"f{n}": "" for n in range(30)}), None),
        ({"json": {"purpose": "batch"}}, None),
        (raw(b""), None),
        (raw(CUT_OFF), None),
        (raw(b"nothing of the kind"), None),
        (raw(b"--b\r\n" + b"a" * 9_000), None),
    ],
)
def test_what_is_no_upload_leaves_nothing(url, s3, sent, param):
    answer = httpx.post(f"{url}/files", **sent)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert kept(s3) == []


def test_too_large_body_is_refused_before_it_is_read(url, s3):
    host, port = urlsplit(url).netloc.split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            b"multipart/form-data; boundary=b\r\n"
            b"Content-Length: 20000000000\r\n\r\n"
        )
        assert line.recv(1_000).startswith(b"HTTP/1.1 413 ")
    assert kept(s3) == []


def test_upload_that_breaks_off_leaves_no_file(url, s3, caplog):
    caplog.set_level("INFO", "dropbatch.serve")
    host, port = urlsplit(url).netloc.split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            b"multipart/form-data; boundary=b\r\n"
            b"Content-Length: 30000000\r\n\r\n" + CUT_OFF + LARGE
        )
    until = time.monotonic() + 20
    while "POST /v1/files" not in caplog.text and time.monotonic() < until:
        time.sleep(0.02)
    assert kept(s3) == []
