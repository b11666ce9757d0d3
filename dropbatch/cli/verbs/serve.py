"""Serve: OpenAI's Batch API in front of the stack."""

from __future__ import annotations

import os

import click

from dropbatch.cli.context import Context, pass_context
from dropbatch.errors import UsageError

LOOPBACK = "127.0.0.1"
KEY = "DROPBATCH_API_KEY"


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=8_000, show_default=True, help="0 for a free one.")
@click.option("--host", help=f"Listen on this address, not only for this machine. Needs {KEY}.")
@pass_context
def serve(context: Context, *, port: int, host: str | None) -> None:
    """Serve OpenAI's Batch API: programs only change OPENAI_BASE_URL.

    The first line printed is the base URL. If DROPBATCH_API_KEY is set, each request must have it.
    """
    key = os.environ.get(KEY, "")
    if host is not None and not key:
        raise UsageError(f"--host lets other machines call: set {KEY} to a key that each request must have.")
    try:
        from dropbatch.openai_api.server import base_url, listen, make_server
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'dropbatch[serve]'.") from error

    server = make_server(context.stack, key)
    with listen(host or LOOPBACK, port) as listening:
        click.echo(base_url(listening))
        server.run(sockets=[listening])
