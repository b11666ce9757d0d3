"""The command `dropbatch`: its verbs, and how an error becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import click

from dropbatch import __version__
from dropbatch.cli import get, jobs, operate, put
from dropbatch.cli.context import Context, Exit, exit_of, note, said, stack_options
from dropbatch.client import aws
from dropbatch.errors import Error

GONE = {
    "tail": "`aws logs tail` follows a function's log: docs/operations.md.",
    "events": "The parameter CompletionEvents switches them, `dropbatch doctor` shows them.",
}
"""Verbs that there were, each with the way out."""


class Verbs(click.Group):
    """The verbs, in the order in which they are needed; operators' stand apart."""

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them in two sections."""
        for title, verbs in (("Commands", USERS), ("For operators", OPERATORS)):
            with formatter.section(title):
                formatter.write_dl(
                    [(verb.name or "", verb.get_short_help_str(66)) for verb in verbs]
                )

    def invoke(self, context: click.Context) -> object:
        """Run a verb; what it raises becomes a message and an exit code."""
        context.ensure_object(Context)
        try:
            with aws.explained():
                return super().invoke(context)
        except Error as error:
            note(said(error))
            raise SystemExit(exit_of(error)) from error
        except KeyboardInterrupt as interrupt:
            note(str(interrupt) or "\nInterrupted.")
            raise SystemExit(Exit.INTERRUPTED) from interrupt

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that is named; of one that is gone, say what is there instead."""
        if args and (way_out := GONE.get(args[0])):
            raise click.UsageError(f"There is no verb {args[0]} any more. {way_out}", context)
        return super().resolve_command(context, args)


@stack_options
@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__)
def cli() -> None:
    """Run files of requests through Cloudflare Workers AI's batch API, from S3 to S3.

    JOB is a job id, the path of an upload (its newest job), or the path of a result.
    """


USERS = (
    *(put.put, jobs.wait, get.get, get.retry, jobs.status, jobs.ls, get.report, put.validate),
    *(jobs.cancel, jobs.pause, jobs.resume, operate.models, operate.serve),
)
OPERATORS = (operate.doctor, operate.redrive)
for verb in (*USERS, *OPERATORS):
    cli.add_command(stack_options(verb))


def main() -> None:
    """Run a verb. An error becomes a message on standard error and an exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The shell has closed it: `>&-`.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    # A name may have letters that the output's encoding lacks.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.exit(cli.main(prog_name="dropbatch", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.USAGE)
    except BrokenPipeError:  # The reader, such as `head`, has what it wants.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest.
        sys.exit(Exit.JOB_FAILED)
    except OSError as error:
        note(str(error))
        sys.exit(Exit.JOB_FAILED)
    except click.Abort:  # At a question.
        note("\nInterrupted.")
        sys.exit(Exit.INTERRUPTED)
