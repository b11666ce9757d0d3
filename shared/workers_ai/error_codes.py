"""The table of the API's error codes: what each means. Pure: data and look-ups.

The body's code decides; the HTTP status only where there is no code. Sources: Cloudflare's Workers
AI error table and API limits; codes that only clients of the live API have reported are marked as
observed. Where the reply alone does not decide, the client asks whether the token is good
(`shared.workers_ai.client.classify_rejection`). What follows is in `functions.submit.submit` and
`functions.poll.doubts`. Which codes of failed records pass: `dropbatch.core.errors.PASSING_CODES`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from http import HTTPStatus

from dropbatch.core.errors import ONE_A_STACK
from shared.workers_ai.replies import Rejected

_QUEUE_UNSUPPORTED = re.compile(
    r"(AiError: *)*[\w@/. -]{0,200}does not support request queuing", re.ASCII | re.IGNORECASE
)
"""Distinguishes a model without a queue from other uses of 8007, or of a code that says nothing.

The words count only as the message's own: it may quote a record, after a colon or a quotation mark.
"""

BAD_INPUT = 5006
"""The code of a request that does not fit its model's schema."""
_NO_REFERENCES = re.compile(
    r"(additional|unevaluated)\b.{0,40}\bpropert.{0,40}\bexternal_reference\b", re.IGNORECASE
)
"""Distinguishes a model that takes no references from other bad input."""


class ErrorClass(StrEnum):
    """What an error of the API means."""

    MODEL_WAITS = "model_waits"
    """No capacity, or the model's limit per minute: one of its batches is tried at a time."""
    RATE_LIMIT = "rate_limit"
    """Too many calls: every function waits."""
    QUOTA = "quota"
    """The day's allocation is used up: submits pause until 00:00 UTC."""
    CREDITS = "credits"
    """AI Gateway: the account has no credits left. Submits pause."""
    SPEND_LIMIT = "spend_limit"
    """AI Gateway: its spend limit is reached. Submits pause."""
    ACCOUNT = "account"
    """Token or account refused: everything pauses until a probe succeeds."""
    CHECK_TOKEN = "check_token"  # noqa: S105 - a word, not a secret
    """Undecided: the free call decides, see `classify_rejection`."""
    MODEL = "model"
    """The model cannot be used: the job fails, others continue. On a submit only."""
    REQUEST = "request"
    """The request itself is refused: the batch is divided until the bad record is alone."""
    BATCH_FAILED = "batch_failed"
    """Accepted, then failed as a whole: divided likewise."""
    UNKNOWN_ID = "unknown_id"
    """The API does not know the request_id (on a poll only): several such replies are required."""
    WITHDRAWN = "withdrawn"
    """Cloudflare has withdrawn the model: the job fails once a second submit is told so."""
    TRY_LATER = "try_later"
    """Another error: back off; on a poll it counts as no answer."""


KEEPS_PAUSE = frozenset({ErrorClass.ACCOUNT, ErrorClass.RATE_LIMIT, ErrorClass.TRY_LATER})
"""Rejections of a pause's probe that do not show that the pause is over."""


GENERIC = 8007
"""The code of many refusals; the message tells them apart."""

_CODES_OF_CLASS = {
    ErrorClass.MODEL_WAITS: (3040, 3021, 3050),  # observed: the last two
    ErrorClass.RATE_LIMIT: (971, 2003),  # observed; 2003: AI Gateway's own
    ErrorClass.QUOTA: (3036, 4006),  # observed: 4006
    # AI Gateway, observed: 2001, no gateway of this name; 2009, its token is missing or wrong.
    # Observed, too: 9106, 9109, 7003
    ErrorClass.ACCOUNT: (10000, 9106, 9109, 6003, 3023, 7003, 2001, 2009),
    ErrorClass.CREDITS: (2021,),  # AI Gateway
    ErrorClass.SPEND_LIMIT: (2041,),  # AI Gateway, observed
    ErrorClass.MODEL: (5007, 3042, 5016, 5018, 3041, 5035, 5005),
    ErrorClass.WITHDRAWN: (5028,),  # observed, once of a model that was alive
    ErrorClass.CHECK_TOKEN: (7000,),  # observed for unknown models, and also for wrong paths
    # AI Gateway: 2016 to 2030 are its guardrails and its data loss prevention.
    # Observed: 5006, 5025; GENERIC, which with `_QUEUE_UNSUPPORTED` is MODEL
    ErrorClass.REQUEST: (2016, 2017, 2029, 2030, 5006, 5004, 5025, 3003, 3006, 3039, GENERIC),
    ErrorClass.BATCH_FAILED: (3030,),  # observed
    # Observed: 3046, 7010, 10013; 7013: AI Gateway
    ErrorClass.TRY_LATER: (3007, 3008, 3046, 5001, 7010, 7013, 10013),
}
_CODES = {code: meaning for meaning, codes in _CODES_OF_CLASS.items() for code in codes}

