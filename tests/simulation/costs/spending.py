"""Worlds in which jobs have less money than they need, and the law of what they may spend.

What a request costs follows from the request and the seed alone, so it is known beforehand what a
whole job would cost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from dropbatch.core.cost import Tokens, cost_of
from dropbatch.core.models import find_model
from local.workers_ai import Behaviour
from local.workers_ai.complete import reported
from local.workers_ai.models.catalogue import MODELS
from tests.simulation.worlds.world import simulated

DAY_SECONDS = 86_400


def day_of(now: float) -> str:
    """The UTC day of a time, Unix seconds."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"


if TYPE_CHECKING:
    from local.workers_ai import Fault
    from simulation import Awkward
    from tests.simulation.worlds.world import Upload, World

MOST = Decimal("1.1")
"""Of `max_cost`, what a job may have spent in the end."""
ANSWER_TOKENS = (10, 10_000)
KIMI = "@cf/moonshotai/kimi-k2.6"
SETTLE_SECONDS = 40 * 86_400.0


@dataclass(frozen=True, slots=True)
class Spending:
    """What became of a job with a limit.

    Attributes:
        limit: its `max_cost`, US dollars.
        spent: as its manifest says.
        is_over: whether it ended.
        codes: with which its records ended; None for an answer.
        batches: that the API accepted.
        again: bodies that it accepted again.
        seconds: that it took.
    """

    limit: Decimal
    spent: Decimal
    is_over: bool
    codes: tuple[str | None, ...]
    batches: int
    again: int
    seconds: float

    @property
    def answered(self) -> int:
        """Records that have an answer."""
        return self.codes.count(None)


def request(model: str, number: int) -> dict[str, Any]:
    """A request that a model of the catalogue takes, unlike any other."""
    text = f"record {number}: " + "word " * (number * 7 % 40)
    match MODELS[model].family:
        case "embedding" | "bge_m3" | "text_to_speech":
            return {"text": text}
        case "translation":
            return {"text": text, "target_lang": "es"}
        case "responses":
            return {"input": text}
        case _:
            return {"messages": [{"role": "user", "content": text}]}


def full_cost(model: str, requests: list[dict[str, Any]], behaviour: Behaviour) -> Decimal:
    """What the answers to all requests cost, US dollars."""
    found = reported(MODELS[model], requests, behaviour)
    tokens = Tokens(
        sum(one.prompt_tokens for one in found), sum(one.completion_tokens for one in found)
    )
    cost = cost_of(find_model(model), tokens)
    assert cost is not None, "a model without a price has no limit"
    return cost.amount


def spend(
    seed: int,
    model: str,
    size: int,
    *,
    share: str = "0.5",
    awkward: Awkward | None = None,
    faults: tuple[Fault, ...] = (),
    tokens: tuple[int, int] = ANSWER_TOKENS,
    latency: float = 40.0,
    unreadable: int = 0,
    **settings: object,
) -> Spending:
    """Run a job of `size` records whose `max_cost` is a share of what it would cost.

    So many lines after each are bad.

    Their codes are left out.
    """
    behaviour = Behaviour(
        embedder="hash", latency=latency, latency_kind="lognormal", seed=seed, answer_tokens=tokens
    )
    requests = [request(model, number) for number in range(size)]
    limit = (full_cost(model, requests, behaviour) * Decimal(share)).quantize(Decimal("1e-9"))
    with simulated(seed, awkward, behaviour, **settings) as world:
        world.inject(*faults)
        lines = [line for one in requests for line in (json.dumps(one), *["bad"] * unreadable)]
        upload = world.upload("a.jsonl", lines, **{"model": model, "max-cost": f"{limit:f}"})
        is_over = world.settle(SETTLE_SECONDS)
        return Spending(
            limit,
            spent(world, upload),
            is_over,
            tuple(code for code in codes(world, upload) if code != "invalid_json"),
            *_accepted(world),
            world.kernel.now - world.began,
        )


def spent(world: World, upload: Upload) -> Decimal:
    """What a job cost, as its manifest says."""
    manifest = json.loads(world.result(upload, "manifest.json") or b"{}")
    return Decimal((manifest.get("cost") or {"amount": "0"})["amount"])


