"""Small jobs of every kind, each run to its end and checked.

Nothing was lost, doubled or left open.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from typing import Any

from dropbatch.core.models import find_model
from dropbatch.core.names import job_id
from dropbatch.core.prices import Tokens, cost_of, estimate_cost
from local.workers_ai import Behaviour, Fault, WorkersAI, expected_result
from tests.support.aws.resources import BUCKET, QUEUES
from tests.support.aws.wire_items import number, submissions
from tests.support.journeys.deaths import Boundaries, Mortal, mortal_world
from tests.support.journeys.world import World

M2M = "@cf/meta/m2m100-1.2b"


def greeting(number: int) -> dict[str, str]:
    return {"text": f"hello {number}", "target_lang": "es", "external_reference": f"r{number}"}


@dataclass(frozen=True)
class Journey:
    """A small job and how each of its records must end.

    Attributes:
        upload: its records; a text is used as a line unchanged.
        codes: how each record ends: None is an answer.
        faults: what the API does to it.
        packed: whether the upload is a gzip file.
        commands: what its user writes under `control/` after the upload, one after another.
        is_failed: whether the job ends `failed`.
        answers_once: whether the API no longer knows an id that it has answered. A lost answer is
            billed again.
    """

    upload: tuple[Any, ...]
    codes: tuple[str | None, ...]
    faults: tuple[Fault, ...] = ()
    packed: bool = False
    commands: tuple[str, ...] = ()
    is_failed: bool = False
    answers_once: bool = False

    @property
    def is_cancelled(self) -> bool:
        """Whether its user cancels it."""
        return bool(self.commands) and self.commands[-1].startswith("cancel")


BAD = {"text": "hello 1 (refused)", "target_lang": "es"}
FOUR = tuple(greeting(number) for number in range(4))
JOURNEYS = {
    "a bad line and a failed item": Journey(
        (*FOUR[:2], "nonsense", *FOUR[2:]),
        (None, None, "invalid_json", None, "inference_failed"),
        (Fault(kind="item_fails", contains="hello 3", marker="hello 3", code=5001, times=0),),
    ),
    "a record refused at submit": Journey((FOUR[0], BAD, FOUR[2]), (None, "rejected", None)),
    "a batch failed after acceptance": Journey(
        FOUR[:3],
        (None, "rejected", None),
        (Fault(kind="batch_fails", contains="hello 1", times=0, code=3030),),
    ),
    "references that the model refuses": Journey(
        FOUR,
        (None,) * 4,
        (
            Fault(
                kind="5006",
                on="submit",
                contains="external_reference",
                times=0,
                message="Additional properties '/external_reference' not allowed",
            ),
        ),
    ),
    "a withdrawn model": Journey(
        FOUR,
        ("rejected",) * 4,
        (Fault(kind="5028", on="submit", times=0),),
        is_failed=True,
    ),
    "items missing, then the id unknown": Journey(
        FOUR[:3],
        (None,) * 3,
        (
            Fault(kind="missing", marker="hello 1", first=1),
            Fault(
                kind="error", on="poll", code=10404, status=404, contains="hello 0", nth=2, times=5
            ),
        ),
        answers_once=True,
    ),
    "an answer in the reply to the submit": Journey(
        FOUR[:2], (None,) * 2, (Fault(kind="sync_answer", times=0),)
    ),
    "an empty upload": Journey((), ()),
    "a compressed upload": Journey(FOUR, (None,) * 4, packed=True),
    "a paused job": Journey(FOUR, (None,) * 4, commands=("pause", "run")),
    "a cancelled job": Journey(FOUR, (None,) * 4, commands=("cancel",)),
    "a job cancelled at once": Journey(FOUR, (None,) * 4, commands=("pause", "cancel now")),
}


@dataclass
class Seen:
    """The result of one run."""

    lost: int
    twice: int
    extra: int


def run(journey: Journey, boundaries: Boundaries) -> Seen:
    """Run one job to its end, and check that it is complete.

    Args:
        journey: the job.
        boundaries: where it is struck.
    """
    api = WorkersAI(Behaviour(embedder="hash", latency=8.0), now=lambda: time.time())  # noqa: PLW0108 - the clock moves
    api.inject(*journey.faults)
    with ExitStack() as opened:
        world = opened.enter_context(mortal_world(api, boundaries, MAX_REQUESTS_PER_BATCH=3))
        lines = [line if isinstance(line, str) else json.dumps(line) for line in journey.upload]
        body = "".join(line + "\n" for line in lines).encode()
        version = world.upload(
            "a.jsonl", gzip.compress(body) if journey.packed else body, model=M2M
        )
        was_over = False
        for word in journey.commands:
            world.deliver("UploadQueue")
            was_over = bool(world.manifests())
            stored = world.s3.head_object(Bucket=BUCKET, Key="inbox/a.jsonl")
            etag, modified = stored["ETag"].strip('"'), stored["LastModified"]
            world.control(job_id(BUCKET, "inbox/a.jsonl", version, etag, modified), word)
            world.deliver("VisitQueue")
            world.tick()
        world.settle(minutes=240)
        before = world.read(f"{world.only_folder()}/manifest.json"), len(api.accepted)
        check_is_quiet(world)
        assert (world.read(f"{world.only_folder()}/manifest.json"), len(api.accepted)) == before
        check_bill(world, api)
        return check_results(world, journey, api, cancelled=journey.is_cancelled and not was_over)


def check_is_quiet(world: Mortal) -> None:
    """Check that nothing is open, that late messages change nothing, and that none is left."""
    # a message is delivered again after its visibility timeout, at most five times
    for _ in range(6):
        world.pass_time(3_600)
        world.deliver_all()
    for name in QUEUES:
        for queue in (name, f"{name}-dead"):
            told = world.sqs.get_queue_attributes(
                QueueUrl=world.queues[queue], AttributeNames=["All"]
            )["Attributes"]
            assert {told[key] for key in told if key.startswith("ApproximateNumber")} == {"0"}, (
                queue
            )
    assert world.open_items() == []
    assert all("ttl" in item for item in world.items() if item["pk"]["S"].startswith("JOB#"))


def check_bill(world: World, api: WorkersAI) -> None:
    """Check that the ledger's submits are those that the API accepted."""
    batches = [item for item in world.items() if item["sk"]["S"].startswith("BATCH#")]
    told = [one["request_id"]["S"] for item in batches for one in submissions(item)]
    uncertain = sum(int(number(item, "unknowable")) for item in batches)
    given_up = sum(int(number(item, "given_up")) for item in batches)
    billed = {one["request_id"] for one in api.accepted}
    named = [request_id for request_id in told if request_id]
    assert len(named) == len(set(named))
    assert set(named) <= billed
    assert len(told) + given_up <= len(billed) <= len(told) + given_up + uncertain
    leaves = {
        item["sk"]["S"].removeprefix("BATCH#"): item
        for item in batches
        if item["state"]["S"] == "done"
    }
    for entry in world.manifest()["batches"]:
        item = leaves.pop(entry["number"])
        accepted = submissions(item)
        assert entry["unknowable_submits"] == number(item, "unknowable")
        assert entry["given_up_ids"] == number(item, "given_up")
        counted = entry["unknowable_submits"] + entry["given_up_ids"]
        assert entry["attempts"] - counted == len(accepted) or not accepted
        assert not accepted or entry["request_id"] == (accepted[-1]["request_id"]["S"] or None)
    assert leaves == {}
    check_sums(world.manifest(), batches)