_CODES_ON_A_POLL: dict[int, ErrorClass] = {
    5001: ErrorClass.BATCH_FAILED,  # the code of Cloudflare's event of a failed batch
    5028: ErrorClass.WITHDRAWN,  # while batches run, and with any status
}
"""What a code means on a poll, where that differs."""

_WITH_4XX = {ErrorClass.MODEL, ErrorClass.WITHDRAWN, ErrorClass.CHECK_TOKEN}
"""Classes whose codes are believed of a submit only with a status of the client's."""

_OF_MODEL = {ErrorClass.MODEL, ErrorClass.WITHDRAWN}
"""Classes that are no verdict on a batch that was accepted."""

_PROVE_NOTHING = {ErrorClass.REQUEST, ErrorClass.BATCH_FAILED, ErrorClass.TRY_LATER}
"""Classes whose codes say what was wrong, and not that nothing of a submit was taken."""

_GATEWAYS_OWN = range(2000, 3000)
"""Codes of AI Gateway itself, which knows nothing of a batch's id."""

_STATUSES: dict[int, ErrorClass] = {
    HTTPStatus.UNAUTHORIZED: ErrorClass.CHECK_TOKEN,
    HTTPStatus.FORBIDDEN: ErrorClass.CHECK_TOKEN,
    HTTPStatus.GONE: ErrorClass.MODEL,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ErrorClass.REQUEST,
    HTTPStatus.BAD_REQUEST: ErrorClass.REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY: ErrorClass.REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS: ErrorClass.RATE_LIMIT,
}

_OF_TOKEN = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
"""Statuses of a refused token, if the API's own JSON has no code."""

_NO_VERDICT_AS_A_PAGE = {HTTPStatus.BAD_REQUEST, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY}
"""Statuses that say nothing of a submit's content or model in a proxy's or firewall's answer."""

_PAGES_ON_A_POLL: dict[ErrorClass, ErrorClass] = {
    ErrorClass.ACCOUNT: ErrorClass.CHECK_TOKEN,  # a redirect
    ErrorClass.CHECK_TOKEN: ErrorClass.CHECK_TOKEN,
    ErrorClass.RATE_LIMIT: ErrorClass.RATE_LIMIT,
}
"""For a page of a proxy or firewall that answers a poll, by its status; any other is no answer."""

METRIC_OF_CLASS = dict.fromkeys(ErrorClass, "ApiRefusals") | {
    ErrorClass.MODEL_WAITS: "ApiThrottles",
    ErrorClass.RATE_LIMIT: "ApiThrottles",
    ErrorClass.TRY_LATER: "ApiErrors",
}
"""The metric that counts an error, by its class."""

UNKNOWN_MODEL_OR_PATH = 7000
"""Means an unknown model only if the token is valid."""

FIREWALL = "blocked by Cloudflare's firewall"
"""Message for a record whose text Cloudflare's firewall blocks."""

_PRIVATE = "The model is private: ask its owner, or Cloudflare, to give the account access to it."
_MODEL_ADVICE = {
    **dict.fromkeys((3041, 5018), _PRIVATE),
    5016: "The model's terms must be accepted first: run it once in the account's dashboard "
    "(Workers AI, Models) and agree to them.",
    5035: "The model needs the Workers Paid plan or prepaid credits: get one of them in "
    "Cloudflare's dashboard.",
    5028: "Cloudflare has withdrawn this model: choose another one with the Batch property.",
    5005: "The requests name a LoRA adapter, which this model does not take: remove it, or "
    "choose another model.",
}
_OTHER_MODEL = "Choose a model with the Batch property."

_ADVICE = {
    0: "No connection could be made. Check WorkersAiBaseUrl or WorkerUrl, and Cloudflare's status.",
    402: "Check the account's billing and plan in Cloudflare's dashboard.",
    2021: "Add credits to the account in Cloudflare's dashboard (AI Gateway).",
    2041: "Raise the spend limit of the gateway in Cloudflare's dashboard, or wait until its "
    "window is over.",
    403: "Check the token's permissions and the firewall rules in Cloudflare's dashboard.",
    404: "Check the parameters WorkersAiBaseUrl and CloudflareAccountId, or WorkerUrl.",
    405: "Check the parameters WorkersAiBaseUrl and CloudflareAccountId.",
    5019: "Workers AI refuses this version of Dropbatch: deploy a newer one.",
    7001: "Check the parameters WorkersAiBaseUrl and CloudflareAccountId.",
}