def codes(world: World, upload: Upload) -> tuple[str | None, ...]:
    """With which code each record of a job ended; None for an answer."""
    lines = [
        json.loads(line) for line in (world.result(upload, "output.jsonl") or b"").splitlines()
    ]
    return tuple(None if line["success"] else line["error"]["code"] for line in lines)


def _accepted(world: World) -> tuple[int, int]:
    bodies = [one["sha256"] for one in world.api.accepted]
    return len(bodies), len(bodies) - len(set(bodies))


@dataclass(frozen=True, slots=True)
class Days:
    """What the jobs of a stack with a limit for the day cost.

    Attributes:
        limit: its `MaxCostPerDay`, US dollars.
        cost: of what the API accepted, by UTC day.
        reserved: what the days' items still reserve.
        is_over: whether all jobs ended.
        codes: with which all their records ended.
        waits: codes of `waiting_for` that their statuses ever had.
    """

    limit: Decimal
    cost: dict[str, Decimal]
    reserved: int
    is_over: bool
    codes: tuple[str | None, ...]
    waits: frozenset[str]


def spend_days(
    seed: int,
    sizes: tuple[int, ...],
    *,
    share: str = "0.4",
    awkward: Awkward | None = None,
    resumes: bool = False,
) -> Days:
    """Run jobs together of which a day may pay a share.

    If it `resumes`, an operator lifts the first pause.
    """
    behaviour = Behaviour(
        embedder="hash",
        latency=40.0,
        latency_kind="lognormal",
        seed=seed,
        answer_tokens=ANSWER_TOKENS,
    )
    files = [
        [request(KIMI, 10_000 * place + number) for number in range(size)]
        for place, size in enumerate(sizes)
    ]
    limit = sum(full_cost(KIMI, one, behaviour) for one in files) * Decimal(share)
    with simulated(seed, awkward, behaviour, MAX_COST_PER_DAY=f"{limit:.9f}") as world:
        waits, sent = set[str](), dict[str, list[dict[str, Any]]]()
        put = world.s3.put_object

        def watched(**given: Any) -> Any:
            if given["Key"].endswith("status.json") and (
                waiting := json.loads(given["Body"])["waiting_for"]
            ):
                waits.add(waiting["code"])
            if given["Key"].startswith("staging/") and (found := _requests_in(given["Body"])):
                sent.update(found)
            return put(**given)

        world.s3.put_object = watched  # type: ignore[method-assign]
        uploads = [
            world.upload(f"{place}.jsonl", [json.dumps(one) for one in file], model=KIMI)
            for place, file in enumerate(files)
        ]
        if resumes:
            world.run(DAY_SECONDS, lambda: ("CONTROL", "PAUSE") in world.dynamodb.items)
            world.command("stack", "run")
        is_over = world.settle(SETTLE_SECONDS)
        ended = tuple(code for upload in uploads for code in codes(world, upload))
        items = [item for key, item in world.dynamodb.items.items() if key[1].startswith("COST#")]
        reserved = sum(int(item.get("reserved", {"N": "0"})["N"]) for item in items)
        return Days(
            limit, _cost_by_day(world, behaviour, sent), reserved, is_over, ended, frozenset(waits)
        )


def _requests_in(staged: Any) -> dict[str, list[dict[str, Any]]]:
    """The requests of a staged object that begins with a request's body.

    By the SHA-256 of the body.
    """
    if not isinstance(staged, bytes) or not staged.startswith(b'{"requests":'):
        return {}
    text = staged.decode(errors="replace")
    body, end = json.JSONDecoder().raw_decode(text)
    return {sha256(text[:end].encode()).hexdigest(): body["requests"]}


def _cost_by_day(
    world: World, behaviour: Behaviour, sent: dict[str, list[dict[str, Any]]]
) -> dict[str, Decimal]:
    """What the API's answers cost, by the day on which it accepted their batch."""
    days: dict[str, Decimal] = {}
    for one in world.api.accepted:
        day = day_of(one["time"])
        days[day] = days.get(day, Decimal(0)) + full_cost(
            one["model"], sent[one["sha256"]], behaviour
        )
    return days
