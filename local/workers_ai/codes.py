"""The error codes of Workers AI and of the API edge: HTTP status and message of each.

This module makes no decisions.

The table of Cloudflare's own documentation comes first, then what clients of the live API have
reported, then what the edge returns before Workers AI is called. Messages are retyped; only their
codes and their gist are evidence.
"""

from typing import NamedTuple


class ApiError(NamedTuple):
    status: int
    code: int
    message: str


_TABLE = (
    # Documented in the Workers AI error table.
    ApiError(400, 3003, "AiError: Incomplete request: missing headers or body"),
    ApiError(413, 3006, "AiError: Request too large"),
    ApiError(408, 3007, "AiError: Timeout"),
    ApiError(408, 3008, "AiError: Aborted"),
    ApiError(403, 3023, "AiError: Account blocked"),
    ApiError(
        429,
        3036,
        "AiError: you have used up your daily free allocation of 10,000 neurons, please upgrade to "
        "Cloudflare's Workers Paid plan if you would like to continue usage.",
    ),
    ApiError(400, 3039, "AiError: Finetune is missing required files"),
    ApiError(429, 3040, "AiError: Capacity temporarily exceeded, please try again."),
    ApiError(403, 3041, "AiError: This account is not allowed to access this model"),
    ApiError(404, 3042, "AiError: Invalid model ID"),
    ApiError(400, 5004, "AiError: Invalid data type for base64 input"),
    ApiError(405, 5005, "AiError: The model does not support LoRA"),
    ApiError(400, 5007, "AiError: No such model or task"),
    ApiError(403, 5016, "AiError: Model agreement: the terms of this model have not been accepted"),
    ApiError(403, 5018, "AiError: This account is not allowed to access this model"),
    ApiError(405, 5019, "AiError: Deprecated SDK version"),
    ApiError(403, 5035, "AiError: This model requires the Workers Paid plan"),
    # Observed; the HTTP statuses of 3030, 3046, 3050, 4006 and 5025 are not known.
    ApiError(429, 3021, "AiError: rate limiting: inference request per min rate reached"),
    ApiError(400, 3030, "AiError: 1 validation error for VllmBatchRequest"),
    ApiError(408, 3046, "AiError: Request timeout"),
    ApiError(503, 3050, "AiError: Temporarily out of capacity for this model"),
    ApiError(429, 4006, "AiError: you have used up your daily free allocation"),
    ApiError(500, 5001, "AiError: Model execution failed"),
    ApiError(400, 5006, "AiError: Bad input"),
    ApiError(400, 5025, "AiError: This model does not support JSON Schema"),
    ApiError(400, 5028, "AiError: This model was deprecated on 2026-05-30"),
    ApiError(400, 8007, "AiError: This model does not support request queuing"),
    # AI Gateway: documented, but for 2001, 2003, 2009 and 2041, which were observed.
    ApiError(400, 2001, "Please configure AI Gateway in the Cloudflare dashboard"),
    ApiError(429, 2003, "Rate limited"),
    ApiError(401, 2009, "Unauthorized"),
    ApiError(424, 2016, "Prompt blocked due to security configurations"),
    ApiError(424, 2017, "Response blocked due to security configurations"),
    ApiError(402, 2021, "Insufficient credits: add credits to the account to continue"),
    ApiError(424, 2029, "Request content blocked due to DLP policy violations"),
    ApiError(424, 2030, "Response content blocked due to DLP policy violations"),
    ApiError(429, 2041, "Spend limit exceeded"),
    ApiError(503, 7013, "Internal Error"),
    # Queues: 10104, 10204 and 10207 are documented, 11000, 11004 and 11009 were observed, the
    # others are invented.
    ApiError(404, 10104, "Queue does not exist"),
    ApiError(400, 10204, "Message size out of bounds"),
    ApiError(400, 10207, "Request JSON body does not match expected schema"),
    ApiError(404, 11000, "workers.api.error.queue_not_found"),
    ApiError(404, 11003, "workers.api.error.consumer_not_found"),
    ApiError(409, 11004, "workers.api.error.consumer_exists"),
    ApiError(409, 11009, "Queue name is already taken. Please use a different name and try again."),
    ApiError(400, 11015, "The queue has no HTTP pull consumer"),
    ApiError(404, 11901, "Subscription does not exist"),
    ApiError(409, 11902, "A subscription for this source exists already"),
    # The API edge.
    ApiError(429, 971, "Please wait and consider throttling your request speed"),
    ApiError(400, 6003, "Invalid request headers"),
    ApiError(400, 7000, "No route for that URI"),
    ApiError(405, 7001, "GET not supported for requested URI."),
    ApiError(
        404,
        7003,
        "Could not route to the requested URI, perhaps your object identifier is invalid?",
    ),
    ApiError(503, 7010, "Service unavailable"),
    ApiError(400, 9106, "Authentication failed (status: 400)"),
    ApiError(403, 9109, "Unauthorized to access requested resource"),
    ApiError(401, 10000, "Authentication error"),
    ApiError(500, 10013, "Unknown internal error"),
)
KNOWN = {error.code: error for error in _TABLE}
GATEWAYS_OWN = range(2000, 3000)
"""Codes that AI Gateway reports in a form of its own."""
CODES_WHEN_ACCEPTED = (10013, 5001, 3007, 3046, 7010, 3003, 3030)
"""Codes of errors that answer a submit although it was carried out."""
STATUS_WHEN_ACCEPTED = {5001: 504, 3046: 502, 3003: 500, 3030: 502}
"""HTTP statuses of such errors, where they are not the code's usual one."""


def error(code: int, message: str = "", status: int = 0) -> ApiError:
    """The error with this code; a message or status given here replaces the table's."""
    known = KNOWN.get(code, ApiError(500, code, f"AiError: error {code}"))
    return ApiError(status or known.status, code, message or known.message)
