"""Each row of the design's table of replies.

On the whole path and over every transport that can carry it.
"""

import pytest

from tests.support.aws.resources import WAYS

NOT_OVER_AN_OLDER_WORKER = (
    # `retry-after`, the HTTP status of an unknown code, and replies that are no JSON stay behind
    # such a binding.
    "as_long_as_retry_after_says",
    "resumes_automatically[older worker-error-40",
    "fails_its_whole_job_and_no_other[older worker-bare",
    "fails_its_whole_job_and_no_other[older worker-error-424242",
    "until_secret_is_changed",
    "billed_once[older worker-list",
    "no_verdict_on_records[older worker",
    "in_spite_of_an_error_is_counted[older worker-5007",
    "in_spite_of_an_error_is_counted[older worker-7000",
    "divide_no_running_batch[older worker",
    "cost_no_answer[older worker-2021",
    "cost_no_answer[older worker-2041",
    "counts_only_if_it_is_whole[older worker",
    "end_no_running_batch[older worker-5006",
)
"""Parts of the names of tests of what an AI binding without raw responses keeps from its caller."""
SLOW = ["gateway", "worker", "older worker"]


@pytest.fixture(params=["rest", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def way(request, api):
    """Every row of the table over every transport that can carry it."""
    if request.param == "older worker":
        api.switch(raw_response=False)
        if any(part in request.node.name for part in NOT_OVER_AN_OLDER_WORKER):
            pytest.skip("the AI binding does not carry this")
    return WAYS[request.param.removeprefix("older ")]
