"""The server of OpenAI's API on moto: a bucket as in the template, and no functions."""

import openai
import pytest
from moto import mock_aws

from dropbatch.client.stack import Stack
from tests.support.aws.resources import BUCKET, client, make_resources, sign_in
from tests.support.journeys.openai_server import serving

KEY = "a-key-of-ours"


@pytest.fixture(scope="module")
def made():
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        sign_in(patch)
        make_resources()
        yield Stack("dropbatch", BUCKET, {"BucketName": BUCKET}, client)


@pytest.fixture(scope="module")
def served(made):
    with serving(made) as url:
        yield url


@pytest.fixture(scope="module")
def guarded(made):
    with serving(made, KEY) as url:
        yield url


@pytest.fixture
def s3(made):
    return client("s3")


@pytest.fixture
def stack(made, s3):
    yield made
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET)
    for page in pages:
        for entry in page.get("Versions", []) + page.get("DeleteMarkers", []):
            s3.delete_object(Bucket=BUCKET, Key=entry["Key"], VersionId=entry["VersionId"])


@pytest.fixture
def url(served, stack):
    return served


@pytest.fixture
def ai(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as ai:
        yield ai
