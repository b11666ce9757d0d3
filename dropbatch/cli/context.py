"""What the verbs share: the stack, the jobs that names mean, exit codes, options, output."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from functools import cached_property, partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from dropbatch.client.client import Client
from dropbatch.client.find import is_many, newest_jobs, time_of
from dropbatch.client.job import Job
from dropbatch.client.progress import GAP, SHORT_ID, columns_of, printable, shortened
from dropbatch.client.stack import DEFAULT_NAME, Stack, local_file
from dropbatch.client.threads import at_once
from dropbatch.core.names import JOB_ID
from dropbatch.core.options import written_options
from dropbatch.errors import (
    Error,
    IdUnknown,
    NoJob,
    NoRecordFits,
    NoStack,
    NotFound,
    NotOver,
    NotPermitted,
    Taken,
    TimedOut,
    UnknownModel,
    UsageError,
)

Command = TypeVar("Command", bound=click.Command)
Out = TypeVar("Out")


class Exit(IntEnum):
    """Exit codes, the same for every verb."""

    DONE = 0
    JOB_FAILED = 1
    """A job failed or was cancelled, or the command failed with the message on standard error."""
    USAGE = 2
    SOME_FAILED = 3
    """With `--strict`: the job is completed, and some of its records failed."""
    NOT_PERMITTED = 4
    NOT_FOUND = 5
    TIMED_OUT = 6
    """A job is not over: after `--timeout`, or when its results are wanted."""
    INTERRUPTED = 130


_OF_ERRORS: dict[type[Error], Exit] = {
    NotOver: Exit.TIMED_OUT,
    UsageError: Exit.USAGE,
    NotPermitted: Exit.NOT_PERMITTED,
    NotFound: Exit.NOT_FOUND,
    TimedOut: Exit.TIMED_OUT,
}
_HINTS: dict[type[Error], str] = {
    NoStack: "--stack or DROPBATCH_STACK names it",
    NoJob: "`dropbatch ls` lists jobs",
    NotOver: "`dropbatch wait JOB` waits",
    Taken: "-o names another place, --force replaces what is there",
    NoRecordFits: "--no-check sends it all the same",
    UnknownModel: "`put --no-check` sends it all the same",
    IdUnknown: "`dropbatch ls` lists them",
}
"""What the command line has for an error, beside the library's words."""
RUNS_HERE = "A local stack runs on this machine; --local uses it."
_FROM_BEST = sorted(Exit, key=lambda code: 0.5 if code is Exit.SOME_FAILED else code)


def worst(*codes: Exit) -> Exit:
    """The code of a command of whose jobs each has one."""
    return max(codes, key=_FROM_BEST.index)


def exit_of(error: Error) -> Exit:
    """The exit code of a command that an error ends."""
    found = (code for kind, code in _OF_ERRORS.items() if isinstance(error, kind))
    return next(found, Exit.JOB_FAILED)


def said(error: Error) -> str:
    """An error's message, and which option or verb helps."""
    hint = next((words for kind, words in _HINTS.items() if isinstance(error, kind)), "")
    return f"{error} ({hint})" if hint else str(error)


def _to_type(message: str) -> str:
    """A message whose commands have the options by which the user chose the stack."""
    context = click.get_current_context(silent=True)
    found = context.find_object(Context) if context else None
    chosen = found.chosen if found else ""
    return printable(message.replace("`dropbatch ", f"`dropbatch {chosen}"))


_AS_JSON = "dropbatch.as_json"


def is_json() -> bool:
    """Whether `--json` was given."""
    return bool(click.get_current_context().meta[_AS_JSON])


def emit(value: object, *lines: object) -> None:
    """Print what a command found: with `--json` as one line of JSON, else as these lines."""
    if is_json():
        click.echo(json.dumps(value))
        return
    for line in lines:
        click.echo(_to_type(str(line)))


def row_of(job_id: str, *cells: str) -> str:
    """A row of a table; where it does not fit the terminal, with a short id and less space."""
    row = GAP.join([f"{job_id:<25}", *cells]).rstrip()
    if not sys.stdout.isatty() or columns_of(row) <= shutil.get_terminal_size().columns:
        return row
    return GAP.join([job_id[-SHORT_ID:], *filter(None, map(str.strip, cells))])


def note(message: str) -> None:
    """Print a message on standard error. It may begin with a line end."""
    begins = "\n" if message.startswith("\n") else ""
    click.echo(begins + _to_type(message[len(begins) :]), err=True)


