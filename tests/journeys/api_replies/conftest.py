"""Each row of the design's table of replies, on the whole path and over every transport that can carry it."""

import pytest

from tests.support.aws.resources import WAYS

NOT_OVER_AN_OLDER_WORKER = (
    # `retry-after`, the HTTP status of an unknown code, and replies that are no JSON stay behind such a binding.
    "as_long_as_retry_after_says",
    "id_api_lost",
    "resumes_automatically[older worker-error-40",
    "resumes_automatically[older worker-redirect",
    "fails_its_whole_job_and_no_other[older worker-bare",
    "with_any_code[older worker-bare",
    "burns_nothing[older worker-{'kind': 'bare'",
    "until_secret_is_changed",
    "billed_once[older worker-list",
)
"""Parts of the names of tests of what an AI binding without raw responses keeps from its caller."""
NOT_OVER_A_WORKER = ("changed_in_mid_job", "7000_is_believed")
"""The same for any Worker: the account's token does not reach its callers."""
SLOW = ["gateway", "worker", "older worker"]


@pytest.fixture(params=["rest", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def way(request, api):
    """Every row of the table over every transport that can carry it."""
    kept = NOT_OVER_A_WORKER if "worker" in request.param else ()
    if request.param == "older worker":
        api.switch(raw_response=False)
        kept += NOT_OVER_AN_OLDER_WORKER
    if any(part in request.node.name for part in kept):
        pytest.skip("the AI binding does not carry this")
    return WAYS[request.param.removeprefix("older ")]
