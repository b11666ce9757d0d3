"""Worlds in which jobs have less money than they need, and the law of what they may spend.

What a request costs follows from the request and the seed alone, so it is known beforehand what a
whole job would cost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from local.workers_ai import Behaviour
from local.workers_ai.models.catalogue import MODELS
from tests.simulation.worlds.world import simulated

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
        spent: what the API billed, or what the manifest says if that is more.
        told: what the manifest says.
        is_over: whether it ended.
        codes: with which its records ended; None for an answer.
        batches: that the API accepted.
        again: bodies that it accepted again.
        seconds: that it took.
    """

    limit: Decimal
    spent: Decimal
    told: Decimal
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
    named: tuple[dict[str, Any], ...] = ({},),
    **settings: object,
) -> Spending:
    """Run a job of `size` records whose `max_cost` is a share of what it would cost.

    So many lines after each are bad; their codes are left out. `named` are more members of the
    records, in turn.
    """
    behaviour = Behaviour(
        embedder="hash", latency=latency, latency_kind="lognormal", seed=seed, answer_tokens=tokens
    )
    requests = [request(model, number) | named[number % len(named)] for number in range(size)]
    with simulated(seed, awkward, behaviour, **settings) as world:
        world.sent["all"] = requests
        whole = world.bill_of({"sha256": "all", "model": model})
        limit = (whole * Decimal(share)).quantize(Decimal("1e-9"))
        world.inject(*faults)
        lines = [line for one in requests for line in (json.dumps(one), *["bad"] * unreadable)]
        upload = world.upload("a.jsonl", lines, **{"model": model, "max-cost": f"{limit:f}"})
        is_over = world.settle(SETTLE_SECONDS)
        return Spending(
            limit,
            max(told := spent(world, upload), sum(map(world.bill_of, world.billed), Decimal())),
            told,
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
