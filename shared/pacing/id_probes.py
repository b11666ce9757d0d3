"""Probes of whether the API knows the ids that it gives: one control item for each model of an account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import ConditionFailedError, Table
from shared.pacing.controls import control_key

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class IdProbe:
    """The last probe of a model: a batch that was submitted again because its id was not known.

    Attributes:
        tried_at: when it was tried, or its own id was not known, Unix seconds; 0 if never.
        known_at: when the API knew its id, Unix seconds; 0 if never.
    """

    tried_at: float = 0.0
    known_at: float = 0.0


class IdProbes(Table):
    """The probes' control items. Nothing deletes them: their number is that of models and accounts."""

    def last(self, account: str, model: str) -> IdProbe:
        """The last probe of a model.

        Raises:
            StorageError: DynamoDB failed.
        """
        item = self.get(_key(account, model)) or {}
        return IdProbe(
            **{name: float(item[name]["N"]) for name in ("tried_at", "known_at") if "N" in item.get(name, {})}
        )

    def begin(self, account: str, model: str, last: IdProbe, now: float) -> bool:
        """Note that a probe is tried; False if another one was since `last` was read.

        Raises:
            StorageError: DynamoDB failed.
        """
        if not last.tried_at:
            return self._note(account, model, "tried_at", now, "attribute_not_exists(tried_at)")
        seen = {":seen": attribute(last.tried_at)}
        return self._note(account, model, "tried_at", now, "tried_at = :seen", seen)

    def note_unknown(self, account: str, model: str, now: float) -> None:
        """Note that the probe's own id is not known.

        Raises:
            StorageError: DynamoDB failed.
        """
        self._note(account, model, "tried_at", now)

    def note_known(self, account: str, model: str, now: float) -> None:
        """Note that the API knows the probe's id.

        Raises:
            StorageError: DynamoDB failed.
        """
        self._note(account, model, "known_at", now)

    def _note(
        self,
        account: str,
        model: str,
        name: str,
        now: float,
        condition: str = "",
        values: Mapping[str, Any] | None = None,
    ) -> bool:
        try:
            self.call(
                "update_item",
                Key=_key(account, model),
                UpdateExpression=f"SET {name} = :now",
                ExpressionAttributeValues={":now": attribute(now), **(values or {})},
                **({"ConditionExpression": condition} if condition else {}),
            )
        except ConditionFailedError:
            return False
        return True


def _key(account: str, model: str) -> dict[str, Any]:
    return control_key(f"LOST#{account}#{model}")
