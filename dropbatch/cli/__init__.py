"""The command `dropbatch`: its options, its subcommands, and the exit code."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from io import TextIOWrapper

import click

from dropbatch.cli.context import note, stack_options
from dropbatch.cli.exits import Exit, exit_of, in_options
from dropbatch.cli.verbs import control, look, models, operate, put, results, serve
from dropbatch.client import aws
from dropbatch.errors import Error


@stack_options
@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dropbatch")
def cli() -> None:
    """Run files of requests through Cloudflare Workers AI's batch API, from S3 to S3.

    JOB is a job id, the path of an upload (its newest job), or the path of a result.
    """


for verb in (
    put.put,
    put.validate,
    look.ls,
    look.status,
    look.wait,
    results.get,
    results.retry,
    results.report,
    control.cancel,
    control.pause,
    control.resume,
    models.models,
    operate.doctor,
    operate.redrive,
    operate.tail,
    serve.serve,
):
    cli.add_command(stack_options(verb))


def main() -> None:
    """Run a subcommand. An error becomes a message on standard error and an exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The shell has closed it: `>&-`.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the end
    # A name may have letters that the output's encoding lacks.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with aws.explained(), warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            # A table may be read twice: for what is there already, and to be sent.
            noted = cache(note)
            warnings.showwarning = lambda text, *_, **__: noted(in_options(str(text)))
            sys.exit(cli.main(prog_name="dropbatch", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.USAGE)
    except Error as error:
        note(in_options(str(error)))
        sys.exit(exit_of(error))
    except (
        BrokenPipeError
    ):  # The reader, such as `head`, has what it wants. Python writes the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.JOB_FAILED)
    except OSError as error:
        note(str(error))
        sys.exit(Exit.JOB_FAILED)
    except (click.Abort, KeyboardInterrupt) as interrupt:
        note(in_options(str(interrupt.__cause__ or "")) or "\nInterrupted.")
        sys.exit(Exit.INTERRUPTED)