def check_sums(manifest: dict[str, Any], batches: list[dict[str, Any]]) -> None:
    """Check that the manifest's sums have the submits of all batches."""
    assert manifest["unknowable_submits"] == sum(
        int(number(item, "unknowable")) for item in batches
    )
    divided = [
        (item, len(submissions(item))) for item in batches if item["state"]["S"] == "divided"
    ]
    size = sum(
        int(number(item["records"]["M"], "body_size")) * submits for item, submits in divided
    )
    model = find_model(manifest["model"])
    again = estimate_cost(model, size, 0)
    assert again
    usage = manifest["usage"]
    tokens = cost_of(model, Tokens(usage["prompt_tokens"] or 0, usage["completion_tokens"] or 0))
    assert Decimal(manifest["cost"]["amount"]) >= again.plus(tokens).amount - Decimal("1e-8")
    assert manifest["cost"]["uncollected_batches"] >= sum(
        max(submits - 1, 0) for _, submits in divided
    )


def as_ended_early(
    journey: Journey, lines: list[dict[str, Any]], manifest: dict[str, Any]
) -> Journey:
    """The journey as it ended: each record that was read ends as told, or `cancelled`."""
    codes = tuple(None if line["success"] else line["error"]["code"] for line in lines)
    assert set(codes) <= {*journey.codes, "cancelled"}
    assert len(codes) == len(journey.upload) or not manifest["read_to_end"]
    return replace(journey, upload=journey.upload[: len(codes)], codes=codes)


