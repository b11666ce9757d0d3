"""Faults that the project had once: worlds judge that they are gone, and find some put back."""

from dataclasses import replace

import pytest

from functions.poll import collect, doubts, files, poll
from local.workers_ai import Behaviour, Fault
from shared import job_control
from shared.job_status import counted
from shared.ledger.due import DueEntry, DueItems
from tests.simulation.worlds import answer_laws
from tests.simulation.worlds.judges import Ending, Laws, Promises
from tests.simulation.worlds.plans import Command, Drop, Plan
from tests.simulation.worlds.runs import draw, run
from tests.simulation.worlds.users import MODELS, drop
from tests.simulation.worlds.world import simulated

PLAN = Plan(3, settings=(("MAX_REQUESTS_PER_BATCH", 2),), acts=(Drop(0.0, "a.jsonl", 5, bad=1),))


def laws_broken(violations):
    return {one.law for one in violations}


def test_metrics_that_miss_a_record_are_detected(monkeypatch):
    assert run(PLAN).violations == ()
    monkeypatch.setitem(collect.METRIC_OF_CODE, "invalid_json", "RecordsIn")

    assert "metrics count each record once" in laws_broken(run(PLAN).violations)


def test_failure_after_the_write_that_counts_adds_no_claim(monkeypatch):
    def unguarded(self, job_id, number, _now):
        item = self.get(DueEntry(job_id, number, None).key) or {}
        return (
            (DueEntry(job_id, number, float(item["due_at"]["N"])), 0) if "due_at" in item else None
        )

    monkeypatch.setattr(DueItems, "unclaimed", unguarded)

    plan = draw(6)
    plan = replace(plan, awkward=replace(plan.awkward, throttled=0.06, death=0.0))
    assert "a failure is counted for what waits only" in laws_broken(run(plan).violations)


def seconds_to_end_cancelled_jobs():
    """Seconds that two jobs of 120 batches take to end after their users' commands."""
    settings = {"MAX_REQUESTS_PER_BATCH": 1, "API_CALLS_PER_MINUTE": 4}
    with simulated(1, behaviour=Behaviour(embedder="hash", latency=60.0), **settings) as world:
        laws = Laws(world)
        dropped = [drop(world, f"{number}.jsonl", 120, may_fail=True) for number in range(2)]
        world.run(180)
        cancelled_at = world.kernel.now
        for one in dropped:
            world.command(one.upload.job_id, "cancel")
        world.settle(50 * 86_400)
        Ending(laws).judge(dropped)
        assert laws.violations == []
        return world.kernel.now - cancelled_at


@pytest.mark.slow
def test_cancelled_jobs_end_in_time():
    assert seconds_to_end_cancelled_jobs() < 900 + 5


def test_calls_are_used_while_batches_wait():
    settings = {"MAX_REQUESTS_PER_BATCH": 1, "API_CALLS_PER_MINUTE": 60}
    with simulated(1, behaviour=Behaviour(embedder="hash", latency=60.0), **settings) as world:
        for number in range(10):
            drop(world, f"{number}.jsonl", 25, may_fail=True)
        world.run(120)
        before = world.calls.by_operation["api.call"]
        world.run(120)
        assert world.calls.by_operation["api.call"] - before >= 0.95 * 2 * 60


def is_over_soon_after_run():
    """Whether a job that was paused among its submits, and resumed, is over within an hour."""
    settings = {"MAX_REQUESTS_PER_BATCH": 1, "API_CALLS_PER_MINUTE": 20}
    with simulated(1, behaviour=Behaviour(embedder="hash", latency=2.0), **settings) as world:
        laws = Laws(world)
        dropped = drop(world, "a.jsonl", 40)
        world.run(30)
        world.command(dropped.upload.job_id, "pause")
        world.run(600)
        world.command(dropped.upload.job_id, "run")
        return world.settle(3_600), laws.violations


def test_a_run_that_releases_nothing_leaves_the_job_waiting(monkeypatch):
    assert is_over_soon_after_run() == (True, [])
    real = job_control.controlled
    monkeypatch.setattr(
        job_control, "controlled", lambda *given: replace(real(*given), resumed_at=0.0)
    )

    assert is_over_soon_after_run()[0] is False


