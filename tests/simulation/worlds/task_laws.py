"""Laws of executions that wait for a job: what they are told, and when.

A task's token is the key of its upload.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.simulation.worlds.world import FINAL

if TYPE_CHECKING:
    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.judges import Laws
    from tests.simulation.worlds.world import Upload

TRUE = "an execution is told what the manifest says, and nothing before it"
FIRST = "an execution is told before the event is sent"
TOLD = "no job ends while an execution waits for it"
NOTED = "an execution that was told is not noted as gone"
BEATS = "a job sends one heartbeat a minute at most"
CONTINUES = "heartbeats of a job that moves on are never ten minutes apart"
MIN_SECONDS, MAX_SECONDS = 55.0, 600.0
"""Seconds between two heartbeats; a call may come some seconds after its claim."""


class TaskLaws:
    """Judges each report when it is taken, and each job when it ends."""

    def __init__(self, laws: Laws) -> None:
        """Watch the world of these laws."""
        self.laws, self.world = laws, laws.world
        self.tasks = self.world.step_functions.tasks
        self.world.step_functions.watchers.append(self._judge_report)
        self.world.dynamodb.watchers.append(self._judge_end)

    def _judge_report(self, token: str, operation: str, told: dict[str, str]) -> None:
        upload = next(one for one in self.world.uploads if one.key == token)
        if operation == "send_task_heartbeat":
            self._judge_beat(token)
            return
        manifest = self.world.result(upload, "manifest.json")
        if manifest is None or not _agree(json.loads(manifest), operation, told):
            self.laws.broken(TRUE, f"{token}: {operation} {told}")
        if self._is_published(upload):
            self.laws.broken(FIRST, f"{token}: {operation}")

    def _judge_beat(self, token: str) -> None:
        """Judge where nobody is late: a call that is held up may come just before the next one."""
        seconds = self.world.kernel.now - self.tasks[token].beats[-1]
        is_punctual = not (
            self.world.calls.held_up or self.world.calls.awkward.clock_behind_seconds
        )
        if is_punctual and len(self.tasks[token].beats) > 1 and seconds < MIN_SECONDS:
            self.laws.broken(BEATS, f"{token}: after {seconds:.1f} s")

    def _is_published(self, upload: Upload) -> bool:
        return any(
            json.loads(one["Detail"])["job_id"] == upload.job_id for one in self.world.events.put
        )

    def _judge_end(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        if (
            key[1] != "META"
            or new is None
            or new["state"]["S"] not in FINAL
            or (old and old["state"] == new["state"])
        ):
            return
        upload = next(one for one in self.world.uploads if f"JOB#{one.job_id}" == key[0])
        task = self.tasks.get(upload.key)
        if task and task.is_waiting(self.world.kernel.now) and not self.world.step_functions.denied:
            self.laws.broken(TOLD, upload.key)
        status = self.world.result(upload, "status.json") or b""
        if task and task.report and b'"execution_gone"' in status:
            self.laws.broken(NOTED, upload.key)
        if "task_token" in new:
            self.laws.broken("the token of a job that is over is deleted", upload.key)

    def judge_calm(self) -> None:
        """Judge that no execution waited long for a heartbeat.

        For worlds in which nothing goes wrong.
        """
        for token, task in self.tasks.items():
            longest = max(
                (after - at for at, after in zip(task.beats, task.beats[1:], strict=False)),
                default=0.0,
            )
            if longest > MAX_SECONDS:
                self.laws.broken(CONTINUES, f"{token}: {longest:.0f} s")


def _agree(manifest: dict[str, object], operation: str, told: dict[str, str]) -> bool:
    """Whether a report is what a manifest says."""
    if manifest["state"] == "completed":
        names = ("job_id", "state", "counts", "usage", "cost")
        output = json.loads(told.get("output", "{}"))
        return operation == "send_task_success" and all(
            output.get(name) == manifest[name] for name in names
        )
    cause, error = json.loads(told.get("cause", "{}")), manifest["error"] or {"code": "cancelled"}
    is_right = cause.get("state") == manifest["state"] and cause.get("counts") == manifest["counts"]
    return operation == "send_task_failure" and is_right and told["error"] == error["code"]  # type: ignore[index]
