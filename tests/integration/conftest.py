"""The template's table and a bucket on moto: between a single module and the whole path."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from moto import mock_aws

from tests.support.aws import quick_moto
from tests.support.aws.resources import client, limit_s3, make_table, sign_in
from tests.support.doubles.polled_batch import PolledBatch
from tests.support.doubles.visited_jobs import Visited

quick_moto.install()


@pytest.fixture(autouse=True)
def _limits_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test calls, S3 rejects what is beyond its limits."""
    limit_s3(monkeypatch)


@pytest.fixture(scope="module")
def table() -> Iterator[Any]:
    """DynamoDB with the template's table and an empty bucket."""
    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        sign_in(patch)
        make_table("table")
        client("s3").create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
        )
        yield client("dynamodb")


@pytest.fixture
def polled(table: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PolledBatch]:
    """Make a batch that the API has accepted; every random wait has its mean length."""
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    return partial(PolledBatch, table)


@pytest.fixture
def visited(table: Any) -> Visited:
    """Jobs that are visited one by one."""
    return Visited(table)
