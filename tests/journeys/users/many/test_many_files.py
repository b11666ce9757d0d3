"""`put` of many files."""

import json
import os
import socket
import sys
from collections import Counter
from io import BytesIO
from threading import Thread
from types import SimpleNamespace

import pytest

from dropbatch.cli import put as sending
from dropbatch.cli.files import path_in
from dropbatch.client import upload as uploads
from dropbatch.client import wait as waiting
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M

GOOD = '{"text":"x","target_lang":"es"}\n'
JOBS = 9
"""More than are shown one by one."""


@pytest.fixture
def folder(tmp_path):
    top = tmp_path / "in"
    (top / "july").mkdir(parents=True)
    for number in range(JOBS):
        (top / f"july/{number:02}.jsonl").write_text(GOOD * (number + 1))
    return top


@pytest.fixture
def calls(before_calls):
    """The calls: their operations and arguments."""
    made = []
    before_calls(lambda *call: made.append(call))
    return made


def put(command, *arguments):
    return command.run("put", *arguments, "--model", M2M)


def versions(command):
    return command.world.s3.list_object_versions(Bucket=BUCKET, Prefix="inbox/").get("Versions", [])


def test_pictures_in_a_folder_are_uploaded_first_and_are_no_jobs(command, tmp_path, calls):
    top = tmp_path / "set"
    (top / "images").mkdir(parents=True)
    (top / "images/cat.png").write_bytes(b"\x89PNG\r\n\x1a\ncat")
    (top / "a.csv").write_text("picture\nimages/cat.png\n")
    model = "@cf/meta/llama-4-scout-17b-16e-instruct"

    result = command.run(
        "put", str(top), "--model", model, "--template", "What? {picture:s3}", "--wait"
    )

    assert result.code == 0, result.err
    assert "1 pictures and sounds" in result.err
    keys = [arguments["Key"] for operation, arguments in calls if operation == "PutObject"]
    written = [key for key in keys if key.startswith("inbox/")]
    assert written == ["inbox/set/images/cat.png", "inbox/set/a.csv"]
    (manifest,) = command.world.manifests().values()
    assert manifest["counts"]["succeeded"] == 1


# ── one command ───────────────────────────────────────────────────────────────────────────────────


def test_results_lie_beside_their_names(command, folder, tmp_path):
    out = tmp_path / "out"
    done = put(command, folder, "--get", out)

    assert done.code == 0, done.err
    for number in range(JOBS):
        lines = (out / f"in/july/{number:02}.jsonl/output.jsonl").read_text().splitlines()
        assert len(lines) == number + 1
    rows = done.out.splitlines()[JOBS:]
    assert [row.split()[-1] for row in rows] == [
        f"in/july/{number:02}.jsonl" for number in range(JOBS)
    ]
    assert f"{JOBS} jobs: {JOBS} completed, 45 records" in done.err


