"""Make moto faster in this process, DynamoDB above all. What it stores, returns and rejects stays the same.

A call of DynamoDB or SQS goes straight to moto's handler, and a read or write of S3 objects to moto's objects
(`quick_s3`): HTTP, its headers and its routes take longer. The request is still checked against the service's model.
moto also creates objects only to measure their sizes, copies each value and each parsed expression with
`copy.deepcopy`, compares keys as objects when it sorts them, and parses expressions and names again at each call. It
looks for a request's service among two hundred, and makes that service's table of URLs anew. These are replaced.
"""

from __future__ import annotations

import json
import pickle
from collections import deque
from functools import cache
from typing import Any

from botocore.client import BaseClient
from botocore.useragent import UserAgentString
from botocore.validate import validate_parameters
from moto import backend_index
from moto.core import DEFAULT_ACCOUNT_ID, responses
from moto.core.base_backend import BaseBackend
from moto.core.exceptions import HTTPException, ServiceException
from moto.core.models import botocore_stubber
from moto.core.utils import camelcase_to_underscores
from moto.dynamodb import responses as dynamodb_responses
from moto.dynamodb.comparisons import ConditionExpressionParser
from moto.dynamodb.exceptions import ItemSizeTooLarge
from moto.dynamodb.models.dynamo_type import DynamoType, Item, LimitedSizeDict
from moto.dynamodb.models.table import Table
from moto.dynamodb.parsing import validators
from moto.dynamodb.parsing.ast_nodes import DepthFirstTraverser, Expression, Node, UpdateExpressionFunction
from moto.dynamodb.parsing.expressions import UpdateExpressionParser
from moto.sqs import models as sqs_models
from moto.sqs.responses import SQSResponse

from tests.support.aws import quick_s3

_send = BaseClient._make_api_call
_size_of_any_kind = DynamoType.size
_project = Item.project
_parse = UpdateExpressionParser.make
_lex = ConditionExpressionParser._lex_condition_expression
_urls_of = BaseBackend.urls
_snake_case = cache(camelcase_to_underscores)

