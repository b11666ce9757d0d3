"""The command line on a world: each command runs in this process, and its pauses move the world's clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dropbatch.aws
from dropbatch import cli, waiting
from local.template import template
from tests.support.aws.resources import BUCKET, client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.journeys.world import World

LOGS = ('{"level"', '{"_aws"')
"""How the functions' log lines and metrics begin: here the functions share a process with the command."""
TEMPLATE = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}


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

    def __post_init__(self) -> None:
        outputs = {
            "BucketName": BUCKET,
            "TableName": "ledger",
            "SubmitFunctionName": "submit",
            "PollFunctionName": "poll",
            **{f"{name}Url": url for name, url in self.world.queues.items() if not name.endswith("-dead")},
            **{
                output: url
                for name, url in self.world.queues.items()
                if (output := f"{name.removesuffix('Queue-dead')}DeadLetterQueueUrl") in template()["Outputs"]
            },
        }
        described = TEMPLATE | {"Outputs": {name: {"Value": value} for name, value in outputs.items()}}
        client("cloudformation").create_stack(StackName="dropbatch", TemplateBody=json.dumps(described))
        self.monkeypatch.setattr(dropbatch.aws, "session", lambda *_, **__: client)
        self.monkeypatch.setattr(waiting.time, "sleep", self._sleep)  # type: ignore[attr-defined] # The module that waiting imports.
        self._ticked = 0.0

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
