"""For operators: `redrive`, `tail`, `events`, `doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dropbatch.cli.context import Context, as_json, emit, parse_since, pass_context
from dropbatch.cli.exits import Exit
from dropbatch.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

RUNTIME_FIELDS = frozenset(
    {
        "cold_start",
        "exception_name",
        "function_arn",
        "function_memory_size",
        "function_name",
        "function_request_id",
        "level",
        "location",
        "message",
        "service",
        "stack_trace",
        "timestamp",
        "xray_trace_id",
    }
)
"""Fields of a log line that show where it comes from, not what happened; only `--json` prints them."""


@click.command()
@as_json
@pass_context
def redrive(context: Context) -> None:
    """Send messages of the dead-letter queues back to their queues."""
    from dropbatch.cli.operators import redrive as redrive_queues

    for queue, moved in redrive_queues(context.stack).items():
        emit({"queue": queue, "moved": moved}, f"{queue:<8}{moved:>6,} messages")


@click.command()
@click.argument("job", required=False)
@click.option("--since", callback=parse_since, default="10m", show_default=True, help="30m, 12h, 7d, or a date.")
@click.option("--no-follow", is_flag=True, help="Print what has been logged so far, then exit.")
@as_json
@pass_context
def tail(context: Context, *, job: str | None, since: datetime, no_follow: bool) -> None:
    """Follow the functions' logs, of one job or of all."""
    from dropbatch.cli.operators import log_lines

    job_id = "" if job is None else context.job(job).id
    for line in log_lines(context.stack, job_id, since.timestamp(), follow=not no_follow):
        emit(line, *([_log_line(line)] if "message" in line else []))


def _log_line(line: dict[str, Any]) -> str:
    shown = {name: value for name, value in line.items() if name not in RUNTIME_FIELDS and value not in (None, "")}
    if "exception" in shown:
        shown["exception"] = str(shown["exception"]).strip().rpartition("\n")[2]
    fields = " ".join(f"{name}={value}" for name, value in shown.items())
    return f"{line.get('timestamp', '')}  {line.get('level', ''):<7}  {line['message']}  {fields}".rstrip()


@click.command()
@click.argument("word", required=False, type=click.Choice(["on", "off"]), metavar="[on|off]")
@as_json
@pass_context
def events(context: Context, *, word: Literal["on", "off"] | None) -> None:
    """Show what is known of Cloudflare's completion events; switch them on, or off and remove their queue."""
    from dropbatch.client.events import look, switch

    if word is not None:
        switch(context.stack, word)
        means = "the next submit makes what is missing" if word == "on" else "the queue at Cloudflare is being removed"
        emit({"events": word}, f"{word}: {means}")
        return
    found = look(context.stack)
    models = [f"{name}: {problem or 'its events come'}" for name, problem in found.models.items()]
    emit(asdict(found), f"{found.state}: {found.message}", *models)


LEVELS = {"ok": "ok", "note": "note", "bad": "BAD", "unknown": "?"}


@click.command()
@click.option("--probe", is_flag=True, help="Ask the real API what its documentation leaves open. Needs no AWS.")
@click.option("--model", default="@cf/baai/bge-small-en-v1.5", show_default=True, help="For --probe.")
@click.option("--gateway", metavar="ID", help="For --probe: an AI Gateway of the account to try too.")
@click.option(
    "--worker",
    metavar="URL",
    help="For --probe: a Worker of Transport=worker, to measure how many calls its AI binding takes; its secret in "
    "DROPBATCH_WORKER_SECRET.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("probe.json"),
    show_default=True,
    metavar="FILE",
    help="For --probe: where to save the answers.",
)
@click.option("--yes", is_flag=True, help="For --probe: do not ask first.")
@as_json
@pass_context
def doctor(
    context: Context, *, probe: bool, model: str, gateway: str | None, worker: str | None, output: Path, yes: bool
) -> None:
    """Find what is wrong, and say what to do."""
    if probe:
        _probe(model, gateway, worker, output, yes=yes)
        return
    from dropbatch.cli.doctor import examine

    worst = Exit.DONE
    for finding in examine(context.stack):
        if finding.level == "bad":
            worst = Exit.JOB_FAILED
        shown = {"check": finding.name, "level": finding.level, "message": finding.message}
        emit(shown, f"{LEVELS[finding.level]:<5} {finding.name:<13} {finding.message}")
    raise SystemExit(worst)


def _probe(model: str, gateway: str | None, worker: str | None, output: Path, *, yes: bool) -> None:
    import os

    from dropbatch.cli.cloudflare import DEFAULT_BASE_URL, Api, apis_of
    from dropbatch.cli.probe import BINDING_COST, COST, MOST_CALLS, Prober, lines

    needed = ["CLOUDFLARE_ACCOUNT_ID", "CLOUDFLARE_API_TOKEN", *(["DROPBATCH_WORKER_SECRET"] if worker else [])]
    missing = [name for name in needed if not os.environ.get(name)]
    if missing:
        raise UsageError(f"Set {' and '.join(missing)}.")
    click.echo(COST.format(model=model), err=True)
    if worker:
        click.echo(BINDING_COST.format(calls=MOST_CALLS, url=worker), err=True)
    if not yes and not click.confirm("Continue?", err=True):
        raise SystemExit(Exit.DONE)
    base_url = os.environ.get("WORKERS_AI_BASE_URL", DEFAULT_BASE_URL)
    api = apis_of(base_url, os.environ["CLOUDFLARE_ACCOUNT_ID"], os.environ["CLOUDFLARE_API_TOKEN"])[0]
    measured = Api(worker.rstrip("/"), "", os.environ["DROPBATCH_WORKER_SECRET"]) if worker else None
    found = Prober(api, model, gateway, measured, lambda text: click.echo(text, err=True)).run()
    output.write_text(json.dumps(found, indent=1) + "\n")
    saved = f"Saved in {output}. It contains no token and no text, so you can attach it to a bug report."
    emit(found, *lines(found), saved)
