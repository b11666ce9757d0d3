"""Planted markers: prompts, references.

Answers and what the API says stand in bodies of S3 objects and nowhere else.

The token stands in one header. Everything that leaves the functions is searched, at the log level
that tells most, through success and every kind of failure: what they print, every call of AWS with
its arguments (items, messages, events, metadata, keys), bodies of objects apart.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging

import pytest

from local.workers_ai import Fault
from shared.observability import logger
from tests.support.translations import M2M

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
TOKEN = "planted-token-7d1f"
PROMPT = "planted-prompt-2b8e"
REFERENCE = "planted-reference-93c0"
SAID = "planted-words-of-the-api-5a44"
PRIVATE = (PROMPT, REFERENCE, SAID)

KINDS = {
    "token": [Fault(kind="10000", contains="token", message=f"Authentication error: {SAID}")],
    "quota": [Fault(kind="3036", on="submit", contains="quota", message=SAID)],
    "throttled": [Fault(kind="971", contains="throttled", message=SAID)],
    "good": [],
    "refused": [
        Fault(
            kind="5006", on="submit", contains="refused 1", times=0, message=f"bad request: {SAID}"
        )
    ],
    "all-refused": [
        Fault(kind="5006", on="submit", contains="all-refused", times=0, message=f"no: {SAID}")
    ],
    "failed-later": [
        Fault(kind="batch_fails", contains="failed-later 1", times=0, message=f"failed: {SAID}")
    ],
    "poll-refused": [
        Fault(kind="3030", on="poll", contains="poll-refused", message=f"failed: {SAID}")
    ],
    "poll-5xx": [
        Fault(
            kind="error",
            on="poll",
            contains="poll-5xx",
            status=500,
            code=10013,
            times=2,
            message=SAID,
        )
    ],
    "no-such-model": [
        Fault(kind="5007", on="submit", contains="no-such-model", times=0, message=f"No: {SAID}")
    ],
    "item-fails": [
        Fault(kind="item_fails", marker="item-fails 1", code=5001, times=0, message=SAID)
    ],
    "item-waits": [Fault(kind="item_fails", marker="item-waits 1", code=3040, first=1, times=0)],
    "capacity": [Fault(kind="3040", on="submit", contains="capacity", message=SAID)],
    "html": [Fault(kind="html", on="poll", contains="html", times=2)],
    "cut": [Fault(kind="truncated_json", contains="cut", times=2)],
    "reset": [Fault(kind="accept_then_reset", contains="reset")],
    "at-once": [Fault(kind="sync_answer", contains="at-once")],
    "odd": [Fault(kind="contradicting", marker="odd 1"), Fault(kind="foreign", contains="odd")],
    "missing": [Fault(kind="missing", marker="missing 1", times=0)],
}


def records(kind: str) -> bytes:
    """Three good records and three lines that are none, all with markers."""
    good = [
        {
            "text": f"{PROMPT} {kind} {n}",
            "target_lang": "es",
            "external_reference": f"{REFERENCE}-{n}",
        }
        for n in range(3)
    ]
    lines = [json.dumps(one).encode() for one in good]
    return b"\n".join(
        [
            *lines,
            f'{{"text": "{PROMPT}'.encode(),
            f'["{PROMPT}"]'.encode(),
            PROMPT.encode() + b"\xff",
        ]
    )


def forms(marker: str) -> list[str]:
    """A marker as it may look in a log, an item or a state."""
    encoded = [
        base64.b64encode(b"x" * shift + marker.encode()).decode()[4:-4] for shift in range(3)
    ]
    return [marker, marker.encode().hex(), marker.encode()[2:10].hex(), *encoded]


ALONE = ("token", "quota", "throttled")
"""Kinds that hold every job up."""


EVERY_DAY = ("token", "good", "refused", "failed-later", "poll-5xx", "item-fails", "reset")


@pytest.mark.parametrize(
    "kinds", [EVERY_DAY, pytest.param(tuple(KINDS), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_private_text_is_only_in_object_bodies(start, api, capfd, caplog, kinds):
    logger.setLevel("DEBUG")
    world = start()
    calls: list[str] = []

    def note(operation, arguments):
        calls.append(
            f"{operation} "
            f"{ ({name: value for name, value in arguments.items() if name != 'Body'})!r}"
        )

    world.permissions.before = note
    secret = world.secrets.list_secrets()["SecretList"][0]["ARN"]
    world.secrets.put_secret_value(SecretId=secret, SecretString=TOKEN)
    api.switch(tokens=(TOKEN,))
    for kind in kinds:
        for fault in KINDS[kind]:
            api.inject(fault)
        world.upload(f"{kind}.jsonl", records(kind), model=M2M)
        if kind in ALONE:
            world.settle(minutes=48 * 60)
    options = {"template": f"{PROMPT} {{text}}", "defaults": {"max_tokens": 7, PROMPT: PROMPT}}
    world.upload("options/_options.json", json.dumps(options))
    world.upload(
        "options/a.csv",
        f"id,text\n{REFERENCE},{PROMPT}\n{REFERENCE},{PROMPT},ragged\n",
        model=LLAMA,
    )
    world.upload("broken.jsonl.gz", gzip.compress(records("broken") * 50)[:-20], model=M2M)
    world.upload("no-model.jsonl", records("no-model"))
    document = b'{"requests": [' + records("document").splitlines()[0] + b", " + PROMPT.encode()
    world.run("document.json", document, model=M2M, minutes=48 * 60)
    logger.setLevel("INFO")
    printed = "".join(capfd.readouterr()) + "\n".join(
        str(vars(record)) for record in caplog.records
    )

    outside = [*printed.splitlines(), *calls, *map(repr, world.items())]
    found = [
        (form, line)
        for marker in (TOKEN, *PRIVATE)
        for form in forms(marker)
        for line in outside
        if form in line
    ]
    assert found == []
    bodies = {key: world.read(key) for key in world.objects("")}
    assert not any(TOKEN.encode() in body for body in bodies.values())
    for key, body in bodies.items():
        if (
            key.startswith("results/")
            and key.endswith(".json")
            and not key.endswith("/options.json")
        ):
            assert not any(marker.encode() in body for marker in PRIVATE), key
    results = b"".join(
        body
        for key, body in bodies.items()
        if key.startswith("results/") and key.endswith(".jsonl")
    )
    assert all(marker.encode() in results for marker in PRIVATE)
    (pinned,) = [key for key in bodies if "/a.csv/" in key and key.endswith("/options.json")]
    assert PROMPT.encode() in bodies[pinned]
    assert len(world.manifests()) == len(kinds) + 4


@pytest.mark.parametrize("name", ["httpx", "httpcore", "botocore", "boto3", "urllib3"])
def test_log_level_applies_only_to_dropbatch(name):
    """They would print whole bodies at DEBUG; the parameter LogLevel must not reach them."""
    logger.setLevel("DEBUG")
    try:
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)
    finally:
        logger.setLevel("INFO")
