"""Each row of the design's table of replies, on the whole path and over every transport that can carry it."""

import pytest

from tests.support.resources import WAYS

NOT_OVER_A_WORKER = (
    # `retry-after`, the HTTP status of an unknown code, and replies that are no JSON stay behind the AI binding.
    "wait_as_long_as_retry_after_says",
    "id_the_api_lost",
    "resumes_automatically[worker-error-40",
    "resumes_automatically[worker-redirect",
    "fails_its_whole_job_and_no_other[worker-bare",
    "whatever_the_code[worker-bare",
    "burns_nothing[worker-{'kind': 'bare'",
    # The REST API's own form and its token do not reach the Worker's callers.
    "'envelope': False",
    "until_the_secret_is_changed",
    "changed_in_mid_job",
    "7000_is_believed",
)
"""Parts of the names of tests of what the AI binding keeps from its caller."""


@pytest.fixture(
    params=["rest", pytest.param("gateway", marks=pytest.mark.slow), pytest.param("worker", marks=pytest.mark.slow)]
)
def way(request):
    """Every row of the table over every transport that can carry it."""
    if request.param == "worker" and any(part in request.node.name for part in NOT_OVER_A_WORKER):
        pytest.skip("the AI binding does not carry this")
    return WAYS[request.param]