def classify_submit_error(reply: Rejected) -> ErrorClass:
    """What an error reply to a submit means, or to the free call."""
    if not reply.enveloped and reply.status in _NO_VERDICT_AS_A_PAGE:
        return ErrorClass.TRY_LATER
    return _by_code_of_submit(reply) or _by_status(reply.status)


def is_ambiguous(reply: Rejected) -> bool:
    """Whether a submit that was answered with an error may have been carried out all the same.

    Not if it could not be sent, nor with a 4xx other than 408, nor if a code says so.
    """
    if reply.status == 0 or _is_clients_fault(reply.status):
        return False
    return (_by_code_of_submit(reply) or ErrorClass.TRY_LATER) in _PROVE_NOTHING


def _is_clients_fault(status: int) -> bool:
    is_4xx = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    return is_4xx and status != HTTPStatus.REQUEST_TIMEOUT


def classify_poll_error(reply: Rejected) -> ErrorClass:
    """What an error reply to a poll means; several are required (`functions.poll.doubts`).

    The answer of an accepted batch is paid for. So no status and no code makes it fail, but for
    those that blame the request, and that of a withdrawn model.
    """
    verdict = _by_status(reply.status)
    if not reply.enveloped:
        return _PAGES_ON_A_POLL.get(verdict, ErrorClass.TRY_LATER)
    if own := _CODES_ON_A_POLL.get(reply.code or 0):
        return own
    if by_code := _by_code(reply):
        return ErrorClass.TRY_LATER if by_code in _OF_MODEL else by_code
    if reply.status == HTTPStatus.NOT_FOUND and reply.code not in _GATEWAYS_OWN:
        return ErrorClass.UNKNOWN_ID
    return ErrorClass.TRY_LATER if verdict in {ErrorClass.REQUEST, ErrorClass.MODEL} else verdict


def _by_code(reply: Rejected) -> ErrorClass | None:
    """What the API's own JSON means, if it says more than its HTTP status."""
    if not reply.enveloped:
        return None
    by_code = _CODES.get(reply.code or 0)
    if reply.code is None and reply.status in _OF_TOKEN:
        by_code = ErrorClass.ACCOUNT
    if (reply.code in {None, GENERIC} or by_code is None) and _QUEUE_UNSUPPORTED.match(
        reply.message
    ):
        return ErrorClass.MODEL
    return by_code


def _by_code_of_submit(reply: Rejected) -> ErrorClass | None:
    """The same of a submit: one reply ends a job, a server's error is no verdict on the model."""
    is_servers = (
        reply.status == HTTPStatus.REQUEST_TIMEOUT
        or reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    )
    if reply.enveloped and is_servers and _CODES.get(reply.code or 0) in _WITH_4XX:
        return ErrorClass.TRY_LATER
    return _by_code(reply)


def _by_status(status: int) -> ErrorClass:
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return ErrorClass.ACCOUNT
    return _STATUSES.get(status, ErrorClass.TRY_LATER)


def classify_with_valid_token(reply: Rejected, *, polling: bool) -> ErrorClass:
    """What an error of class `CHECK_TOKEN` means once the free call accepted the token."""
    if polling:
        return ErrorClass.TRY_LATER
    if reply.enveloped and reply.code == UNKNOWN_MODEL_OR_PATH:
        return ErrorClass.MODEL
    is_firewall = not reply.enveloped and reply.status == HTTPStatus.FORBIDDEN
    return ErrorClass.REQUEST if is_firewall else ErrorClass.TRY_LATER


def is_refused_for_references(reply: Rejected) -> bool:
    """Whether a batch was refused only because its records have references."""
    return reply.code == BAD_INPUT and _NO_REFERENCES.search(reply.message) is not None


def model_error_message(model: str, code: int) -> str:
    """Message for a user whose model cannot be used, with the fix."""
    return (
        f"Workers AI refuses the model {model} (code {code}). "
        f"{_MODEL_ADVICE.get(code, _OTHER_MODEL)}"
    )


def advice(code: int) -> str:
    """What to do about a code or status that calls have long been getting; 0: no connection."""
    return _ADVICE.get(code, "See the functions' logs, and Cloudflare's status page.")


def cause_of_pause(reply: Rejected) -> str:
    """What users read of a reply that pauses calls: its code, or what is wrong with the secret."""
    return ONE_A_STACK if reply.message == ONE_A_STACK else str(reply.code or reply.status)
