"""Vectors of texts, as JSON: made from hashes of words, or from a hash of the text.

There is no model. With hashes of words, texts with similar words have vectors that are near each
other. The hash of the text is used where speed matters: the same text always has the same vector,
and the vectors of different texts are nearly orthogonal.
"""

import functools
import math
import re
from hashlib import blake2b, shake_256
from operator import mul
from typing import Literal, Protocol

import msgspec

_MAX_WORDS = 512  # The bge models read no more tokens of a text.
_DIGITS = 6
_WORD = re.compile(r"\w+")
_PART_LENGTH = 4
_SHORT_WORD = 3
"""A word of at most this many characters is mostly grammar, and has little weight."""


class Embedder(Protocol):
    """Turns texts into vectors and scores."""

    def rows(self, texts: list[str], dimension: int) -> list[bytes]:
        """One JSON array of numbers for each text."""

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """How near each text is to the query, from 0 to 1."""


class HashEmbedder:
    """Vectors without meaning, made in microseconds from a hash of the text."""

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


class WordEmbedder:
    """Vectors from the words of a text and their parts, each hashed to one component and a sign.

    Texts with the same words, or with words of the same stem, are near each other; synonyms are
    not.
    """

    def rows(self, texts: list[str], dimension: int) -> list[bytes]:
        """One JSON array of numbers for each text."""
        rounded = ([round(one, _DIGITS) for one in _vector(text, dimension)] for text in texts)
        return [msgspec.json.encode(vector) for vector in rounded]

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """The cosine, from 0 for opposite to 1 for equal."""
        wanted, *others = (_vector(text, 1_024) for text in (query, *texts))
        return [round((1 + sum(map(mul, wanted, other))) / 2, 6) for other in others]


def _vector(text: str, dimension: int) -> list[float]:
    """A vector of length 1, or of zeros for a text without a word."""
    vector = [0.0] * dimension
    for word in _WORD.findall(text.lower())[:_MAX_WORDS]:
        for number, weight in _features(word):
            vector[number % dimension] += weight
    length = math.sqrt(math.fsum(number * number for number in vector)) or 1.0
    return [number / length for number in vector]


@functools.lru_cache(maxsize=65_536)
def _features(word: str) -> tuple[tuple[int, float], ...]:
    """A number and a signed weight for a word and each of its parts."""
    padded = f"<{word}>"
    starts = range(max(1, len(padded) - _PART_LENGTH + 1))
    parts = {padded[at : at + _PART_LENGTH] for at in starts}
    weight = 0.2 if len(word) <= _SHORT_WORD else 1.0
    found = []
    for feature, share in [
        (word, weight),
        *((part, weight / len(parts)) for part in sorted(parts)),
    ]:
        number = int.from_bytes(blake2b(feature.encode(), digest_size=8).digest())
        found.append((number >> 1, share if number & 1 else -share))
    return tuple(found)


_EMBEDDERS: dict[str, Embedder] = {"hash": HashEmbedder(), "words": WordEmbedder()}


def embedder(choice: Literal["words", "hash"]) -> Embedder:
    """The embedder of this name."""
    return _EMBEDDERS[choice]
