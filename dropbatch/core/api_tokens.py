"""The value of the secret: API tokens, one a line, each perhaps with the account that it is for.

    <token>
    <token> <account id>
    queues=<token>

A comma ends a line too. A token's number is its place among these lines, from 1 on; one that is
there twice counts once. The last form is for the Queues API alone, and has no number. A value of
one plain token is the usual case. What fits none of these is taken as a token, and refused as one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_TOKENS = 10
"""Tokens that the functions use; those behind them are left out.

A batch that all of them refuse in turn is sent on by
so many invocations, and AWS Lambda stops loops after 16.
"""
_LINE = re.compile(r"(\S+)[ \t]+([0-9a-f]{32})")
_QUEUES = "queues="


class ApiToken(NamedTuple):
    """One token, and the account that it is for; empty: the stack's."""

    text: str
    account: str = ""


class ApiTokens(NamedTuple):
    """The tokens of a secret, in the order of their numbers; `queues`.

    The one for the Queues API alone.
    """

    tokens: tuple[ApiToken, ...]
    queues: str = ""


def read_tokens(value: str) -> ApiTokens:
    """The tokens in a secret's value."""
    lines = [line.strip() for line in re.split(r"[\r\n,]", value)]
    queues, tokens = "", dict[str, ApiToken]()
    for line in filter(None, lines):
        fits = _LINE.fullmatch(line)
        token = ApiToken(*fits.groups()) if fits else ApiToken(line)
        if line.startswith(_QUEUES):
            queues = queues or line.removeprefix(_QUEUES).strip()
        else:
            tokens.setdefault(token.text, token)
    return ApiTokens(tuple(tokens.values()), queues)
