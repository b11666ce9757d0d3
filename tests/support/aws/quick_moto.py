"""Make moto faster in this process. What it stores, returns and rejects stays the same.

A call of SQS, EventBridge or Secrets Manager goes straight to moto's handler, one of S3 to moto's
objects (`quick_s3`), and one of DynamoDB to a simulated table (`quick_dynamodb`): HTTP, its headers
and its routes take longer. Requests are still checked against the service's model, each form of
them once. moto also
looks for a request's service among two hundred, makes that service's table of URLs and the names of
its methods anew, prepares for another HTTP client than botocore's, reads the same JSON path for
each event, and takes the time from a calendar.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import jsonpath_ng.ext
from botocore.client import BaseClient
from botocore.useragent import UserAgentString
from botocore.validate import validate_parameters
from moto import backend_index
from moto.core import DEFAULT_ACCOUNT_ID, responses
from moto.core.base_backend import BaseBackend
from moto.core.exceptions import JsonRESTError, ServiceException
from moto.core.models import RESPONSES_METHODS, botocore_stubber
from moto.core.utils import camelcase_to_underscores
from moto.events.responses import EventsHandler
from moto.secretsmanager.responses import SecretsManagerResponse
from moto.sqs import models as sqs_models
from moto.sqs.responses import SQSResponse

from tests.support.aws import quick_dynamodb, quick_s3

_send = BaseClient._make_api_call
_urls_of = BaseBackend.urls
_snake_case = cache(camelcase_to_underscores)

DIRECT = {
    "cloudformation": {"DescribeStacks"},
    "dynamodb": {*quick_dynamodb.OPERATIONS, "CreateTable", "Scan"},
    "s3": set(quick_s3.ARGUMENTS),
    "events": {"PutEvents", "PutRule", "PutTargets"},
    "secretsmanager": {"CreateSecret", "GetSecretValue"},
    "sqs": {
        "ChangeMessageVisibility",
        "CreateQueue",
        "DeleteMessage",
        "GetQueueAttributes",
        "ReceiveMessage",
        "SendMessage",
        "SendMessageBatch",
    },
}
"""Operations that do not go over HTTP. Those of `HANDLERS` contain no bytes: JSON can copy them."""
SERVICES = {"s3", "sqs", "dynamodb", "events", "secretsmanager"}
"""The services that tests use."""


def install() -> None:
    """Replace moto's slow functions in this process."""
    BaseClient._make_api_call = _call
    responses.camelcase_to_underscores = sqs_models.camelcase_to_underscores = _snake_case
    responses.method_names_from_class = cache(responses.method_names_from_class)
    sqs_models.unix_time = time.time
    sqs_models.unix_time_millis = _milliseconds
    UserAgentString.to_string = lambda _: "tests"
    backend_index.backend_url_patterns.sort(key=lambda one: one[0] not in SERVICES)
    BaseBackend.urls = property(lambda backend: _urls(backend.__class__))
    RESPONSES_METHODS.clear()
    jsonpath_ng.ext.parse = cache(jsonpath_ng.ext.parse)


def _milliseconds() -> float:
    return time.time() * 1_000


def _call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    """What `client` would get over HTTP."""
    meta = client.meta
    at_moto = botocore_stubber.enabled and meta.endpoint_url.endswith(".amazonaws.com")
    service = meta.service_model.service_name
    if not at_moto or operation not in DIRECT.get(service, ()):
        return _send(client, operation, arguments)
    _validate(meta.service_model, operation, arguments)
    answers = ANSWERS.get(service)
    answer = answers(client, operation, arguments) if answers else None
    if answer is None:
        return _send(client, operation, arguments)
    status = 206 if "ContentRange" in answer else 200
    metadata = {
        "RequestId": "tests",
        "HTTPStatusCode": status,
        "HTTPHeaders": {},
        "RetryAttempts": 0,
    }
    return {**answer, "ResponseMetadata": metadata}


_valid: set[tuple[str, str, Any]] = set()
"""Calls that were checked: their services, operations, and what `_form` says of their arguments."""


def _validate(service: Any, operation: str, arguments: dict[str, Any]) -> None:
    """Check arguments against the service's model, unless others of the same form were right."""
    checked = service.service_name, operation, _form(arguments)
    if checked not in _valid:
        validate_parameters(arguments, service.operation_model(operation).input_shape)
        _valid.add(checked)


def _form(value: Any) -> Any:
    """All that the models look at: names, types, numbers, and whether a text is empty."""
    if isinstance(value, dict):
        return tuple([(name, _form(member)) for name, member in value.items()])
    if isinstance(value, list):
        return frozenset(map(_form, value)), len(value)
    return type(value), value if isinstance(value, int) else not value


def _json(client: Any, operation: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """What a service that talks JSON answers."""
    meta, asked = client.meta, json.dumps(arguments, default=datetime.timestamp)
    handler = HANDLERS[meta.service_model.service_name]()
    handler.current_account, handler.region, handler.uri = (
        DEFAULT_ACCOUNT_ID,
        meta.region_name,
        meta.endpoint_url,
    )
    handler.params, handler.body, handler.querystring, handler.uri_match = (
        json.loads(asked),
        asked,
        {},
        {},
    )
    handler.response_headers = {}
    try:
        told = getattr(handler, _snake_case(operation))()
    except (JsonRESTError, ServiceException):
        return None
    text = told[0] if isinstance(told, tuple) else told
    answer: dict[str, Any] = json.loads(
        text if isinstance(text, str) else json.dumps(text.result or {})
    )
    answer.pop("CreatedDate", None)
    return None if "SecretBinary" in answer else answer


HANDLERS: dict[str, Callable[[], Any]] = {
    "events": EventsHandler,
    "secretsmanager": SecretsManagerResponse,
    "sqs": SQSResponse,
}
ANSWERS: dict[str, Callable[[Any, str, dict[str, Any]], dict[str, Any] | None]] = {
    "dynamodb": quick_dynamodb.answer,
    "s3": quick_s3.answer,
    **dict.fromkeys(HANDLERS, _json),
}
"""What answers a call of a service; over HTTP if that is None."""


@cache
def _urls(kind: Any) -> dict[str, Any]:
    return dict(_urls_of.fget(kind.__new__(kind)))
