"""Step Functions in place of moto's, whose tasks take any report.

Tasks that wait with a token, until they get one.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import botocore.client
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    import pytest

REPORTS = ("SendTaskHeartbeat", "SendTaskSuccess", "SendTaskFailure")
TOKEN = "AQCEAAAAKgAAAAMAAAAAAAAAAd+planted-task-token/4f1c=="


@dataclass
class WaitingExecutions:
    """The tasks that wait, and what they were told.

    Attributes:
        waiting: tokens.
        reports: operation and arguments of each report that was taken or refused, heartbeats apart.
        beats: times of heartbeats, whatever they were answered.
        answers: codes with which the next calls are answered.
    """

    waiting: set[str]
    reports: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    beats: list[float] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    def call(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Answer a call as AWS does; the words of an error may quote the token."""
        token = arguments["taskToken"]
        if operation == "SendTaskHeartbeat":
            self.beats.append(time.time())
        else:
            told = {name: value for name, value in arguments.items() if name != "taskToken"}
            self.reports.append((operation, told))
        code = (
            self.answers.pop(0) if self.answers else "" if token in self.waiting else "TaskTimedOut"
        )
        if code:
            raise ClientError(
                {"Error": {"Code": code, "Message": f"{code} of '{token}'"}}, operation
            )
        if operation != "SendTaskHeartbeat":
            self.waiting.discard(token)
        return {}

    def only_report(self) -> tuple[str, Any]:
        """The only report: its operation, and its output or cause."""
        ((operation, told),) = self.reports
        return operation, json.loads(told.get("output") or told["cause"])


def install(monkeypatch: pytest.MonkeyPatch) -> WaitingExecutions:
    """Put it in place of Step Functions.

    The roles of the functions are judged before, as for all calls.
    """
    made, real = WaitingExecutions({TOKEN}), botocore.client.BaseClient._make_api_call  # type: ignore[attr-defined]

    def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        if operation not in REPORTS:
            return real(client, operation, arguments)
        return made.call(operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    return made
