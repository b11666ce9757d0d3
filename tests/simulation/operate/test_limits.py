"""Jobs with a limit do not spend more, whatever happens, with answers of 10 to 10,000 tokens."""

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
from random import Random

import pytest

from dropbatch.core.models import catalog
from local.workers_ai import Fault
from simulation import Awkward
from tests.simulation.worlds.plans import DOUBTS, FAULTS

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


SMALL = "@cf/baai/bge-small-en-v1.5"
PRICED = [model.id for model in catalog().models if model.batch and model.input_price]


def judge(found, least="0"):
    """Judge that a job ended within its limit, and that it used its limit."""
    assert found.is_over
    assert found.spent <= found.limit * MOST
    assert found.spent >= found.limit * Decimal(least)
    assert set(found.codes) <= {None, "cost_limit"}


@pytest.mark.parametrize("model", [KIMI, SMALL])
def test_job_spends_its_limit_and_no_more(model):
    judge(spend(1, model, 500), least="0.6")


@pytest.mark.parametrize("unreadable", [0, 9])
def test_small_batches_use_most_of_limit(unreadable):
    """However many lines cannot be sent."""
    judge(
        spend(1, KIMI, 300, unreadable=unreadable, MAX_REQUESTS_PER_BATCH=10 * (unreadable + 1)),
        least="0.8",
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_lines_that_cannot_be_sent_take_no_room(seed):
    awkward = Awkward.drawn(Random(seed))
    judge(
        spend(seed, KIMI, 300, unreadable=9, awkward=awkward, MAX_REQUESTS_PER_BATCH=100),
        least="0.7",
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", PRICED)
@pytest.mark.parametrize("size", [60, 1_000])
def test_no_model_exceeds_limit(model, size):
    for seed in range(4):
        judge(spend(seed, model, size))


@pytest.mark.parametrize("seed", range(3))
def test_limit_holds_whatever_happens(seed):
    """Deaths before and after each call, messages that come twice, late answers."""
    judge(spend(seed, KIMI, 100, awkward=Awkward.drawn(Random(seed)), MAX_REQUESTS_PER_BATCH=20))


@pytest.mark.slow
def test_limit_holds_whatever_api_does():
    for seed in range(20):
        random = Random(seed)
        faults = tuple(random.sample(FAULTS + DOUBTS, 3))
        found = spend(
            seed, KIMI, 300, awkward=Awkward.drawn(random), faults=faults, MAX_REQUESTS_PER_BATCH=20
        )
        assert found.is_over
        assert found.spent <= found.limit * (MOST + Decimal(found.again) / found.batches)


def test_first_batch_is_known_before_second_is_sent():
    """Even if each answer is as long as it may be."""
    judge(spend(1, KIMI, 100, tokens=(10_000, 10_000)), least="0.4")


@pytest.mark.parametrize("model", [KIMI, SMALL])
def test_room_is_used_as_soon_as_an_answer_gives_it(model):
    """Answers come after two seconds."""
    found = spend(1, model, 1_200, share="0.8", latency=2.0)

    judge(found, least="0.6")
    assert found.seconds < 40


@pytest.mark.parametrize("share", ["0.0001", "20"])
def test_limit_far_from_cost_keeps_nobody_waiting(share):
    """With one that nothing fits, the job ends at once."""
    found = spend(1, KIMI, 100, share=share)

    assert found.codes.count("cost_limit") in {0, 100}
    assert found.seconds < 180


LIMITS = {
    "one": {"max_tokens": 16},
    "two": {"max_tokens": 16, "max_completion_tokens": 16},
    "two that differ": {"max_tokens": 4_000, "max_completion_tokens": 400},
    "zero": {"max_tokens": 0},
    "ten thousand": {"max_tokens": 10_000},
    "nested": {"chat_template_kwargs": {"max_tokens": 16}},
    "none": {},
}


def mixed(seed):
    """Records that name limits of any kind."""
    return tuple(Random(seed).choices(tuple(LIMITS.values()), k=40))


@pytest.mark.parametrize("share", [pytest.param("0.05", marks=pytest.mark.slow), "0.2"])
@pytest.mark.parametrize("name", LIMITS)
def test_each_record_is_estimated_by_what_itself_names(name, share):
    """Every second one names a limit, the first one too; the others none."""
    found = spend(2, KIMI, 400, share=share, named=(LIMITS[name], {}))

    judge(found, least="0.25")


@pytest.mark.parametrize("seed", range(3))
def test_mixed_limits_are_kept_whatever_happens(seed):
    awkward, share = Awkward.drawn(Random(seed)), str(Random(seed).choice((0.2, 0.5, 0.8)))
    judge(spend(seed, KIMI, 300, share=share, awkward=awkward, named=mixed(seed)), least="0.2")


def test_pieces_of_divided_batches_use_the_limit_and_keep_it():
    """Each batch has a record that the API refuses."""
    bad = Fault(kind="5006", on="submit", contains='"record 5', times=0)
    found = spend(3, KIMI, 300, faults=(bad,), MAX_REQUESTS_PER_BATCH=20)

    assert found.codes.count("rejected") == 11
    assert found.limit * Decimal("0.6") <= found.spent <= found.limit * MOST


@pytest.mark.parametrize("model", [pytest.param(KIMI, marks=pytest.mark.slow), SMALL])
def test_what_is_billed_and_not_collected_counts(model):
    """Every second id is forgotten: nobody sees its answers, and they are billed."""
    lost = tuple(Fault(kind="forgotten", nth=nth) for nth in range(2, 20, 2))
    settings = {"MAX_REQUESTS_PER_BATCH": 20, "BATCH_DEADLINE_HOURS": 1, "AMBIGUOUS_SUBMIT": "fail"}
    found = spend(4, model, 400, faults=lost, tokens=(200, 300), **settings)

    assert found.is_over
    assert found.codes.count("expired") > 0
    assert found.limit * Decimal("0.6") <= found.spent <= found.limit * MOST
    assert found.told >= found.spent * Decimal("0.9")
