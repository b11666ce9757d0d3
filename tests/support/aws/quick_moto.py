"""Make moto faster in this process, DynamoDB above all. What it stores, returns and rejects stays the same.

A DynamoDB call goes straight to moto's handler, and a read or write of an S3 object to moto's objects (`quick_s3`):
HTTP, its headers and its routes take longer. The request is still checked against the service's model. moto also
creates objects only to measure their sizes, copies each value and each parsed expression with `copy.deepcopy`, and
parses expressions and names again at each call. It looks for a request's service among two hundred, and makes that
service's table of URLs anew. These functions are replaced.
"""

from __future__ import annotations

import json
import pickle
from functools import cache
from typing import Any

from botocore.client import BaseClient
from botocore.useragent import UserAgentString
from botocore.validate import validate_parameters
from moto import backend_index
from moto.core import DEFAULT_ACCOUNT_ID, responses
from moto.core.base_backend import BaseBackend
from moto.core.exceptions import HTTPException
from moto.core.models import botocore_stubber
from moto.core.utils import camelcase_to_underscores
from moto.dynamodb import responses as dynamodb_responses
from moto.dynamodb.models.dynamo_type import DynamoType, Item
from moto.dynamodb.parsing import validators
from moto.dynamodb.parsing.ast_nodes import DepthFirstTraverser, Expression, Node, UpdateExpressionFunction
from moto.dynamodb.parsing.expressions import UpdateExpressionParser
from moto.sqs import models as sqs_models

from tests.support.aws import quick_s3

_send = BaseClient._make_api_call
_size_of_any_kind = DynamoType.size
_project = Item.project
_parse = UpdateExpressionParser.make
_urls_of = BaseBackend.urls
_snake_case = cache(camelcase_to_underscores)

DIRECT = {
    "dynamodb": {"BatchGetItem", "DeleteItem", "GetItem", "PutItem", "Query", "Scan", "UpdateItem"},
    "s3": set(quick_s3.ARGUMENTS),
}
"""Operations that do not go over HTTP. Those of DynamoDB contain no bytes here, so that they can be copied as JSON."""
SERVICES = {"s3", "sqs", "dynamodb", "events", "secretsmanager"}
"""The services that tests use."""


def install() -> None:
    """Replace moto's slow functions in this process."""
    BaseClient._make_api_call = _call
    DynamoType.size = _size
    DynamoType.__deepcopy__ = _copy
    Item.size = _item_size
    Item.project = _project_item
    UpdateExpressionParser.make = _parse_copy
    validators.deepcopy = _copy_tree
    dynamodb_responses.dynamo_to_dict = _plain
    responses.camelcase_to_underscores = sqs_models.camelcase_to_underscores = _snake_case
    responses.method_names_from_class = cache(responses.method_names_from_class)
    UserAgentString.to_string = lambda _: "tests"
    backend_index.backend_url_patterns.sort(key=lambda one: one[0] not in SERVICES)
    BaseBackend.urls = property(lambda backend: _urls(backend.__class__))
    DepthFirstTraverser.traverse_node_recursively = _traverse
    Node.find_clauses = _find_clauses


def _call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    """What `client` would get over HTTP if it calls moto's DynamoDB or S3."""
    meta = client.meta
    at_moto = botocore_stubber.enabled and meta.endpoint_url.endswith(".amazonaws.com")
    service = meta.service_model.service_name
    if not at_moto or operation not in DIRECT.get(service, ()):
        return _send(client, operation, arguments)
    validate_parameters(arguments, meta.service_model.operation_model(operation).input_shape)
    metadata = {"RequestId": "tests", "HTTPStatusCode": 200, "HTTPHeaders": {}, "RetryAttempts": 0}
    if service == "s3":
        answer = quick_s3.answer(operation, arguments)
        if answer is None:
            return _send(client, operation, arguments)
        return {**answer, "ResponseMetadata": metadata | {"HTTPStatusCode": 206 if "ContentRange" in answer else 200}}
    handler = dynamodb_responses.DynamoHandler()
    handler.current_account, handler.region = DEFAULT_ACCOUNT_ID, meta.region_name
    handler.body = json.loads(json.dumps(arguments))
    try:
        result = getattr(handler, _snake_case(operation))().result
    except HTTPException as error:
        raise _refusal(client, operation, error, metadata) from None
    return {**json.loads(json.dumps(result)), "ResponseMetadata": metadata}


