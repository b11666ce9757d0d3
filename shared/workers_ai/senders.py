"""Who makes a call: which of the secret's tokens, and for which account.

A batch is polled by the token that submitted it, as a number: that of its line in the secret. If that line now is of
another account, or is gone, the first token of the batch's account takes its place; if there is none, the first token
of all asks for that account, as it does for jobs of another account (`shared.workers_ai.other_account`).
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

    from shared.bootstrap import Services
    from shared.models import Batch, Job


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

    def __init__(self, read: Callable[[bool], Secret], account: str, *, may_be_several: bool = True) -> None:
        """Read nothing yet.

        Args:
            read: reads the secret; called with True, it does so again. Raises `StorageError`.
            account: the stack's.
            may_be_several: whether the value may hold several tokens; a Worker's secret is one whatever is in it.
        """
        self._read, self._account, self._may_be_several = read, account, may_be_several
        self._known = ONE_TOKEN

    def senders(self, account: str = "") -> tuple[Sender, ...]:
        """Who may submit a batch of a job.

        Args:
            account: the job's, if it is not the stack's. Its batches go to that account; those of the stack's jobs go
                to every account that a token is for.
        """
        with suppress(StorageError):  # What was known last holds; the call itself fails likewise.
            self._known = self._parsed(self._read(False).value)  # noqa: FBT003 - its only argument
        every = self._every(self._known)
        chosen = [one for one in every if one.account == account] if account else every
        return tuple(chosen) or (Sender(account=account),)

    def sender(self, account: str, number: int) -> Sender:
        """Who asks for a batch that the token of this number submitted to an account; empty: the stack's."""
        able = [one for one in self.senders(account) if one.account == account]
        same = [one for one in able if one.number == number]
        return next(iter(same or able), Sender(account=account))

    def credentials(self, sender: Sender = FIRST) -> Callable[[bool], Credentials]:
        """A function that returns the credentials of a sender; called with True, it reads the secret again.

        They are empty if the secret has changed since the sender was chosen, and its line is gone or another account's.
        """

        def read(fresh: bool) -> Credentials:  # noqa: FBT001 - its only argument
            secret = self._read(fresh)
            found = self._parsed(secret.value)
            is_there = sender.number == 1 or sender in self._every(found)
            return Credentials(found.tokens[sender.number - 1].text if is_there else "", secret.gateway_token)

        return read

    def queues_credentials(self, fresh: bool) -> Credentials:  # noqa: FBT001 - its only argument
        """The credentials of the Queues API: a token of its own, or the first."""
        secret = self._read(fresh)
        found = self._parsed(secret.value)
        return Credentials(found.queues or found.tokens[0].text, secret.gateway_token)

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
    transport = transport_of(services.settings, sender.account) if sender.account else services.api.transport
    credentials = services.api.credentials if sender.number == 1 else services.tokens.credentials(sender)
    return WorkersAI(services.api.http, transport, credentials)