def test_same_command_goes_on(command, folder, tmp_path, monkeypatch):
    """Ctrl-C while half of the files are sent, and while the jobs are waited for."""
    out, shown = tmp_path / "out", []

    def interrupt(*_, **__):
        shown.append(1)
        if len(shown) == JOBS // 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sending.Sending, "_show", interrupt)
        first = put(command, folder, "--get", out)
    assert (first.code, "The same command goes on." in first.err) == (130, True)
    with monkeypatch.context() as patched:
        patched.setattr(waiting.time, "sleep", interrupt)
        shown[JOBS // 2 - 1 :] = []
        second = put(command, folder, "--get", out)
    assert (second.code, "The same command goes on." in second.err) == (130, True)

    last = put(command, folder, "--get", out)

    assert last.code == 0
    assert len(versions(command)) == JOBS
    assert len(list(out.rglob("manifest.json"))) == JOBS


def test_changed_file_is_sent_again(command, folder, tmp_path):
    put(command, folder, "--get", tmp_path / "out")
    (folder / "july/03.jsonl").write_text(GOOD.replace('"x"', '"y"') * 4)

    done = put(command, folder, "--get", tmp_path / "out")

    assert (done.code, len(versions(command))) == (0, JOBS + 1)
    manifest = json.loads((tmp_path / "out/in/july/03.jsonl/manifest.json").read_text())
    assert (
        manifest["job_id"]
        == command.run("status", "in/july/03.jsonl", "--json").json()[0]["job_id"]
    )


@pytest.mark.parametrize("many", [False, True])
def test_changed_file_replaces_only_results_as_they_were_downloaded(
    command, folder, tmp_path, many
):
    source, out = folder / "july/03.jsonl", tmp_path / "out"
    place = out / ("in/july/03.jsonl" if many else "")
    put(command, folder if many else source, "--get", out)
    mine = place / "output.parquet"
    mine.write_bytes(b"mine")
    (place / "output.jsonl").write_text("edited")
    source.write_text(GOOD.replace('"x"', '"y"') * 4)

    refused = put(command, folder if many else source, "--get", out)

    assert refused.code == 2
    assert "output.jsonl exists, and is no file of this job" in refused.out + refused.err
    assert (mine.read_bytes(), (place / "output.jsonl").read_text()) == (b"mine", "edited")
    (place / "output.jsonl").unlink()
    assert put(command, folder if many else source, "--get", out).code == 0
    assert len((place / "output.jsonl").read_text().splitlines()) == 4
    assert mine.read_bytes() == b"mine"


@pytest.mark.parametrize("many", [False, True])
def test_results_of_others_are_seen_before_anything_is_sent(command, folder, tmp_path, many):
    place = tmp_path / "out" / ("in/july/03.jsonl" if many else "")
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("{}")

    done = put(command, folder if many else folder / "july/03.jsonl", "--get", tmp_path / "out")

    assert (done.code, versions(command)) == (2, [])
    assert f"{place} has the files of another job." in done.err


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("a/b.jsonl", "a/b.jsonl"),
        ("../b.jsonl", "%%2E%2E/b.jsonl"),
        ("a//./b", "a/%/%%2E/b"),
        ("/etc/x", "%/etc/x"),
        ("a\\..\\b", "a%5C..%5Cb"),
    ],
)
def test_folder_of_results_is_inside(tmp_path, path, place):
    assert path_in(tmp_path, path) == tmp_path / place