def check_results(world: World, journey: Journey, api: WorkersAI, *, cancelled: bool) -> Seen:
    """Check that every record has one line with the right answer, in order.

    And that the manifest is correct.

    Args:
        world: after the job's end.
        journey: the job.
        api: the API that it was sent to.
        cancelled: whether its user cancelled it before it was over.
    """
    lines, manifest, folder = world.lines(), world.manifest(), world.only_folder()
    if cancelled or journey.is_failed:
        journey = as_ended_early(journey, lines, manifest)
    ids = Counter(line["id"] for line in lines)
    seen = Seen(
        lost=len(journey.upload) - len(ids),
        twice=len(lines) - len(ids),
        extra=len(api.accepted) - len({one["sha256"] for one in api.accepted}),
    )
    assert [line["id"] for line in lines] == list(range(len(journey.upload)))
    assert (
        tuple(None if line["success"] else line["error"]["code"] for line in lines) == journey.codes
    )
    for line, record in zip(lines, journey.upload, strict=True):
        assert not line["success"] or line["result"] == expected_result(M2M, record)
        assert line["external_reference"] == (
            record.get("external_reference") if isinstance(record, dict) else None
        )
    failed = [number for number, code in enumerate(journey.codes) if code]
    good = len(lines) - len(failed)
    assert manifest["counts"] == {"total": len(lines), "succeeded": good, "failed": len(failed)}
    state = "failed" if journey.is_failed else "cancelled" if cancelled else "completed"
    assert (world.status()["state"], world.status()["counts"]) == (state, manifest["counts"])
    assert manifest["state"] == state
    for file in manifest["files"]:
        content = world.read(f"{folder}/{file['name']}")
        told = (file["bytes"], file["sha256"], file["lines"])
        assert (len(content), hashlib.sha256(content).hexdigest(), content.count(b"\n")) == told
    names = {file["name"] for file in manifest["files"]}
    names |= {"options.json", "manifest.json", "status.json"}
    assert {key.rpartition("/")[2] for key in world.objects(f"{folder}/")} == names
    notices = [event["detail"] for event in world.notices()]
    assert notices
    assert all(
        (one["job_id"], one["counts"]) == (manifest["job_id"], manifest["counts"])
        for one in notices
    )
    if failed:
        assert [error["id"] for error in world.lines("errors.jsonl")] == failed
    return seen


@cache
def recorded(name: str) -> list[str]:
    """The boundaries of a run in which nothing is struck."""
    boundaries = Boundaries()
    seen = run(JOURNEYS[name], boundaries)
    assert seen == Seen(0, 0, 0)
    return boundaries.passed
