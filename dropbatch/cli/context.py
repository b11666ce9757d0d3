"""What the subcommands share: the stack they work on, common options, output."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dropbatch.client import Client
    from dropbatch.job import Job
    from dropbatch.stack import Stack

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Context:
    """The options of the group, and the stack they name."""

    def __init__(self, name: str, *, local: bool) -> None:
        self.name, self.local = name, local
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client of the stack, made when it is first needed.

        Raises:
            Error: the stack does not exist, or the caller may not look it up.
        """
        from dropbatch.client import Client

        if self._client is None:
            self._client = Client(self.name, local=self.local)
        return self._client

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
    """Parse a time in the past: `30m`, `12h`, `7d`, `2w`, or a date; in UTC."""
    try:
        if value[-1:] in UNITS and value[:-1].isdigit():
            return datetime.now(UTC) - timedelta(**{UNITS[value[-1]]: int(value[:-1])})
        return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r}: write 30m, 12h, 7d, 2w, or a date such as 2026-11-21.") from None


pass_context = click.make_pass_decorator(Context)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
strict = click.option("--strict", is_flag=True, help="Exit with 3 if records failed.")


def emit(value: object) -> None:
    """Print one JSON object as one line."""
    click.echo(json.dumps(value, ensure_ascii=False))
