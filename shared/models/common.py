"""What jobs and batches have in common: their states, kinds of due work, errors, tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dropbatch.core.names import SCHEMA


class BatchState(StrEnum):
    """States of a batch; the last two are final."""

    READY = "ready"
    SUBMITTING = "submitting"
    QUEUED = "queued"
    DIVIDED = "divided"
    DONE = "done"


class DueKind(StrEnum):
    """Kinds of due work: the partition keys of the `due` index."""

    FIRST = f"{SCHEMA}#first"  # A job's first batch, to be submitted: no backlog delays it.
    SUBMIT = f"{SCHEMA}#submit"
    POLL = f"{SCHEMA}#poll"
    # A job whose visit moves it on: its upload is read, its batches are swept, its files written.
    JOB = f"{SCHEMA}#job"
    # A job whose visit only shows how far it is, or one that is over and is to be cleaned up: no
    # number of these delays work.
    ROUTINE = f"{SCHEMA}#routine"


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """Why something ended without success."""

    code: str  # one of the documented error codes
    message: str  # Dropbatch's own text for the user
    # key of the object with the API's message, which may quote a prompt (`shared.api_messages`); or
    # empty.
    said: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the API reported them; None where it reported none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    # those of the prompt that were read from a cache, at a lower price
    cached_tokens: int | None = None

    @property
    def is_reported(self) -> bool:
        """Whether the tokens of the prompt are known, without which nothing has its price."""
        return self.prompt_tokens is not None

    @property
    def sum(self) -> int:
        """All tokens, as far as they are known."""
        return self.total_tokens or (self.prompt_tokens or 0) + (self.completion_tokens or 0)

    def plus(self, other: Usage) -> Usage:
        """Sum two usages; what both lack stays unknown."""

        def add(a: int | None, b: int | None) -> int | None:
            return b if a is None else a if b is None else a + b

        return Usage(
            add(self.prompt_tokens, other.prompt_tokens),
            add(self.completion_tokens, other.completion_tokens),
            add(self.total_tokens, other.total_tokens),
            add(self.cached_tokens, other.cached_tokens),
        )


LASTING_SECONDS = 900.0
"""Seconds of failing or refused calls after which users are told, and deadlines do not wait."""
NEVER = 1e11  # A time that does not come, Unix seconds; no item holds an infinite number


@dataclass(frozen=True, slots=True)
class Wait:
    """Why work is put off."""

    until: float  # when it is tried again, Unix seconds; `NEVER` if somebody has to act first
    code: str = ""  # for programs; empty for a moment's lack of calls, of which nobody is told
    message: str = ""  # for people: what it is, and what to do
    since: float = 0.0  # when it began, Unix seconds; 0 if that is not known
