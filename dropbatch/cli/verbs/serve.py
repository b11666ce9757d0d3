"""Serve: OpenAI's Batch API in front of the stack."""

from __future__ import annotations

import logging
import os

import click

from dropbatch.cli.context import Context, pass_context
from dropbatch.errors import UsageError

LOOPBACK = "127.0.0.1"
KEY, MODEL = "DROPBATCH_API_KEY", "DROPBATCH_MODEL"


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8_000,
    show_default=True,
    help="0 for a free one.",
)
@click.option("--host", help=f"Listen on this address, not only for this machine. Needs {KEY}.")
@click.option(
    "--model",
    envvar=MODEL,
    show_envvar=True,
    help="For files that name none of Workers AI's, but gpt-….",
)
@pass_context
def serve(context: Context, *, port: int, host: str | None, model: str | None) -> None:
    """Serve OpenAI's Batch API: programs only change OPENAI_BASE_URL.

    The first line printed is the base URL; each request has a line on standard error. If
    DROPBATCH_API_KEY is set, each request must have it.
    """
    key = os.environ.get(KEY, "")
    if host is not None and not key:
        raise UsageError(
            f"--host lets other machines call: set {KEY} to a key that each request must have."
        )
    from dropbatch.core.models import is_model

    if model is not None and not is_model(model):
        raise UsageError(f"--model: {model[:100]!r} is not a model id, such as @cf/baai/bge-m3.")
    try:
        from dropbatch.serve.app import base_url, listen, make_server
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed: pip install 'dropbatch[serve]'."
        ) from error

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("dropbatch.serve").setLevel(logging.INFO)
    server = make_server(context.stack, key, model or "")
    with listen(host or LOOPBACK, port) as listening:
        click.echo(base_url(listening))
        server.run(sockets=[listening])
