"""Vectors of texts, as JSON.

By the real small model WordLlama, by hashes of words, or by a hash of the text.

WordLlama has wheels for some machines only. Where it cannot be imported, hashes of words replace
it: there is no model, but texts with similar words have similar vectors. The hash of the text is
used where speed matters.

WordLlama (256 dimensions, its weights ship inside its package) gives similar texts vectors that are
near each other. Models of other dimensions get them by cyclic repetition, each component divided by
the square root of how often it occurs in the row, which keeps every cosine exactly. The hash of the
text gives each text a vector of equal length whose signs are drawn from the text: the same text
always has the same vector, and the vectors of different texts are nearly orthogonal.
"""

import functools
import importlib
import logging
import math
import re
from hashlib import blake2b, shake_256
from operator import mul
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

_MAX_TOKENS = 512  # The bge models read no more of a text.
_DIGITS = 6
_LOADING = Lock()


class Embedder(Protocol):
    """Turns texts into vectors and scores."""

    name: str

    def rows(self, texts: list[str], dimension: int) -> list[bytes]:
        """One JSON array of numbers for each text."""

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """How near each text is to the query, from 0 to 1."""


class HashEmbedder:
    """Vectors without meaning, made in microseconds from a hash of the text."""

    name = "hash"
    _bits = 256

    def __init__(self) -> None:
        self._tables: dict[int, tuple[bytes, ...]] = {}

    def rows(self, texts: list[str], dimension: int) -> list[bytes]:
        """One JSON array of numbers for each text."""
        table = self._tables.get(dimension)
        if table is None:
            size = f"{1 / math.sqrt(dimension):.8f}"
            table = tuple(
                ",".join(size if byte >> bit & 1 else f"-{size}" for bit in range(8)).encode()
                for byte in range(256)
            )
            self._tables[dimension] = table
        digests = (shake_256(text.encode()).digest(dimension // 8) for text in texts)
        return [b"[%b]" % b",".join([table[byte] for byte in digest]) for digest in digests]

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """The share of equal bits in the hashes."""

        def bits(text: str) -> int:
            return int.from_bytes(shake_256(text.encode()).digest(self._bits // 8))

        wanted = bits(query)
        return [round(1 - (wanted ^ bits(text)).bit_count() / self._bits, 6) for text in texts]


class WordHashEmbedder:
    """Vectors from the words of a text and their parts, without a model.

    Each is hashed to one component and a sign.

    Texts with the same words, or with words of the same stem, are near each other; synonyms are
    not.
    """

    name = "hashes of words (no model: wordllama is not installed here)"
    _word = re.compile(r"\w+")
    _part_length = 4
    _short_word = 3
    """A word of at most this many characters is mostly grammar, and has little weight."""

    @staticmethod
    @functools.lru_cache(maxsize=65_536)
    def _features(word: str) -> tuple[tuple[int, float], ...]:
        """A number and a signed weight for a word and each of its parts."""
        cls = WordHashEmbedder
        padded = f"<{word}>"
        parts = {
            padded[at : at + cls._part_length]
            for at in range(max(1, len(padded) - cls._part_length + 1))
        }
        weight = 0.2 if len(word) <= cls._short_word else 1.0
        found = []
        for feature, share in [
            (word, weight),
            *((part, weight / len(parts)) for part in sorted(parts)),
        ]:
            number = int.from_bytes(blake2b(feature.encode(), digest_size=8).digest())
            found.append((number >> 1, share if number & 1 else -share))
        return tuple(found)

    def _vector(self, text: str, dimension: int) -> list[float]:
        """A vector of length 1, or of zeros for a text without a word."""
        vector = [0.0] * dimension
        for word in self._word.findall(text.lower())[:_MAX_TOKENS]:
            for number, weight in self._features(word):
                vector[number % dimension] += weight
        length = math.sqrt(math.fsum(number * number for number in vector)) or 1.0
        return [number / length for number in vector]

    def rows(self, texts: list[str], dimension: int) -> list[bytes]:
        """One JSON array of numbers for each text."""
        return [
            msgspec.json.encode(
                [round(number, _DIGITS) for number in self._vector(text, dimension)]
            )
            for text in texts
        ]

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """The cosine, from 0 for opposite to 1 for equal."""
        wanted, *others = (self._vector(text, 1_024) for text in (query, *texts))
        return [round((1 + sum(map(mul, wanted, other))) / 2, 6) for other in others]


class WordLlamaEmbedder:
    """Static word vectors of the package `wordllama`, averaged over a text."""

    name = "wordllama-256"

    def __init__(self) -> None:
        self._model: Any = None

    def _load(self) -> Any:  # The package has no types.
        with _LOADING:
            if self._model is None:
                wordllama = _wordllama()
                # Only this directory holds the package's own tokenizer; without it, the load would
                # download one.
                self._model = wordllama.WordLlama.load(
                    cache_dir=Path(str(wordllama.__file__)).parent, disable_download=True
                )
                self._model.tokenizer.no_padding()
                self._model.tokenizer.enable_truncation(_MAX_TOKENS)
        return self._model

    def _vectors(self, texts: list[str]) -> "Matrix":
        import numpy as np  # noqa: PLC0415 # Only where this embedder is used.

        model = self._load()
        tokens = [
            encoding.ids
            for encoding in model.tokenizer.encode_batch(texts, add_special_tokens=False)
        ]
        vectors = np.zeros((len(texts), model.embedding.shape[1]), dtype=np.float32)
        # The sum over each text's tokens is computed row by row, so that no text's vector depends
        # on its neighbours: the same text has the same digits in every batch.
        filled = [index for index, ids in enumerate(tokens) if ids]
        if filled:
            starts = np.cumsum([0, *(len(tokens[index]) for index in filled[:-1])])
            flat = np.concatenate([np.asarray(tokens[index]) for index in filled])
            sums = np.add.reduceat(model.embedding[flat], starts, axis=0)
            norms = np.sqrt(np.add.reduce(sums.astype(np.float64) ** 2, axis=1))
            vectors[filled] = sums / np.maximum(norms, 1e-12)[:, None]
        return vectors

    def rows(self, texts: list[str], dimension: int) -> list[bytes]:
        """One JSON array of numbers for each text."""
        if not texts:
            return []
        vectors = self._vectors(texts)
        times, rest = divmod(dimension, vectors.shape[1])
        # The first `rest` components occur once more in the row than the others.
        tails = _json_rows(vectors[:, rest:] / math.sqrt(times))
        if not rest:
            return [b"[%b]" % b",".join([tail] * times) for tail in tails]
        heads = _json_rows(vectors[:, :rest] / math.sqrt(times + 1))
        return [
            b"[%b]" % b",".join([head, tail] * times + [head])
            for head, tail in zip(heads, tails, strict=True)
        ]

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """The cosine, from 0 for opposite to 1 for equal."""
        wanted, *others = self._vectors([query, *texts])
        return [round((1 + float(wanted @ other)) / 2, 6) for other in others]


def _json_rows(vectors: "Matrix") -> list[bytes]:
    """The numbers of each row, without brackets."""
    return msgspec.json.encode(vectors.astype("float64").round(_DIGITS).tolist())[2:-2].split(
        b"],["
    )


@functools.cache
def _wordllama() -> Any:  # The package has no types.
    """The package, if it is installed and works here; else None."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return importlib.import_module("wordllama")
    except ImportError:
        return None
    finally:
        root.handlers[:], root.level = handlers, level  # Importing it configures the root logger.


_HASH = HashEmbedder()
_WORD_HASH = WordHashEmbedder()
_WORDLLAMA = WordLlamaEmbedder()


def embedder(choice: Literal["auto", "hash", "words", "wordllama"]) -> Embedder:
    """The embedder of this name."""
    if choice == "hash":
        return _HASH
    if choice == "words" or (choice == "auto" and _wordllama() is None):
        return _WORD_HASH
    return _WORDLLAMA
