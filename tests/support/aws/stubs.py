"""Clients of AWS services that return what a test sets.

And reject a call that it did not expect.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import boto3
from botocore.stub import Stubber

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def stubbed(service: str) -> Iterator[Stubber]:
    """A stub of one service; in the end each of its answers must have been used."""
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    with Stubber(boto3.client(service, region_name="eu-west-1", **keys)) as stub:  # type: ignore[call-overload] # known at run time
        yield stub
        stub.assert_no_pending_responses()