DIRECT = {
    "dynamodb": {"BatchGetItem", "DeleteItem", "GetItem", "PutItem", "Query", "Scan", "UpdateItem"},
    "s3": set(quick_s3.ARGUMENTS),
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
"""Operations that do not go over HTTP. Those of DynamoDB and SQS contain no bytes here: JSON can copy them."""
SERVICES = {"s3", "sqs", "dynamodb", "events", "secretsmanager"}
"""The services that tests use."""
_MOST_BYTES = 405_000
"""moto's limit of an item."""


def install() -> None:
    """Replace moto's slow functions in this process."""
    BaseClient._make_api_call = _call
    DynamoType.size = _size
    DynamoType.__deepcopy__ = _copy
    DynamoType.__eq__, DynamoType.__ne__ = _is_same, _differs
    DynamoType.__hash__ = lambda value: hash((value.type, value.cast_value))
    Item.size = _item_size
    Item.__deepcopy__ = _copy_item
    Item.__init__ = _make_item
    LimitedSizeDict.__setitem__ = _set_limited
    Table.all_items = _all_items
    Item.project = _project_item
    UpdateExpressionParser.make = _parse_copy
    validators.deepcopy = _copy_tree
    ConditionExpressionParser._lex_condition_expression = lambda parser: deque(_lexed(parser.condition_expression))
    dynamodb_responses.dynamo_to_dict = _plain
    responses.camelcase_to_underscores = sqs_models.camelcase_to_underscores = _snake_case
    responses.method_names_from_class = cache(responses.method_names_from_class)
    UserAgentString.to_string = lambda _: "tests"
    backend_index.backend_url_patterns.sort(key=lambda one: one[0] not in SERVICES)
    BaseBackend.urls = property(lambda backend: _urls(backend.__class__))
    DepthFirstTraverser.traverse_node_recursively = _traverse
    Node.find_clauses = _find_clauses


def _call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    """What `client` would get over HTTP if it calls moto's DynamoDB, S3 or SQS."""
    meta = client.meta
    at_moto = botocore_stubber.enabled and meta.endpoint_url.endswith(".amazonaws.com")
    service = meta.service_model.service_name
    if not at_moto or operation not in DIRECT.get(service, ()):
        return _send(client, operation, arguments)
    validate_parameters(arguments, meta.service_model.operation_model(operation).input_shape)
    metadata = {"RequestId": "tests", "HTTPStatusCode": 200, "HTTPHeaders": {}, "RetryAttempts": 0}
    if service != "dynamodb":
        answer = quick_s3.answer(client, operation, arguments) if service == "s3" else _sqs(meta, operation, arguments)
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


def _sqs(meta: Any, operation: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """What SQS answers; None if it rejects the call: over HTTP it does so again, and botocore raises its exception."""
    handler = SQSResponse()
    handler.current_account, handler.region, handler.uri = DEFAULT_ACCOUNT_ID, meta.region_name, meta.endpoint_url
    handler.params, handler.uri_match = json.loads(json.dumps(arguments)), {}
    try:
        result = getattr(handler, _snake_case(operation))().result
    except ServiceException:
        return None
    answer: dict[str, Any] = json.loads(json.dumps(result or {}))
    return answer


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
def _is_a(kind: Any, wanted: Any) -> bool:
    """`issubclass`, which takes long where metaclasses are abstract."""
    return issubclass(kind, wanted)


@cache
def _processor(traverser: Any, kind: Any) -> Any:
    """The method of a traverser that processes a kind of node; None if none does."""
    methods = traverser.__new__(traverser)._processing_map().items()
    return next((method.__func__ for wanted, method in methods if issubclass(kind, wanted)), None)


def _traverse(traverser: Any, node: Any, position: int = -1) -> Any:
    kind: Any = type(node)
    of: Any = type(traverser)
    if not _is_a(kind, Node):
        return node
    parent = node.parent
    prepares = of.pre_processing_of_child is not DepthFirstTraverser.pre_processing_of_child
    for at, child in enumerate(node.children or ()):
        if prepares:
            traverser.pre_processing_of_child(node, at)
        if not isinstance(child, str):
            _traverse(traverser, child, at)
    if process := _processor(of, kind):
        node = process(traverser, node)
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
def _lexed(expression: str) -> tuple[Any, ...]:
    return tuple(_lex(ConditionExpressionParser(expression, {}, {})))


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


def _is_same(value: DynamoType, other: DynamoType) -> bool:
    if value.type != other.type:
        return False
    return bool(value.value == other.value if value.type == "S" else value.cast_value == other.cast_value)


def _differs(value: DynamoType, other: DynamoType) -> bool:
    return not _is_same(value, other)


def _all_items(table: Table) -> list[Item]:
    """Every item, sorted by its keys."""
    if not table.range_key_attr:
        alone: Any = table.items.values()
        return sorted(alone, key=lambda item: item.hash_key.cast_value)
    found: list[Any] = [item for items in table.items.values() for item in items.values()]
    return sorted(found, key=lambda item: (item.hash_key.cast_value, item.range_key.cast_value))


def _make_item(item: Item, hash_key: DynamoType, range_key: DynamoType | None, attrs: dict[str, Any]) -> None:
    item.hash_key, item.range_key, item.attrs = hash_key, range_key, LimitedSizeDict()
    dict.update(item.attrs, {name: DynamoType(value) for name, value in attrs.items()})
    if item.size() > _MOST_BYTES:
        raise ItemSizeTooLarge


def _copy_item(item: Item, _memo: object = None) -> Any:
    copied = Item.__new__(Item)
    copied.hash_key, copied.range_key, copied.attrs = item.hash_key, item.range_key, LimitedSizeDict()
    dict.update(copied.attrs, {name: _copy(value) for name, value in item.attrs.items()})
    return copied


def _set_limited(attributes: LimitedSizeDict, name: str, value: DynamoType) -> None:
    if sum(_bytes(key) + _size(held) for key, held in (*attributes.items(), (name, value))) > _MOST_BYTES:
        raise ItemSizeTooLarge
    dict.__setitem__(attributes, name, value)


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
