"""Executions that wait for a job are told the truth, whatever fails.

Each law is broken by a wrong product.
"""

from dataclasses import replace

import pytest

from functions.poll.results import announce
from functions.poll.schedule import visit_job
from local.workers_ai import Fault
from shared import executions
from shared.aws.step_functions import Gone, StepFunctions
from simulation import Awkward
from tests.simulation.worlds import task_laws
from tests.simulation.worlds.plans import LONG, Command, Drop, Plan
from tests.simulation.worlds.runs import run
from tests.simulation.worlds.users import MODELS, awaited, drop
from tests.simulation.worlds.world import simulated

DROPS = (
    Drop(0.0, "a.jsonl", 3, bad=1, waits=LONG),
    Drop(0.0, "b.jsonl", 2, MODELS[1], waits=LONG),
    Drop(1.0, "c.jsonl", 1, waits=20.0, cancels=True),
    Drop(1.0, "d.jsonl", 1),
)
PLAN = Plan(7, latency=100.0, acts=DROPS)
CANCELLED = replace(PLAN, acts=(*DROPS, Command(30.0, "b.jsonl", "cancel")))


@pytest.mark.parametrize(
    "awkward",
    [
        Awkward(),
        Awkward(answered_late=0.5),
        Awkward(throttled=0.05),
        Awkward(death=0.5),
        pytest.param(
            Awkward(answered_late=0.3, throttled=0.02, death=0.3, clock_behind_seconds=25),
            id="everything",
        ),
    ],
)
def test_executions_are_told_the_truth(awkward):
    assert run(replace(CANCELLED, awkward=awkward)).violations == ()


def laws_of(plan):
    return {one.law for one in run(plan).violations}


def test_success_of_a_cancelled_job_is_found(monkeypatch):
    def wrong(self, token, error, cause):
        return self.succeed(token, cause)

    monkeypatch.setattr(StepFunctions, "fail", wrong)

    assert laws_of(CANCELLED) == {task_laws.TRUE}


def test_report_that_is_given_up_is_found(monkeypatch):
    monkeypatch.setattr(StepFunctions, "succeed", lambda *_: Gone("TaskTimedOut"))

    assert laws_of(PLAN) == {task_laws.TOLD}


def test_false_note_is_found(monkeypatch):
    """Of a report that the SDK has sent twice, because its answer was lost."""
    real = StepFunctions._send

    def unaware(self, operation, token, **report):
        gone = real(self, operation, token, **report)
        return gone and replace(gone, sent_again=False)

    monkeypatch.setattr(StepFunctions, "_send", unaware)

    found = [
        laws_of(replace(PLAN, seed=seed, awkward=Awkward(answered_late=0.5)))
        for seed in range(1, 9)
    ]
    assert task_laws.NOTED in set.union(*found)


def test_event_before_the_report_is_found(monkeypatch):
    real = announce.announce

    def early(services, job, manifest, now, *, again):
        services.notices.publish_job_over(
            announce.event_detail(services.store.bucket, job, manifest), now
        )
        real(services, job, manifest, now, again=again)

    monkeypatch.setattr(visit_job, "announce", early)

    assert laws_of(PLAN) == {task_laws.FIRST}


def test_many_heartbeats_are_found(monkeypatch):
    monkeypatch.setattr(executions, "BEAT_SECONDS", 1.0)

    assert laws_of(PLAN) == {task_laws.BEATS}


def test_missing_heartbeats_are_found(monkeypatch):
    monkeypatch.setattr(executions, "BEAT_SECONDS", 900.0)

    assert laws_of(replace(PLAN, latency=2_000.0, acts=DROPS[:1])) == {task_laws.CONTINUES}


def test_jobs_without_token_make_no_call():
    with simulated(3) as world:
        drop(world, "a.jsonl", 3)
        assert world.settle(600)

        assert not [name for name in world.calls.by_operation if name.startswith("states.")]


@pytest.mark.parametrize("lost", [False, True], ids=["dies after it", "its answer is lost"])
def test_report_that_was_taken_is_not_noted_as_gone(lost):
    """The function dies or hears nothing after Step Functions took the report.

    The next one repeats it.
    """
    with simulated(3) as world:
        awaited(world, "a.jsonl", 3)
        real = world.step_functions.send_task_success
        lives = []

        def taken(**given):
            lives.append(world.kernel.life())
            if len(lives) == 1 and lost:
                world.calls.fails_at = world.calls.places + 1
            answer = real(**given)
            if len(lives) == 1:
                world.kernel.kill(lives[0])
            return answer

        world.step_functions.send_task_success = taken
        assert world.settle(3_600)
        (upload,) = world.uploads
        status = world.result(upload, "status.json")

        assert world.step_functions.tasks[upload.key].report[0] == "send_task_success"
        assert len(lives) == 2
        assert len(world.events.put) == 1
        assert b'"notes": []' in status


def test_outage_of_step_functions_delays_its_report_alone():
    """Users have their results; the report comes when Step Functions answers again."""
    with simulated(3) as world:
        awaited(world, "a.jsonl", 3)
        world.step_functions.denied = "InternalServerError"
        world.run(300)
        (upload,) = world.uploads
        assert world.result(upload, "manifest.json")
        assert not world.all_over()
        world.step_functions.denied = ""

        assert world.settle(600)

        assert world.step_functions.tasks[upload.key].report[0] == "send_task_success"


def test_refused_reports_hold_up_no_job():
    with simulated(3) as world:
        awaited(world, "a.jsonl", 3)
        world.inject(Fault(kind="stuck", seconds=100))
        world.step_functions.denied = "AccessDeniedException"
        assert world.settle(1_200)
        (upload,) = world.uploads

        assert b'"execution_refused"' in world.result(upload, "status.json")
        assert len(world.events.put) == 1
        assert world.calls.by_operation["states.send_task_success"] <= 15
