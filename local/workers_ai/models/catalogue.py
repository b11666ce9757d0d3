"""The models this server knows: task, family of request and answer, batch property.

It holds their data and finds a model by its name.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class Family(StrEnum):
    """What a model's requests and answers look like."""

    EMBEDDING = "embedding"
    BGE_M3 = "bge_m3"
    TRANSLATION = "translation"
    LLAMA = "llama"
    CHAT = "chat"
    RESPONSES = "responses"
    SPEECH_TO_TEXT = "speech_to_text"
    TEXT_TO_SPEECH = "text_to_speech"
    RERANKER = "reranker"


class Model(NamedTuple):
    name: str
    family: Family
    task: str
    batch: bool
    """The property `async_queue`, which the documentation renders as the badge `Batch`."""
    shape: str = "A"
    """Completed batches: `A` is `responses`/`id`, `B` is `results`/`index`."""
    dimension: int = 0


EMBEDDINGS = "Text Embeddings"
TRANSLATION = "Translation"
GENERATION = "Text Generation"
RECOGNITION = "Automatic Speech Recognition"
SPEECH = "Text-to-Speech"
CLASSIFICATION = "Text Classification"

_MODELS = (
    Model("@cf/baai/bge-small-en-v1.5", Family.EMBEDDING, EMBEDDINGS, batch=True, dimension=384),
    Model("@cf/baai/bge-base-en-v1.5", Family.EMBEDDING, EMBEDDINGS, batch=True, dimension=768),
    Model("@cf/baai/bge-large-en-v1.5", Family.EMBEDDING, EMBEDDINGS, batch=True, dimension=1024),
    # The batch documentation's own example, yet without the property in its newest catalogue entry.
    Model("@cf/baai/bge-m3", Family.BGE_M3, EMBEDDINGS, batch=True, dimension=1024),
    Model("@cf/meta/m2m100-1.2b", Family.TRANSLATION, TRANSLATION, batch=True),
    Model("@cf/meta/llama-3.3-70b-instruct-fp8-fast", Family.LLAMA, GENERATION, batch=True),
    Model("@cf/meta/llama-4-scout-17b-16e-instruct", Family.LLAMA, GENERATION, batch=True),
    Model("@cf/qwen/qwen3-30b-a3b-fp8", Family.CHAT, GENERATION, batch=True),
    Model("@cf/qwen/qwen3.8-27b", Family.CHAT, GENERATION, batch=True, shape="B"),
    Model("@cf/google/gemma-4-26b-a4b-it", Family.CHAT, GENERATION, batch=True, shape="B"),
    Model("@cf/moonshotai/kimi-k2.6", Family.CHAT, GENERATION, batch=True, shape="B"),
    Model("@cf/deepseek-ai/deepseek-v4-flash-0731", Family.CHAT, GENERATION, batch=True, shape="B"),
    Model("@cf/openai/gpt-oss-120b", Family.RESPONSES, GENERATION, batch=True, shape="B"),
    Model("@cf/openai/gpt-oss-20b", Family.RESPONSES, GENERATION, batch=True, shape="B"),
    Model("@cf/openai/whisper-large-v3-turbo", Family.SPEECH_TO_TEXT, RECOGNITION, batch=True),
    Model("@cf/deepgram/nova-3", Family.SPEECH_TO_TEXT, RECOGNITION, batch=True),
    Model("@cf/deepgram/aura-1", Family.TEXT_TO_SPEECH, SPEECH, batch=True),
    Model("@cf/deepgram/aura-2-en", Family.TEXT_TO_SPEECH, SPEECH, batch=True),
    Model("@cf/deepgram/aura-2-es", Family.TEXT_TO_SPEECH, SPEECH, batch=True),
    # Hosted, but without the batch property.
    Model("@cf/baai/bge-reranker-base", Family.RERANKER, CLASSIFICATION, batch=False),
    Model("@cf/aisingapore/gemma-sea-lion-v4-27b-it", Family.CHAT, GENERATION, batch=False),
    Model("@cf/moonshotai/kimi-k2.7-code", Family.CHAT, GENERATION, batch=False),
    Model("@cf/deepseek-ai/deepseek-v4-pro-0813", Family.CHAT, GENERATION, batch=False),
)
MODELS = {model.name: model for model in _MODELS}


def listing() -> Iterator[dict[str, object]]:
    """The catalogue as `GET /accounts/{id}/ai/models/search` shows it, without most properties."""
    for model in _MODELS:
        properties = [{"property_id": "async_queue", "value": "true"}] if model.batch else []
        yield {"name": model.name, "task": {"name": model.task}, "properties": properties}
