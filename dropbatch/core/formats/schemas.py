"""What the schemas of Workers AI's models take.

Members and their ranges, as Cloudflare publishes them for batches.

Read on 2026-11-22 from the models' pages at https://developers.cloudflare.com/workers-ai/models/.
Where a model's batch schema does not name a member that its schema for a single request names, the
range of the single request holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Limits(NamedTuple):
    """Values that a member may have.

    Attributes:
        least: the smallest number; None for a member that is no number.
        most: the largest.
        whole: whether only integers are numbers here.
        words: strings that it may be, none if it must be left out; None for a number.
        aliases: strings that are sent as another one.
    """

    least: float | None = None
    most: float | None = None
    whole: bool = False
    words: tuple[str, ...] | None = None
    aliases: Mapping[str, str] = MappingProxyType({})

    def accepts(self, value: object) -> bool:
        """Whether a value is within the limits."""
        if self.words is not None:
            return value in self.words
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def text(self) -> str:
        """The limits in words, after "It must be"."""
        if self.words is not None:
            return f"one of {', '.join(self.words)}" if self.words else "left out"
        kind = "an integer" if self.whole else "a number"
        return kind if self.least is None else f"{kind} from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Schema:
    """What one family of models takes.

    Attributes:
        members: names of the members that its schema knows.
        limits: those whose values have limits.
        developer: whether messages may have the role `developer`.
        full_tools: whether each function of `tools` must have a description and parameters.
        named_schema: whether `response_format.json_schema` must have a name.
        call_ids: pattern that ids of tool calls must match; empty for any.
        stops: maximum number of `stop` sequences; 0 for no limit.
        texts: maximum number of texts in an embeddings request; 0 for no limit.
    """

    members: frozenset[str] = frozenset()
    limits: Mapping[str, Limits] = field(default_factory=dict)
    developer: bool = True
    full_tools: bool = False
    named_schema: bool = False
    call_ids: str = ""
    stops: int = 0
    texts: int = 0


_INTEGER = Limits(whole=True)
_SAMPLING = {
    "max_tokens": _INTEGER,
    "temperature": Limits(0, 5),
    "top_p": Limits(0.001, 1),
    "top_k": Limits(1, 50, whole=True),
    "seed": Limits(1, 9_999_999_999, whole=True),
    "repetition_penalty": Limits(0, 2),
    "frequency_penalty": Limits(-2, 2),
    "presence_penalty": Limits(-2, 2),
}
_OWN_MEMBERS = frozenset(
    {"prompt", "messages", "response_format", "raw", "stream", "tools", "functions"}
)
_QWEN = Schema(
    _OWN_MEMBERS | _SAMPLING.keys() | {"lora"}, _SAMPLING, developer=False, full_tools=True
)
_LLAMA = replace(
    _QWEN,
    limits=_SAMPLING
    | {"top_p": Limits(0, 2), "frequency_penalty": Limits(0, 2), "presence_penalty": Limits(0, 2)},
)
_CHAT_LIMITS = {
    "max_tokens": _INTEGER,
    "max_completion_tokens": _INTEGER,
    "temperature": Limits(0, 2),
    "top_p": Limits(0, 1),
    "top_logprobs": Limits(0, 20, whole=True),
    "frequency_penalty": Limits(-2, 2),
    "presence_penalty": Limits(-2, 2),
    "n": Limits(1, 128, whole=True),
    "seed": _INTEGER,
}
_CHAT = Schema(
    frozenset(
        {
            *_CHAT_LIMITS,
            *(
                "prompt",
                "messages",
                "model",
                "audio",
                "logit_bias",
                "logprobs",
                "metadata",
                "modalities",
                "prediction",
            ),
            *(
                "parallel_tool_calls",
                "chat_template_kwargs",
                "response_format",
                "stop",
                "store",
                "stream",
                "user",
            ),
            *(
                "stream_options",
                "tool_choice",
                "tools",
                "web_search_options",
                "function_call",
                "functions",
            ),
            "reasoning_effort",
        }
    ),
    _CHAT_LIMITS,
    named_schema=True,
    stops=4,
)

SCHEMAS: dict[str, Schema] = {
    "": Schema(),
    "bge": Schema(
        frozenset({"text", "pooling"}), {"pooling": Limits(words=("mean", "cls"))}, texts=100
    ),
    "bge-m3": Schema(frozenset({"text", "contexts", "query", "truncate_inputs"}), texts=100),
    "m2m100": Schema(frozenset({"text", "source_lang", "target_lang"})),
    "llama-3.3": _LLAMA,
    "llama-4": replace(
        _LLAMA, call_ids="[a-zA-Z0-9]{9}", members=_LLAMA.members - {"lora"} | {"guided_json"}
    ),
    "qwen3": _QWEN,
    "chat": _CHAT,
    "responses": Schema(frozenset({"input", "reasoning"})),
}
"""By the name that `models.json` gives a model's schema; empty: nothing is known."""