# ── what need not be sent ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, uploads.PART_BYTES + 1])
def test_existing_file_is_not_sent(command, tmp_path, size):
    (tmp_path / "a.jsonl").write_bytes((GOOD.encode() * (size // len(GOOD) + 1))[:size])
    first = put(command, tmp_path / "a.jsonl", "--no-check", "--json").json()

    again = put(command, tmp_path / "a.jsonl", "--no-check", "--skip-existing", "--json").json()

    assert again == [first[0] | {"existing": True}]
    assert len(versions(command)) == 1
    assert command.run("put", tmp_path / "a.jsonl", "--no-check", "--skip-existing").code == 0
    assert len(versions(command)) == 2  # Another model.


LONG = GOOD.encode() * 200


@pytest.fixture
def short_check(monkeypatch):
    """The check reads 1,000 bytes, not 12 MB."""
    monkeypatch.setattr("dropbatch.core.read.form.HEAD_BYTES", 1_000)
    monkeypatch.setattr("dropbatch.client.submit.CHUNK_BYTES", 1_000)


@pytest.fixture
def give(monkeypatch, tmp_path):
    """Gives bytes to the next command, in a way that lets them be read once."""

    def give(kind, content):
        if kind == "-":
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(content)))
            sys.stdin.buffer.name = "<stdin>"
            return "-"
        path = tmp_path / "pipe"
        if not path.exists():
            os.mkfifo(path)
        Thread(target=path.write_bytes, args=(content,), daemon=True).start()
        return path

    return give


@pytest.mark.parametrize("more", [b"", GOOD.encode()], ids=["same", "changed"])
@pytest.mark.parametrize("kind", ["-", "pipe"])
@pytest.mark.parametrize("option", ["--skip-existing", "--get"])
def test_what_can_be_read_once_is_sent_whole(
    command, short_check, give, tmp_path, kind, option, more
):
    options = (
        "--name",
        "a.jsonl",
        *((option, tmp_path / "out") if option == "--get" else (option,)),
    )
    put(command, give(kind, LONG), *options)

    done = put(command, give(kind, LONG + more), *options)

    assert (done.code, len(versions(command))) == (0, 2)
    assert command.world.read("inbox/a.jsonl") == LONG + more


def test_many_files_take_few_calls(command, folder, calls):
    put(command, folder)

    made = Counter(operation for operation, _ in calls)
    assert (made["PutObject"], made["CreateMultipartUpload"]) == (JOBS, 0)
    calls.clear()
    put(command, folder, "--skip-existing")
    made = Counter(operation for operation, _ in calls)
    assert (made["ListObjectsV2"], made["HeadObject"], made["PutObject"]) == (1, JOBS, 0)


# ── what is checked first ─────────────────────────────────────────────────────────────────────────


def test_nothing_is_sent_if_one_file_would_be_refused(command, folder):
    (folder / "july/05.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (folder / "README.md").write_text("# Reviews\n")

    done = put(command, folder)

    assert (done.code, versions(command)) == (1, [])
    assert f"{folder}/july/05.png: unknown_format: " in done.err
    assert (
        f"2 of {JOBS + 2} files would be refused, so nothing was sent. --skip-bad leaves them out"
    ) in done.err

    skipped = put(command, folder, "--skip-bad", "--wait")
    assert (skipped.code, len(versions(command))) == (1, JOBS)
    assert f"left out: {folder}/july/05.png: unknown_format: " in skipped.err.splitlines()[-1]


def test_two_files_with_one_name_are_refused(command, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.jsonl").write_text(GOOD)

    done = put(command, tmp_path / "a/data.jsonl", tmp_path / "b/data.jsonl")

    assert (done.code, versions(command)) == (2, [])
    assert (
        f"{tmp_path}/a/data.jsonl and {tmp_path}/b/data.jsonl would both be inbox/data.jsonl"
        in done.err
    )
    assert put(command, tmp_path / "a", tmp_path / "b").code == 0


def test_what_is_no_file_in_folder_is_left_out(command, folder, tmp_path, monkeypatch):
    os.mkfifo(folder / "july/pipe")
    (folder / "nothing").symlink_to("gone")
    (folder / "link").symlink_to(tmp_path)
    (folder / "other.jsonl").symlink_to(folder / "july/00.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(folder)
        listening.bind("socket")
        done = put(command, folder)

    assert (done.code, len(versions(command))) == (0, JOBS + 1)
    assert sorted(done.err.splitlines()) == [
        f"left out: {folder}/july/pipe (no file)",
        f"left out: {folder}/link (a link to a folder)",
        f"left out: {folder}/nothing (no file)",
        f"left out: {folder}/socket (no file)",
    ]


@pytest.mark.parametrize("out", ["in/out", "in"])
def test_results_in_the_folder_are_no_uploads(command, folder, tmp_path, out):
    assert put(command, folder, "--get", tmp_path / out).code == 0
    sent = {one["Key"] for one in versions(command)}

    done = put(command, folder)

    assert (done.code, {one["Key"] for one in versions(command)}) == (0, sent)
    assert done.err.count(" (files of job ") == JOBS


def test_file_that_is_written_anew_while_it_is_sent_leaves_nothing(command, tmp_path, monkeypatch):
    """The upload would have some of both."""
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD * 100)
    real = uploads._parts

    def parts(stream):
        for part in real(stream):
            path.write_text(GOOD.replace("x", "y") * 100)
            os.utime(path, (1, 1))  # However coarse the clock of files is.
            yield part

    monkeypatch.setattr(uploads, "PART_BYTES", 1_000)
    monkeypatch.setattr(uploads, "_parts", parts)
    done = put(command, path)

    assert (done.code, versions(command)) == (1, [])
    assert "was changed while it was read" in done.err
