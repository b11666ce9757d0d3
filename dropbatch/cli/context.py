"""What the subcommands share: the stack they work on, common options, output."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import click

from dropbatch.client.printable import printable
from dropbatch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from dropbatch.client.client import Client
    from dropbatch.client.job import Job
    from dropbatch.client.stack import Stack

Command = TypeVar("Command", bound=click.Command)


@dataclass
class Context:
    """The stack that the options name, before or after the verb."""

    stack_name: str = field(default_factory=lambda: os.environ.get("DROPBATCH_STACK") or "dropbatch")
    local: bool = False

    @cached_property
    def client(self) -> Client:
        """The client of the stack, made when it is first needed.

        Raises:
            Error: the stack does not exist, or the caller may not look it up.
        """
        from dropbatch.client.client import Client

        return Client(self.stack_name, local=self.local)

    @property
    def stack(self) -> Stack:
        """The stack."""
        return self.client.stack

    def jobs(self, names: Iterable[str]) -> list[Job]:
        """The jobs with these names.

        Raises:
            Error: one does not exist.
        """
        return [self.client.job(name) for name in names]

    def job(self, name: str) -> Job:
        """The job with this name.

        Raises:
            Error: it does not exist.
        """
        (found,) = self.jobs([name])
        return found


def parse_since(_context: click.Context, _option: click.Parameter, value: str) -> datetime:
    """Parse a time in the past."""
    from dropbatch.client.find_jobs import time_of

    try:
        return time_of(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def stack_options(command: Command) -> Command:
    """Add the options that choose the stack; the group has them, and each verb."""

    def choose(context: click.Context, option: click.Parameter, value: object) -> None:
        if value and option.name:
            setattr(context.ensure_object(Context), option.name, value)

    command.params += [
        click.Option(
            ["--stack", "stack_name"],
            metavar="NAME",
            help="The CloudFormation stack; DROPBATCH_STACK or dropbatch if not given.",
            expose_value=False,
            callback=choose,
        ),
        click.Option(
            ["--local"],
            is_flag=True,
            help="Use the stack that `make up` started on this machine.",
            expose_value=False,
            callback=choose,
        ),
    ]
    return command


_AS_JSON = "dropbatch.as_json"

pass_context = click.make_pass_decorator(Context, ensure=True)
as_json = click.option(
    "--json",
    is_flag=True,
    help="Print JSON, one object a line.",
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({_AS_JSON: value}),
)
strict = click.option("--strict", is_flag=True, help="Exit with 3 if records failed.")


options = click.option(
    "-o", "--option", "options", multiple=True, metavar="K=V", help='An option, for instance tags={"team":"x"}.'
)


def parse_options(pairs: Iterable[str]) -> dict[str, str]:
    """The values of `-o`, by name.

    Raises:
        UsageError: one has no value.
    """
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"-o {pair}: write it as NAME=VALUE.")
        found[name] = value
    return found


def is_json() -> bool:
    """Whether `--json` was given."""
    return bool(click.get_current_context().meta[_AS_JSON])


def emit(value: object, *lines: object) -> None:
    """Print what a command found: with `--json` as one line of JSON, else as these lines."""
    if is_json():
        click.echo(json.dumps(value))
        return
    for line in lines:
        click.echo(printable(str(line)))


def note(message: str) -> None:
    """Print a message on standard error. It may begin with a line end."""
    begins = "\n" if message.startswith("\n") else ""
    click.echo(begins + printable(message[len(begins) :]), err=True)
