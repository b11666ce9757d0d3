"""A job of each format dies at each write in turn.

Its files are those of a job that nothing happened to.
"""

from __future__ import annotations

import json
import random
import re
import time
from functools import cache

import pytest

from local.workers_ai import Behaviour, Fault, WorkersAI
from tests.support.journeys.deaths import WRITES, Boundaries, Mode, mortal_world, strike_each
from tests.support.journeys.scenarios import check_bill, check_is_quiet
from tests.support.translations import M2M

BGE = "@cf/baai/bge-small-en-v1.5"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
MODES: tuple[Mode, ...] = ("before", "after", "unanswered")
SHARES = 2


def chat(number, **more):
    body = {"messages": [{"role": "user", "content": f"hello {number}"}], **more}
    return json.dumps({"custom_id": f"c{number}", "url": "/v1/chat/completions", "body": body})


UPLOADS = {
    "openai": ("a.jsonl", [chat(0), chat(1, n=2), "nonsense", chat(2), chat(3)], LLAMA, {}),
    "bedrock": (
        "a.jsonl",
        [
            json.dumps({"recordId": f"r{n}", "modelInput": {"inputText": f"hello {n}"}})
            for n in range(4)
        ],
        BGE,
        {},
    ),
    "csv": (
        "a.csv",
        ["id,text,wide", *(f'{n},"hello\n{n}",w' for n in range(4)), "5,ragged"],
        BGE,
        {},
    ),
    "tsv": (
        "a.tsv",
        ["id\ttext", *(f"{n}\thello {n}" for n in range(4))],
        BGE,
        {"template": "hello: {text}"},
    ),
    "text": ("a.txt", ["hello 0", "", "hello 1", "hello 2", "hello 3"], BGE, {}),
    "native": (
        "a.jsonl",
        [json.dumps({"text": f"hello {n}"}) for n in range(4)],
        M2M,
        {"defaults": '{"target_lang":"es"}', "max-cost": "5", "deadline-hours": "20"},
    ),
}
"""Path, lines, model and options of an upload of each format."""


def run(name: str, boundaries: Boundaries) -> dict[str, str]:
    """One job to its end: its result files, without what names the run."""
    path, lines, model, options = UPLOADS[name]
    api = WorkersAI(Behaviour(embedder="hash", latency=8.0), now=lambda: time.time())  # noqa: PLW0108 - the clock moves
    api.inject(Fault(kind="batch_fails", contains="hello 1", times=0, code=3030))
    with mortal_world(api, boundaries, MAX_REQUESTS_PER_BATCH=3) as world:
        world.run(path, "\n".join(lines), model=model, **options, minutes=240)
        check_is_quiet(world)
        check_bill(world, api)
        manifest, folder = world.manifest(), world.only_folder()
        assert (manifest["format"], manifest["state"]) == (name, "completed")
        files = {
            file["name"]: world.read(f"{folder}/{file['name']}").decode()
            for file in manifest["files"]
        }
    told = [
        manifest["job_id"],
        *(one["request_id"] for one in manifest["batches"] if one["request_id"]),
    ]
    return {
        name: re.sub("|".join([*told, r'"created(_at)?":[0-9.]+']), "", text)
        for name, text in files.items()
    }


@cache
def recorded(name: str) -> tuple[list[int], dict[str, str]]:
    """The writes among the boundaries of a run in which nothing is struck, and its files."""
    boundaries = Boundaries()
    files = run(name, boundaries)
    return [number for number, call in enumerate(boundaries.passed, 1) if call in WRITES], files


def strike_all(name: str, chosen: list[tuple[int, Mode]]) -> None:
    """One run for each of these strikes, each with the files of a run without."""
    wanted = recorded(name)[1]

    def run_once(boundaries: Boundaries) -> None:
        found = run(name, boundaries)
        for file, text in wanted.items():
            assert found[file] == text, file

    strike_each(chosen, run_once)


@pytest.mark.parametrize(
    "name", ["csv", *(pytest.param(one, marks=pytest.mark.slow) for one in UPLOADS if one != "csv")]
)
def test_nothing_is_lost_at_one_write(name):
    generator = random.Random(f"{name}3")
    strike_all(name, [(generator.choice(recorded(name)[0]), generator.choice(MODES))])


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("mode", ["after", "unanswered"])
@pytest.mark.parametrize("name", UPLOADS)
def test_nothing_is_lost_at_any_write(name, mode, share):
    """A death before a write is one after the write before it."""
    strike_all(name, [(number, mode) for number in recorded(name)[0][share::SHARES]])
