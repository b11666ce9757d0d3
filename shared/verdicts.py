"""What the API says, and what it means: the one table of Workers AI's codes. Data and a look-up, no deeds.

The body's code decides; the HTTP status only where there is no code. Sources: Cloudflare's Workers AI error table and
API limits, and codes seen by others in the field (marked so). What each verdict leads to stands in
`functions.submit.send` and `functions.poll.ask`.
"""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus

UNSUPPORTED_QUEUE = "does not support request queuing"
"""The words that tell a model without a queue from the other uses of code 8007."""


class Verdict(StrEnum):
    """What a refusal means."""

    MODEL_WAITS = "model_waits"
    """No capacity, or the model's limit in a minute: the model waits, one batch of it tries."""
    HOLD = "hold"
    """Too many calls: every function holds."""
    QUOTA = "quota"
    """The day's allocation is spent: submits pause until 00:00 UTC."""
    ACCOUNT = "account"
    """Token or account refused: everything pauses until a probe is good."""
    MODEL = "model"
    """The model cannot be had: the job fails, others go on."""
    REQUEST = "request"
    """The request itself is refused: the batch is halved until the bad record stands alone."""
    BATCH_FAILED = "batch_failed"
    """Accepted, then failed as a whole: halved likewise."""
    UNKNOWN_ID = "unknown_id"
    """The API does not know the request_id (on a poll only)."""
    TRY_LATER = "try_later"
    """Trouble of no certain kind: back off."""


_CODES: dict[int, Verdict] = {
    3040: Verdict.MODEL_WAITS,
    3021: Verdict.MODEL_WAITS,  # observed
    3050: Verdict.MODEL_WAITS,  # observed
    971: Verdict.HOLD,  # observed
    3036: Verdict.QUOTA,
    4006: Verdict.QUOTA,  # observed
    10000: Verdict.ACCOUNT,
    9106: Verdict.ACCOUNT,  # observed
    9109: Verdict.ACCOUNT,  # observed
    6003: Verdict.ACCOUNT,
    3023: Verdict.ACCOUNT,
    7003: Verdict.ACCOUNT,  # observed
    5007: Verdict.MODEL,
    3042: Verdict.MODEL,
    5016: Verdict.MODEL,
    5018: Verdict.MODEL,
    3041: Verdict.MODEL,
    5035: Verdict.MODEL,
    5005: Verdict.MODEL,
    7000: Verdict.MODEL,  # observed for unknown models; the caller makes sure of the token first
    5006: Verdict.REQUEST,  # observed
    5004: Verdict.REQUEST,
    3003: Verdict.REQUEST,
    3006: Verdict.REQUEST,
    8007: Verdict.REQUEST,  # observed; with the words above it is the model's
    3030: Verdict.BATCH_FAILED,  # observed
    3007: Verdict.TRY_LATER,
    3008: Verdict.TRY_LATER,
}

_STATUSES: dict[int, Verdict] = {
    HTTPStatus.UNAUTHORIZED: Verdict.ACCOUNT,
    HTTPStatus.FORBIDDEN: Verdict.ACCOUNT,
    HTTPStatus.GONE: Verdict.MODEL,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Verdict.REQUEST,
    HTTPStatus.BAD_REQUEST: Verdict.REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY: Verdict.REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS: Verdict.HOLD,
}

COUNTED_AS = dict.fromkeys(Verdict, "ApiRefusals") | {
    Verdict.MODEL_WAITS: "ApiThrottles",
    Verdict.HOLD: "ApiThrottles",
    Verdict.TRY_LATER: "ApiErrors",
}
"""The metric that counts a refusal."""

RETRYABLE_ITEM_CODES = frozenset({3040, 3007, 3008, 3021, 971})
"""Codes of a failed item that say the service was short of something, not that the request was bad."""

NEEDS_GOOD_TOKEN = 7000
"""Said for wrong paths as well as for unknown models: believed of a model only with a good token."""


def judge(status: int, code: int | None, message: str, *, polling: bool = False) -> Verdict:
    """What a refusal means.

    Args:
        status: HTTP status.
        code: the body's first code, if it had one.
        message: the body's words.
        polling: whether a request_id was asked after, instead of a batch submitted.
    """
    if UNSUPPORTED_QUEUE in message:
        return Verdict.MODEL
    if polling and status == HTTPStatus.NOT_FOUND and code not in _CODES:
        return Verdict.UNKNOWN_ID
    if code is not None and code in _CODES:
        verdict = _CODES[code]
    elif HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        verdict = Verdict.ACCOUNT
    else:
        verdict = _STATUSES.get(status, Verdict.TRY_LATER)
    if polling and verdict is Verdict.REQUEST:
        # With a code it is the API's word on the batch; without one it may be any proxy's on the poll.
        return Verdict.TRY_LATER if code is None else Verdict.BATCH_FAILED
    return verdict


def refused_model(model: str, code: str) -> str:
    """Words for a user whose model cannot be had, with the mend."""
    return f"Workers AI refuses the model {model} (it said {code}). Choose a model with the Batch property."
