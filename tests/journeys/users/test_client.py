"""The library's client: what can be submitted, the job's id, and what a job says of itself."""

import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from pyarrow import parquet

import dropbatch
from dropbatch.client.download import EXPORTS
from dropbatch.core import names
from local.workers_ai import Fault
from tests.support.journeys.controlled_jobs import minutes
from tests.support.journeys.world import REAL_SUBMIT
from tests.support.translations import M2M

BGE = "@cf/baai/bge-small-en-v1.5"
GOOD = {"text": "Hello", "source_lang": "en", "target_lang": "fr"}


@pytest.fixture
def client(command):
    return dropbatch.Client("dropbatch")


@pytest.mark.parametrize("source", [[GOOD] * 3, (GOOD for _ in range(3)), iter([GOOD] * 3)])
def test_dicts_are_submitted(command, client, source):
    job = client.submit(source, model=M2M, name="reviews/")

    assert job.status() == {"state": "uploaded"}
    assert job.wait() == "completed"
    assert job.path.startswith("reviews/")
    assert job.path.endswith(".jsonl")
    assert job.manifest()["counts"]["succeeded"] == 3


def test_client_works_in_threads(command, client, monkeypatch):
    with monkeypatch.context() as real, ThreadPoolExecutor(4) as threads:
        real.setattr(ThreadPoolExecutor, "submit", REAL_SUBMIT)
        records = [[GOOD] * number for number in range(1, 7)]
        jobs = list(threads.map(lambda given: client.submit(given, model=M2M), records))
    command.settle()

    assert [len(list(job.results())) for job in jobs] == [1, 2, 3, 4, 5, 6]
    assert len({job.id for job in jobs}) == 6


def test_job_is_paused_before_it_exists(command, client, api):
    job = client.submit([GOOD] * 3, model=M2M)
    job.pause()
    minutes(command.world, 3)

    assert api.accepted == []
    assert job.status()["waiting_for"]["code"] == "paused"
    job.resume()
    assert job.wait() == "completed"


@pytest.fixture
def with_one_id(client, monkeypatch):
    """Two uploads, of one record and of two, whose digests begin alike."""
    digits = names.job_id

    def same_beginning(*upload):
        return (
            digits(*upload)[:17] + "aaaaaaaa"
            if len(upload) < 6 or not upload[5]
            else digits(*upload)
        )

    monkeypatch.setattr(names, "job_id", same_beginning)
    first, second = (
        client.submit([GOOD] * number, model=M2M, name=f"{number}.jsonl") for number in (1, 2)
    )
    assert first.id == second.id
    return first, second


def test_job_whose_id_is_taken_is_found(with_one_id, command):
    first, second = with_one_id
    taken = first.id

    assert first.wait(check=True) == second.wait(check=True) == "completed"
    found = [job.resolved() for job in with_one_id]
    ids = {one["job_id"] for one in command.world.manifests().values()}
    assert {one.id for one in found} == ids
    assert hash(second) == hash((taken, second.folder))
    assert [len(list(job.results())) for job in with_one_id] == [1, 2]
    assert [job.manifest()["counts"]["total"] for job in with_one_id] == [1, 2]


@pytest.mark.parametrize("created", [False, True])
def test_interrupted_wait_says_how_to_go_on(command, client, monkeypatch, created):
    job = client.submit([GOOD], model=M2M)
    if created:
        command.world.deliver_all()

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dropbatch.client.wait.time.sleep", interrupt)

    with pytest.raises(
        KeyboardInterrupt,
        match=rf"{job.id} continues\. Wait for it, or cancel it\.",
    ) as error:
        job.wait()
    assert len(error.traceback) <= 4
    assert error.value.__suppress_context__


def test_second_retry_is_warned_of(command, client):
    """It sends, and bills, all failed records again."""
    job = client.submit([{"text": "(refused)"}] * 2, model=BGE, name="a.jsonl")
    job.wait()
    with warnings.catch_warnings(record=True, action="always") as seen:
        first = job.retry()
        first.wait()
        first.retry().wait()
    assert not [one for one in seen if "retried already" in str(one.message)]

    with pytest.warns(UserWarning, match=f"Job {job.id} is retried already, by job "):
        job.retry()
    done = command.run("retry", job.id)
    assert (done.code, done.err.count("is retried already, by job ")) == (0, 1)
    assert "UserWarning" not in done.err


def test_results_are_streamed_in_order(command, client):
    command.world.run(
        "july.csv", 'id,text\na,one\nb,"5"" pipe"\n', model=M2M, defaults='{"target_lang":"fr"}'
    )

    job = client.job("july.csv")
    found = list(job.results())

    assert [(one.id, one.external_reference, one.success) for one in found] == [
        (0, "a", True),
        (1, "b", True),
    ]
    assert job.to_arrow().column("answer").to_pylist() == [one.text for one in found]
    assert job.to_pandas()["success"].tolist() == [True, True]
    assert job.to_polars(columns=False)["external_reference"].to_list() == ["a", "b"]
    assert job.to_pandas()[["id", "text"]].to_numpy().tolist() == [["a", "one"], ["b", '5" pipe']]


def test_exports_have_merged_answers(command, client, api, tmp_path):
    """One record is answered by the retry, another fails again."""
    fault = {"kind": "item_fails", "contains": "fail", "marker": "fail", "code": 5001}
    texts = ["good", "fail once", "fail always"]
    api.inject(Fault(**fault))
    job = client.submit([{"text": one} for one in texts], model=BGE, name="a.jsonl")
    job.wait()
    api.clear_faults()
    api.inject(Fault(**fault | {"contains": "always", "marker": "always"}))
    job.retry().wait()

    kinds = [word for kind in EXPORTS for word in ("--as", kind)]
    done = command.run("get", job.id, "-o", tmp_path, "--merged", *kinds)

    assert done.code == 0, done.err
    assert "1 failed record left out of output.vectorize.ndjson" in done.err
    table = job.to_arrow(merged=True)
    assert [one.success for one in job.results()] == [True, False, False]
    assert (
        [one.success for one in job.results(merged=True)]
        == table["success"].to_pylist()
        == [True, True, False]
    )
    assert table["error_code"].to_pylist() == [None, None, "inference_failed"]
    assert parquet.read_table(tmp_path / "output.parquet") == table
    (export,) = job.download(tmp_path / "one", merged=True, exports="parquet").exports
    assert parquet.read_table(export.path) == table
    vectors = [
        json.loads(line) for line in (tmp_path / "output.vectorize.ndjson").read_text().splitlines()
    ]
    assert [one["id"] for one in vectors] == [f"{job.id}-0", f"{job.id}-1"]
    assert pd.read_csv(tmp_path / "output.as.csv")["success"].tolist() == [True, True, False]
    errors = [
        json.loads(line) for line in (tmp_path / "errors.merged.jsonl").read_text().splitlines()
    ]
    assert [(one["id"], one["error"]["code"]) for one in errors] == [(2, "inference_failed")]
