"""The stack's own list of models: read for what is sent, and replaced by an operator."""

from __future__ import annotations

from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from dropbatch.client import aws
from dropbatch.core import names
from dropbatch.core.formats.catalog_reader import MAX_STORED_BYTES, CatalogError, stack_catalog
from dropbatch.core.models import Catalog, catalog
from dropbatch.errors import Error, NotPermitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.client.stack import Stack

KEYS_AT_ONCE = 100
"""The most items that DynamoDB reads in one call."""
SHIPPED = "shipped with this version"


class Known(NamedTuple):
    """What a stack knows of models.

    Attributes:
        catalog: its own list, or what is shipped.
        origin: where it is from, in words.
        trouble: why its own list is not used; empty if it is, or if there is none.
        etag: of its own list, with quotes; empty if there is none, or it may not be read.
    """

    catalog: Catalog
    origin: str = SHIPPED
    trouble: str = ""
    etag: str = ""


def known_models(stack: Stack) -> Known:
    """What a stack knows of models.

    Raises:
        Error: S3 cannot be reached.
    """
    try:
        found = stack.ask("get_object", names.CATALOG)
    except NotPermitted as error:
        return Known(catalog(), trouble=f"{names.CATALOG} may not be read: {error}")
    if found is None:
        return Known(catalog())
    with aws.explained(), closing(found["Body"]) as body:
        content = body.read(MAX_STORED_BYTES + 1)
    try:
        known = stack_catalog(content)
    except CatalogError as error:
        return Known(catalog(), trouble=f"{names.CATALOG} is not used: {error}", etag=found["ETag"])
    if known is catalog():
        return Known(
            known,
            trouble=f"{names.CATALOG} is older than what is shipped. Refresh it.",
            etag=found["ETag"],
        )
    return Known(known, "this stack's list", etag=found["ETag"])


def store_list(stack: Stack, content: bytes, etag: str) -> None:
    """Replace the stack's list, unless somebody else has replaced it since it was read.

    Args:
        stack: the stack.
        content: as `stored_list` made it.
        etag: of the list that is replaced; empty if there was none.

    Raises:
        NotPermitted: only operators may do this.
        Error: another refresh was quicker.
    """
    from botocore.exceptions import ClientError

    condition: dict[str, Any] = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
    with aws.explained():
        try:
            stack.s3.put_object(
                Bucket=stack.bucket,
                Key=names.CATALOG,
                Body=content,
                ContentType="application/json",
                **condition,
            )
        except ClientError as error:
            if error.response["Error"]["Code"] in {
                "PreconditionFailed",
                "412",
                "ConditionalRequestConflict",
                "409",
            }:
                raise Error(
                    "Somebody else refreshed the list at the same time: theirs counts."
                ) from error
            raise


# ── what the stack has learned by itself ──────────────────────────────────────────────────────────


class Typical(NamedTuple):
    """Medians of a model's last batches.

    Seconds from acceptance to the answer, and tokens of one answer.

    None where nothing is known.
    """

    seconds: float | None = None
    answer_tokens: float | None = None


def typical_batches(stack: Stack, model_ids: Sequence[str]) -> dict[str, Typical]:
    """What the stack has learned of models by itself; without those of which nothing is known.

    Only operators may read this; others are told nothing.
    """
    found: dict[str, Typical] = {}
    table, wanted = (
        stack.outputs.get("TableName", ""),
        [names.completion_times(one) for one in model_ids],
    )
    try:
        with aws.explained():
            for start in range(0, len(wanted) if table else 0, KEYS_AT_ONCE):
                some = [
                    {"pk": {"S": pk}, "sk": {"S": sk}}
                    for pk, sk in wanted[start : start + KEYS_AT_ONCE]
                ]
                answer = stack.client("dynamodb").batch_get_item(
                    RequestItems={table: {"Keys": some}}
                )
                for item in answer["Responses"].get(table, []):
                    found[item["sk"]["S"].rpartition("#")[2]] = _typical(item)
    except NotPermitted:
        return {}
    return found


def _typical(item: dict[str, Any]) -> Typical:
    """The medians of an item.

    Of bounds (when a batch was last seen pending, and first seen finished), and lengths.
    """
    values = {
        kind: [value for name, value in item.items() if name[:1] == kind and name[1:].isdigit()]
        for kind in "ab"
    }
    seconds = [
        (float(after["N"]) + float(by["N"])) / 2
        for after, by, *_ in (value["L"] for value in values["b"] if "L" in value)
    ]
    tokens = [float(value["N"]) for value in values["a"] if "N" in value]
    return Typical(median(seconds) if seconds else None, median(tokens) if tokens else None)
