"""The command line on a world.

Each command runs in this process, and its pauses move the world's clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

import dropbatch.client.aws
from dropbatch.cli import main as cli
from dropbatch.cli import operate as operators
from dropbatch.client import find as jobs
from dropbatch.client import wait as waiting
from local.template import template
from tests.support.aws import quick_moto
from tests.support.aws.resources import BUCKET, client
from tests.support.journeys.world import World

LOGS = ('{"level"', '{"_aws"')
"""How the functions' log lines and metrics begin."""


@dataclass
class Outcome:
    """How a command ended: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def json(self) -> list[dict[str, Any]]:
        """The objects it printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class CommandLine:
    """Runs commands on a world."""

    world: World
    monkeypatch: Any
    capsys: Any
    stacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What CloudFormation says of each stack."""

    def __post_init__(self) -> None:
        outputs = {
            "BucketName": BUCKET,
            "TableName": "ledger",
            "SubmitFunctionName": "submit",
            "PollFunctionName": "poll",
            **{
                f"{name}Url": url
                for name, url in self.world.queues.items()
                if not name.endswith("-dead")
            },
            **{
                output: url
                for name, url in self.world.queues.items()
                if (output := f"{name.removesuffix('Queue-dead')}DeadLetterQueueUrl")
                in template()["Outputs"]
            },
        }
        self.add_stack("dropbatch", outputs)
        self.monkeypatch.setitem(quick_moto.ANSWERS, "cloudformation", self._describe)
        session = SimpleNamespace(client=lambda service, **_: client(service))
        self.monkeypatch.setattr(dropbatch.client.aws.Clients, "_session", session)
        clock = SimpleNamespace(sleep=self._sleep, monotonic=self.world.now, time=self.world.now)
        for module in (waiting, jobs, operators):
            self.monkeypatch.setattr(module, "time", clock)
        self._ticked = 0.0

    def add_stack(
        self, name: str, outputs: Mapping[str, str], parameters: Mapping[str, str] | None = None
    ) -> None:
        """Let there be another stack."""
        self.stacks[name] = {
            "StackName": name,
            "StackStatus": "CREATE_COMPLETE",
            "CreationTime": datetime.fromtimestamp(self.world.now(), UTC),
            "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()],
            "Parameters": [
                {"ParameterKey": key, "ParameterValue": value}
                for key, value in (parameters or {}).items()
            ],
        }

    def _describe(
        self, _client: Any, operation: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What CloudFormation answers; moto takes seconds to import its own."""
        if (found := self.stacks.get(arguments["StackName"])) is None:
            message = f"Stack with id {arguments['StackName']} does not exist"
            raise ClientError({"Error": {"Code": "ValidationError", "Message": message}}, operation)
        return {"Stacks": [found]}

    def _sleep(self, seconds: float) -> None:
        """Do what AWS does while a command waits."""
        self.world.pass_time(seconds)
        self.world.deliver_all()
        if self.world.now() >= self._ticked + 60:
            self._ticked = self.world.now()
            self.world.tick()

    def run(self, *arguments: str | Path) -> Outcome:
        """Run a command."""
        self.capsys.readouterr()
        self.monkeypatch.setattr("sys.argv", ["dropbatch", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = self.capsys.readouterr()
        printed = [line for line in out.splitlines(keepends=True) if not line.startswith(LOGS)]
        return Outcome(code, "".join(printed), err)

    def settle(self) -> None:
        """Let AWS work until every job is over."""
        self.world.settle()
