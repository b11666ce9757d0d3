"""The server of OpenAI's API on moto: a bucket as in the template, and no functions."""

import openai
import pytest
from moto import mock_aws

from dropbatch.client.stack import Stack
from tests.support.aws.resources import BUCKET, REGION, client, make_resources
from tests.support.journeys.openai_server import serving


@pytest.fixture
def stack(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        make_resources()
        yield Stack("dropbatch", BUCKET, {"BucketName": BUCKET}, client)


@pytest.fixture
def s3(stack):
    return client("s3")


@pytest.fixture
def url(stack):
    with serving(stack) as url:
        yield url


@pytest.fixture
def ai(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as ai:
        yield ai