def bar_of(label: str, size: int, *, hidden: bool = False) -> Any:
    """A progress bar that fits the terminal; nothing elsewhere."""
    columns = shutil.get_terminal_size().columns
    shown = shortened(printable(label), columns // 2)
    # Beside it, click shows the label, brackets, the share and the time left.
    width = max(min(36, columns - len(shown) - 22), 4)
    hidden = hidden or not sys.stderr.isatty()
    return click.progressbar(
        length=max(size, 1), label=shown, width=width, file=sys.stderr, hidden=hidden
    )


def standard_input() -> TextIO:
    """Standard input; `UsageError` if it is closed."""
    if sys.stdin is None:
        raise UsageError("Standard input is closed.")
    return sys.stdin


@dataclass
class Context:
    """The stack that the options name, before or after the verb."""

    stack_name: str = field(default_factory=lambda: os.environ.get("DROPBATCH_STACK", ""))
    local: bool = False
    code: Exit = field(default=Exit.DONE, init=False)
    """The worst of what failed for some of several jobs."""

    @property
    def chosen(self) -> str:
        """The options that chose the stack, as they were given, with a space after them."""
        if self.local:
            return "--local "
        is_named = self.stack_name != os.environ.get("DROPBATCH_STACK", "")
        return f"--stack {shlex.quote(self.stack_name)} " if is_named else ""

    @cached_property
    def client(self) -> Client:
        """The client of the stack, made when it is first needed."""
        try:
            return Client(self.stack_name or DEFAULT_NAME, local=self.local)
        except Error as error:
            if not self.local and local_file().exists():
                error.args = (f"{error} {RUNS_HERE}",)
            raise

    @property
    def stack(self) -> Stack:
        """The stack."""
        return self.client.stack

    def jobs(
        self, names: Sequence[str], find: Callable[[str], Job] | None = None
    ) -> tuple[list[Job], bool]:
        """The jobs that names mean, each once; and whether they may be several.

        If so, a name that means no job is said, and counts in `code`. `-` is lines of standard
        input that begin with an id, also with `--json`. `find` finds the job of one name.
        """
        found: dict[Job, None] = {}
        many = len(names) > 1 or any(name == "-" or is_many(name) for name in names)
        for name in names:
            try:
                for one in self._meant(name, find or self.client.job):
                    if isinstance(one, Error):
                        self.add(one)
                    else:
                        found.setdefault(one)
            except Error as error:
                if len(names) == 1:
                    raise
                self.add(error)
        if not found and self.code:
            raise SystemExit(self.code)
        return list(found), many

    def add(self, error: Error, job: Job | None = None) -> None:
        """Say what is wrong with one of several jobs; the others go on."""
        note(f"{job.id}  {said(error)}" if job else said(error))
        self.code = worst(self.code, exit_of(error))

    def each(
        self, function: Callable[[Job], Out], jobs: Iterable[Job], *, many: bool
    ) -> Iterator[tuple[Job, Out]]:
        """Call a function for each job; yield each with its result. Of many, what fails is said."""

        def tried(job: Job) -> Out | Error:
            try:
                return function(job)
            except Error as error:
                if not many:
                    raise
                return error

        for job, result in at_once(tried, jobs):
            if isinstance(result, Error):
                self.add(result, job)
            else:
                yield job, result

    def _meant(self, name: str, find: Callable[[str], Job]) -> Iterator[Job | Error]:
        if name == "-":
            yield from self._of_lines()
            return
        if not is_many(name):
            yield find(name)
            return
        jobs = newest_jobs(self.stack, name)
        try:
            exact = self.client.job(name) if not name.endswith("/") or JOB_ID.search(name) else None
        except NotFound:  # A path may have a `*` or a `[`; this one does not exist.
            exact = None
        first = exact or next(jobs, None)
        if first is None:
            raise NotFound(f"No path of a job matches {name!r}.")
        yield first
        if not exact:
            yield from jobs

    def _of_lines(self) -> Iterator[Job | Error]:
        lines = standard_input()
        if isinstance(lines, TextIOWrapper):
            lines.reconfigure(errors="backslashreplace")  # A line that is no text.
        for line in filter(str.strip, lines):
            try:
                yield self._of_line(line)
            except Error as error:
                yield error

    def _of_line(self, line: str) -> Job:
        if not line.startswith("{"):
            return self.client.job(line.split(maxsplit=1)[0])
        try:
            found = json.loads(line)
            return Job.at(self.stack, found["path"], found["job_id"])
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"This line names no job: {line.strip()[:200]}") from None


def gone(name: str, words: str, **more: Any) -> Callable[[Any], Any]:
    """Refuse an option that once existed, and say what there is instead."""

    def refuse(_context: click.Context, _option: click.Parameter, value: object) -> None:
        if value:
            raise UsageError(f"{name}: {words}")

    return click.option(name, hidden=True, expose_value=False, callback=refuse, **more)


pass_context = click.make_pass_decorator(Context, ensure=True)
flag = partial(click.option, is_flag=True)


def _choose(context: click.Context, option: click.Parameter, value: object) -> None:
    if value == "":  # Another stack than the default one was meant.
        raise click.BadParameter("It is empty, as of a variable that is not set. Leave it out.")
    if value and option.name:
        setattr(context.ensure_object(Context), option.name, value)


def stack_options(command: Command) -> Command:
    """Add the options that choose the stack; the group has them, and each verb."""
    chooses: dict[str, Any] = {"expose_value": False, "callback": _choose}
    words = "The CloudFormation stack; DROPBATCH_STACK or dropbatch if not given."
    click.option("--stack", "stack_name", metavar="NAME", help=words, **chooses)(command)
    flag("--local", help="Use the stack that `make up` started here.", **chooses)(command)
    return command


job_argument = click.argument("job", metavar="JOB")
jobs_argument = click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
as_json = click.option(
    "--json",
    is_flag=True,
    help="Print JSON, one object a line.",
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({_AS_JSON: value}),
)
get_option = click.option(
    "--get",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Wait, then download the results; of several into folders of their paths.",
)
strict = flag("--strict", help="Exit with 3 if records failed.")
options = click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="K=V",
    help='An option, for instance tags={"team":"x"}.',
)


def parse_options(options: Iterable[str], **named: Iterable[str]) -> dict[str, Any]:
    """The values of `-o`, and of options that have a name of their own; a second is an error."""
    every = [(one.removesuffix("_file"), value) for one, found in named.items() for value in found]
    for pair in options:
        name, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"-o {pair}: write it as NAME=VALUE.")
        every.append((name, value))
    return written_options(every)


def parse_since(_context: click.Context, _option: click.Parameter, value: str) -> datetime:
    """Parse a time in the past."""
    try:
        return time_of(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def parse_seconds(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> float | None:
    """Parse a duration: `90`, `90s`, `30m`, `12h` or `2d`."""
    if value is None:
        return None
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value)
    if not matched:
        raise click.BadParameter(f"{value!r} is no duration. Write 90s, 30m or 12h.")
    return float(matched[1]) * {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}[matched[2]]
