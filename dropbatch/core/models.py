"""What is known about Cloudflare's models: task, shape, limits and prices, from `models.json`.

A model that is not listed by its id gets the facts of its family: the first one whose word is in
its name, or whose prefix its id has. Facts without a source are not in the file, and unknown here.
"""

from __future__ import annotations

import difflib
import re
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from pathlib import Path

import msgspec

from dropbatch.core.formats.base import Shape, Task

MODEL_ID = re.compile(r"(?!.{201})@(?:cf|hf)/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
_LITELLM_PREFIX = "workers-ai/"
WORKER_REPLY_TARGET_BYTES = 12_000_000
"""`REPLY_TARGET_BYTES` for the transport `worker`. A Worker has 128 MB, and if its AI binding does
not return raw responses, it keeps several copies of a reply."""
REPLY_TARGET_BYTES = 200_000_000
"""Maximum bytes of a typical reply, however many requests a batch may have."""

UNKNOWN_ANSWER_BYTES = 400_000
"""Bytes assumed for one answer of a model that is not listed. Enough for half a minute of
speech."""


def model_id(name: object) -> str:
    """The model id in a `model`, perhaps after LiteLLM's `workers-ai/`; empty if it names none."""
    found = name.removeprefix(_LITELLM_PREFIX) if isinstance(name, str) else ""
    return found if MODEL_ID.fullmatch(found) else ""


def no_other_than(model: str) -> str:
    """A pattern for what `model_id` finds no other model in."""
    prefix = f"(?:{_LITELLM_PREFIX})?"
    return rf"^(?!{prefix}{MODEL_ID.pattern}$)|^{prefix}{re.escape(model)}$"


def of_other_model(model: str, job_model: str) -> str:
    """Says of a record that it names another model than its job's."""
    return f"The job's model is {job_model}. Upload records for {model[:100]} as a separate file."


def is_model(model: str) -> bool:
    """Whether it has the form of a model id."""
    return MODEL_ID.fullmatch(model) is not None and not {".", ".."} & set(model.split("/"))


class ModelFamily(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Models that are alike.

    Attributes:
        answer_bytes: bytes of a typical answer: 1,024 numbers in full precision, some pages of
            text, or a long text with its reasoning and wrapping.
        schema: the family's schema, as `dropbatch/core/requests.json` names it; empty if
            it is not known.
    """

    task: Task
    shape: Shape = Shape.UNKNOWN
    prefix: str = ""
    word: str = ""
    schema: str = ""
    answer_bytes: int = UNKNOWN_ANSWER_BYTES
    images: bool | None = None

    def has(self, model_id: str) -> bool:
        """Whether a model is one of them."""
        return model_id.startswith(self.prefix) and self.word in model_id.rpartition("/")[2].lower()


class Efforts(msgspec.Struct, frozen=True, omit_defaults=True):
    """How hard a model may be told to think: what it takes, and others that stand for one."""

    values: tuple[str, ...]
    source: str = ""
    aliases: dict[str, str] = {}


class Model(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model. Jobs store what they were planned with, so a default never changes.

    Attributes:
        batch: whether the catalogue lists it as supporting batches; None if it is not listed here.
        context: tokens of its context window, or of the longest text that it makes an embedding of;
            None if unknown.
        input_price: US dollars for a million input tokens; None if no source is known.
        output_price: the same for output tokens; None if there is no such price, as for embeddings.
        cached_price: the same for input tokens that were read from a cache; None if they have no
            price of their own.
        priced_at: the day on which the source gave these prices, as YYYY-MM-DD.
        efforts: None if they are not known: then any is sent.
        deprecated_at: the day on which it will be withdrawn, as YYYY-MM-DD; empty if none is
            announced.
        needs_paid: whether it needs the Workers Paid plan, or prepaid credits.
    """

    id: str = ""
    batch: bool | None = None
    task: Task = Task.UNKNOWN
    shape: Shape = Shape.UNKNOWN
    schema: str = ""
    answer_bytes: int = 0
    images: bool | None = None
    plain_schema: bool = False
    dimensions: int | None = None
    context: int | None = None
    output_tokens: int | None = None
    input_price: Decimal | None = None
    output_price: Decimal | None = None
    cached_price: Decimal | None = None
    priced_at: str = ""
    price_source: str = ""
    efforts: Efforts | None = None
    deprecated_at: str = ""
    needs_paid: bool = False


class Catalog(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """What is known of models and families of them, its sources, and when it was read."""

    read_on: str
    sources: dict[str, str]
    families: list[ModelFamily]
    models: list[Model]

    @cached_property
    def _by_id(self) -> dict[str, Model]:
        return {model.id: model for model in self.models}

    def lists(self, model_id: str) -> bool:
        """Whether it has the model itself, not only its family."""
        return model_id in self._by_id

    def find(self, model_id: str) -> Model:
        """What is known about a model, including its family's facts."""
        known = self._by_id.get(model_id) or Model(model_id)
        family = next(
            (one for one in self.families if one.has(model_id)), ModelFamily(Task.UNKNOWN)
        )
        return msgspec.structs.replace(
            known,
            task=known.task or family.task,
            shape=known.shape or family.shape,
            schema=known.schema or family.schema,
            answer_bytes=known.answer_bytes or family.answer_bytes,
            images=family.images if known.images is None else known.images,
        )


@cache
def catalog() -> Catalog:
    """The catalogue that is shipped."""
    content = Path(__file__).with_name("models.json").read_bytes()
    return msgspec.json.decode(content, type=Catalog)


@lru_cache(1024)
def find_model(model_id: str) -> Model:
    """What the catalogue that is shipped knows about a model, as `Catalog.find` returns it."""
    return catalog().find(model_id)


_SHAPES = {
    Task.EMBEDDINGS: Shape.TEXT,
    Task.TRANSLATION: Shape.TEXT,
    Task.GENERATION: Shape.MESSAGES,
    Task.TRANSCRIPTION: Shape.AUDIO,
    Task.SPEECH: Shape.TEXT,
}


def with_task(model: Model, task: str) -> Model:
    """A model, but with a task that somebody knows better; empty for its own.

    Of a model for another task, nothing is known but what that task's models have in common.
    """
    if task in {"", model.task}:
        return model
    shape = _SHAPES.get(Task(task), Shape.UNKNOWN)
    return msgspec.structs.replace(
        model,
        task=Task(task),
        shape=shape,
        schema="",
        images=None,
        plain_schema=False,
        dimensions=None,
        efforts=None,
    )


# ── what a job was planned with ───────────────────────────────────────────────────────────────────


def facts_of(model: Model) -> str:
    """What a job needs to know of its model until its end, as JSON."""
    efforts = model.efforts and msgspec.structs.replace(model.efforts, source="")
    kept = msgspec.structs.replace(
        model,
        id="",
        batch=None,
        answer_bytes=0,
        price_source="",
        efforts=efforts,
        deprecated_at="",
        needs_paid=False,
    )
    return msgspec.json.encode(kept).decode()


@lru_cache(1024)
def planned_model(model_id: str, facts: str) -> Model:
    """A model as it was known when a job was planned; as it is known now without facts."""
    if not facts:
        return find_model(model_id)
    return msgspec.structs.replace(msgspec.json.decode(facts, type=Model), id=model_id)


def max_records_per_reply(model: Model, transport: str = "rest") -> int:
    """Maximum records in a batch of a model: all its answers come in one reply."""
    target = WORKER_REPLY_TARGET_BYTES if transport == "worker" else REPLY_TARGET_BYTES
    return target // model.answer_bytes


_LEAST_ALIKE = 0.7


def unknown_model(model_id: str, task: str | None) -> str:
    """Says of a model that nobody knows it; empty if it is listed, or its `task` was named.

    A new model may be used before Dropbatch knows it, so the stack sends it all the same.
    """
    if task or not is_model(model_id) or catalog().lists(model_id):
        return ""
    return f"model: Dropbatch does not know {model_id}.{did_you_mean(model_id)}"


def model_advice(model_id: str) -> str:
    """What is odd about a known model: it takes no batches, or will be withdrawn; else empty."""
    if not catalog().lists(model_id):
        return ""
    model = find_model(model_id)
    if not model.batch:
        return (
            f"{model_id} is not listed as a model that takes batches: it will probably be refused."
        )
    if model.deprecated_at:
        return f"Cloudflare withdraws {model_id} on {model.deprecated_at}."
    return ""


def did_you_mean(name: str) -> str:
    """The model that was probably meant, as a question; empty if none is like it."""
    nearest = nearest_model(name)
    return f" Did you mean {nearest}?" if nearest else ""


def nearest_model(name: str) -> str:
    """The known model whose id, or the last part of it, is most like a name; empty if none is."""
    wanted = name.strip().lower().removeprefix(_LITELLM_PREFIX)
    known = {model.id.lower(): model.id for model in catalog().models}
    last = {id_.rpartition("/")[2]: known[id_] for id_ in known}
    for names, one in ((known, wanted), (last, wanted.rpartition("/")[2])):
        if found := difflib.get_close_matches(one, names, 1, _LEAST_ALIKE):
            return names[found[0]]
    return ""
