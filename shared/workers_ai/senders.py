"""Who makes a call: which of the secret's tokens, and for which account.

A batch is polled by the token that submitted it, as a number: that of its line in the secret. If
that line now is of another account, or is gone, the first token of the batch's account takes its
place; if there is none, the first that names none asks for that account, as it does for jobs of
another account (`shared.workers_ai.other_account`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dropbatch.core.api_tokens import MOST_TOKENS, ApiToken, ApiTokens, read_tokens
from shared.errors import StorageError
from shared.models import FIRST, Sender
from shared.workers_ai.client import WorkersAI
from shared.workers_ai.other_account import other_account
from shared.workers_ai.transports import Credentials, transport_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.models import Batch, Job
    from shared.services import Services


AGAIN_SECONDS = 60.0
"""Seconds for which a process does not read the secret again to find another token.

Each reading costs.
"""


class Secret(NamedTuple):
    """What Secrets Manager holds for the stack's transport.

    Attributes:
        value: with API tokens, as `dropbatch.core.api_tokens` reads it; or what the Worker shares.
        gateway_token: of an authenticated AI Gateway; empty if none is sent.
    """

    value: str
    gateway_token: str = ""


ONE_TOKEN = ApiTokens((ApiToken(""),))
"""What a secret that nobody can read counts as."""


class Tokens:
    """The tokens of the stack's secret, as they are now."""

    def __init__(
        self, read: Callable[[bool], Secret], account: str, *, may_be_several: bool = True
    ) -> None:
        """Read nothing yet.

        Args:
            read: reads the secret; called with True, it does so again. Raises `StorageError`.
            account: the stack's.
            may_be_several: whether the value may hold several tokens; a Worker's secret is one
                whatever is in it.
        """
        self._read, self._account, self._may_be_several = read, account, may_be_several
        self._known = ONE_TOKEN
        self._again_at = 0.0
        # Tokens that the Queues API refused, as far as this process has asked.
        self._no_queues = set[str]()

    def senders(self, account: str = "") -> tuple[Sender, ...]:
        """Who may submit a batch of a job.

        Args:
            account: the job's, if it is not the stack's. Its batches go to that account; those of
                the stack's jobs go to every account that a token is for.
        """
        with suppress(StorageError):  # What was known last holds; the call itself fails likewise.
            self._known = self._parsed(self._read(False).value)  # noqa: FBT003 - its only argument
        every = self._every(self._known)
        chosen = [one for one in every if one.account == account] if account else every
        return tuple(chosen) or (Sender(account=account),)

    def is_changed(self, now: float) -> bool:
        """Read the secret again; whether it has other lines.

        Others may know of a token that this process does not.
        """
        if now - self._again_at < AGAIN_SECONDS:
            return False
        self._again_at, before = now, self._known
        with suppress(StorageError):
            self._known = self._parsed(self._read(True).value)  # noqa: FBT003 - its only argument
        return self._known != before

    def sender(self, account: str, number: int) -> Sender:
        """Who asks for a batch that the token of this number submitted to an account; empty.

        The stack's.
        """
        able = [one for one in self.senders(account) if one.account == account]
        same = [one for one in able if one.number == number]
        return next(iter(same or able), Sender(account=account))

    def credentials(self, sender: Sender = FIRST) -> Callable[[bool], Credentials]:
        """A function that returns the credentials of a sender.

        Called with True, it reads the secret again.

        They are empty if the secret has changed since the sender was chosen, and its line is gone
        or another account's: no token of a line that names an account is sent to another one.
        """

        def read(fresh: bool) -> Credentials:  # noqa: FBT001 - its only argument
            secret = self._read(fresh)
            return Credentials(
                self._text_of(self._parsed(secret.value), sender), secret.gateway_token
            )

        return read

    def _text_of(self, found: ApiTokens, sender: Sender) -> str:
        """A sender's token; empty if there is none."""
        every = self._every(found)
        if sender in every:
            return found.tokens[sender.number - 1].text
        if sender.number > 1:
            return ""
        # The first that may ask for the account: one of its own, or one that names none.
        own = [number for number, one in enumerate(every) if one.account == sender.account]
        unnamed = [number for number, one in enumerate(found.tokens) if not one.account]
        return next((found.tokens[number].text for number in (*own, *unnamed)), "")

    def queues_credentials(self, fresh: bool) -> Credentials:  # noqa: FBT001 - its only argument
        """The credentials of the Queues API.

        A token of its own, or the first of the account that it did not refuse.
        """
        secret = self._read(fresh)
        able = self._able_for_queues(secret)
        left = [one for one in able if one not in self._no_queues]
        return Credentials(next(iter(left or able), ""), secret.gateway_token)

    def pass_queues_on(self, refused: Credentials) -> bool:
        """Have another token call the Queues API, which refused this one.

        False if it refused all of them.

        Raises:
            StorageError: the secret cannot be read.
        """
        self._no_queues.add(refused.token)
        if self.queues_credentials(True).token not in self._no_queues:  # noqa: FBT003 - its only argument
            return True
        self._no_queues.clear()
        return False

    def _able_for_queues(self, secret: Secret) -> list[str]:
        found = self._parsed(secret.value)
        of_stack = [one.text for one in found.tokens if one.account in {"", self._account}]
        return [found.queues] if found.queues else of_stack

    def _parsed(self, value: str) -> ApiTokens:
        if not self._may_be_several:
            return ApiTokens((ApiToken(value),))
        found = read_tokens(value)
        return ApiTokens(found.tokens[:MOST_TOKENS] or ONE_TOKEN.tokens, found.queues)

    def _every(self, found: ApiTokens) -> list[Sender]:
        return [self._sender(number, one) for number, one in enumerate(found.tokens, 1)]

    def _sender(self, number: int, token: ApiToken) -> Sender:
        return Sender(number, "" if token.account == self._account else token.account)


ONLY_ONE = Tokens(lambda _: Secret(""), "")
"""One token, as far as nobody has said otherwise."""


def as_sent(job: Job, sent: Sender) -> Job:
    """A job as the account sees it to which a batch was submitted; `sent` is as the batch says."""
    return replace(job, plan=replace(job.plan, account=sent.account)) if sent.account else job


def as_told(job: Job, sender: Sender) -> Sender:
    """A sender as a batch of the job says: without an account that is the job's."""
    return replace(sender, account="") if sender.account == job.plan.account else sender


def sender_of(services: Services, job: Job, sent: Sender) -> Sender:
    """Who makes the calls for what a batch's sender has submitted."""
    return services.tokens.sender(other_account(services, as_sent(job, sent)), sent.number)


def next_sender(services: Services, job: Job, batch: Batch) -> Sender:
    """Who polls a batch next: who submitted what is then polled."""
    return sender_of(services, job, batch.polled_at(batch.polls).sender)


def api_of(services: Services, sender: Sender) -> WorkersAI:
    """The API as a sender calls it."""
    if sender == FIRST:
        return services.api
    transport = (
        transport_of(services.settings, sender.account)
        if sender.account
        else services.api.transport
    )
    return WorkersAI(services.api.http, transport, services.tokens.credentials(sender))