def _refusal(client: Any, operation: str, error: HTTPException, metadata: dict[str, Any]) -> Exception:
    """The exception that botocore would raise for moto's."""
    described = json.loads(error.description or "{}")
    code = described["__type"].rpartition("#")[2]
    message = described.get("message") or described.get("Message", "")
    reply = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {**metadata, "HTTPStatusCode": error.code},
    }
    if "Item" in described:
        reply["Item"] = described["Item"]
    refusal: Exception = client.exceptions.from_code(code)(reply, operation)
    return refusal


@cache
def _urls(kind: Any) -> dict[str, Any]:
    return dict(_urls_of.fget(kind.__new__(kind)))


@cache
def _is_wanted(traverser: Any, kind: Any) -> bool:
    return issubclass(kind, tuple(traverser.__new__(traverser)._processing_map()))


@cache
def _is_a(kind: Any, wanted: Any) -> bool:
    """`issubclass`, which takes long where metaclasses are abstract."""
    return issubclass(kind, wanted)


def _traverse(traverser: Any, node: Any, position: int = -1) -> Any:
    kind: Any = type(node)
    if not _is_a(kind, Node):
        return node
    parent = node.parent
    for at, child in enumerate(node.children or ()):
        traverser.pre_processing_of_child(node, at)
        _traverse(traverser, child, at)
    if _is_wanted(traverser.__class__, kind):
        node = traverser.process(node)
        node.parent = parent
        if parent:
            parent.children[position] = node
    return node


def _find_clauses(node: Node, wanted: list[type]) -> list[Node]:
    found = []
    for child in node.children or ():
        kind: Any = type(child)
        if kind in wanted:
            found.append(child)
        elif _is_a(kind, Expression) or _is_a(kind, UpdateExpressionFunction):
            found += _find_clauses(child, wanted)
    return found


def _copy_tree(tree: Any) -> Any:
    return pickle.loads(pickle.dumps(tree))


def _parse_copy(expression: str) -> Any:
    return pickle.loads(_parsed(expression))


@cache
def _parsed(expression: str) -> bytes:
    """A parsed expression, pickled: moto changes the tree that it executes."""
    return pickle.dumps(_parse(expression))


def _plain(value: Any) -> Any:
    if isinstance(value, DynamoType):
        return {value.type: _plain(value.value)}
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return _plain(value.to_json()) if hasattr(value, "to_json") else value


def _size(value: Any) -> int:
    if not isinstance(value, DynamoType):
        value = DynamoType(value)
    match value.type:
        case "S":
            return _bytes(value.value)
        case "N":
            return len(str(value.value))
        case "L":
            return sum(map(_size, value.value))
        case "M":
            return sum(_bytes(name) + _size(member) for name, member in value.value.items())
        case _:
            return _size_of_any_kind(value)


def _project_item(item: Item, paths: list[list[str]]) -> Item:
    if any(len(path) > 1 for path in paths):
        return _project(item, paths)
    projected = Item(item.hash_key, item.range_key, {})
    dict.update(projected.attrs, {name: item.attrs[name] for (name,) in paths if name in item.attrs})
    return projected


def _item_size(item: Item) -> int:
    return sum(_bytes(name) + _size(value) for name, value in item.attrs.items())


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _copy(value: DynamoType, _memo: object = None) -> DynamoType:
    copied = DynamoType.__new__(DynamoType)
    copied.type = value.type
    copied.value = _copy_of(value.value)
    return copied


def _copy_of(content: Any) -> Any:
    if isinstance(content, DynamoType):
        return _copy(content)
    if isinstance(content, list):
        return [_copy_of(member) for member in content]
    if isinstance(content, dict):
        return {name: _copy_of(member) for name, member in content.items()}
    return content