def seconds_beside_a_stalled_model():
    """Seconds that 8 batches take at 4 calls a minute while 150 of another model get no answer."""
    settings = {"MAX_REQUESTS_PER_BATCH": 1, "API_CALLS_PER_MINUTE": 4}
    with simulated(1, behaviour=Behaviour(embedder="hash", latency=2.0), **settings) as world:
        promises = Promises(Laws(world))
        world.inject(Fault(kind="stuck", model=MODELS[0], seconds=86_400.0, times=0))
        drop(world, "stalled.jsonl", 150)
        world.run(3_600)
        dropped = drop(world, "b.jsonl", 8, MODELS[1])
        world.run(3_600, lambda: bool(promises.over))
        assert promises.laws.violations == []
        return promises.seconds_of(dropped)


@pytest.mark.slow
def test_stalled_model_starves_no_other():
    assert seconds_beside_a_stalled_model() < 600


def test_partial_answers_taken_as_whole_are_detected(monkeypatch):
    plan = Plan(
        2,
        latency=3_000.0,
        faults=(Fault(kind="partial", times=0),),
        acts=(Drop(0.0, "a.jsonl", 5),),
    )
    assert run(plan).violations == ()
    monkeypatch.setattr(poll, "_waits_for_more", lambda *_: False)
    monkeypatch.setattr(poll, "is_partial", lambda *_: False)

    assert answer_laws.GIVEN_UP in laws_broken(run(plan).violations)


def test_division_of_a_batch_that_runs_is_detected(monkeypatch):
    plan = Plan(
        1,
        latency=600.0,
        faults=(Fault(kind="5001", on="poll", times=4),),
        acts=(Drop(0.0, "a.jsonl", 5),),
    )
    assert run(plan).violations == ()
    failed = doubts.RULES[doubts.Kind.FAILED]._replace(times=2, seconds=0.0)
    monkeypatch.setitem(doubts.RULES, doubts.Kind.FAILED, failed)

    assert answer_laws.RUNS in laws_broken(run(plan).violations)


def test_stored_answer_that_is_not_used_is_detected(monkeypatch):
    """An answer is given once and lacks an item: what it holds is lost with the id."""
    plan = Plan(
        1,
        settings=(("BATCH_DEADLINE_HOURS", 1),),
        api=(("answers_per_batch", 1),),
        faults=(Fault(kind="missing", first=1),),
        acts=(Drop(0.0, "a.jsonl", 5),),
    )
    assert run(plan).violations == ()

    def forgetful(services, job, batch, reply):
        return collect.collect(services, job, replace(batch, partial_replies=()), reply)

    monkeypatch.setattr(doubts, "collect", forgetful)

    assert answer_laws.USED in laws_broken(run(plan).violations)


def test_accepted_batches_without_a_cost_are_detected(monkeypatch):
    acts = (Drop(0.0, "a.jsonl", 5), Command(60.0, "a.jsonl", "cancel now"))
    plan = Plan(1, latency=3_000.0, acts=acts)
    assert run(plan).violations == ()
    nothing = dict.fromkeys(("unmetered_size", "unmetered_records", "uncollected"), 0)
    monkeypatch.setattr(files, "counted", lambda *given: replace(counted(*given), **nothing))

    assert laws_broken(run(plan).violations) == {answer_laws.COSTS, answer_laws.BILLED}


@pytest.mark.parametrize(
    ("ambiguous", "law"), [("resubmit", answer_laws.KNOWN), ("fail", answer_laws.GIVEN_UP)]
)
def test_ids_that_are_believed_lost_in_an_outage_are_detected(monkeypatch, ambiguous, law):
    """Three batches cost nine; and answers were given up that the API still had."""
    unknown = Fault(kind="10404", on="poll", status=404, times=60)
    settings = (("MAX_REQUESTS_PER_BATCH", 2), ("AMBIGUOUS_SUBMIT", ambiguous))
    plan = Plan(1, settings=settings, faults=(unknown,), acts=(Drop(0.0, "a.jsonl", 5),))
    assert run(plan).violations == ()
    unknown_id = doubts.RULES[doubts.Kind.UNKNOWN_ID]._replace(seconds=60.0)
    monkeypatch.setitem(doubts.RULES, doubts.Kind.UNKNOWN_ID, unknown_id)
    monkeypatch.setattr(doubts, "_others_known", lambda *_: True)

    assert law in laws_broken(run(plan).violations)
