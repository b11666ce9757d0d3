"""Vectors of texts, as JSON: made from hashes of words, or from a hash of the text.

There is no model. With hashes of words, texts with similar words have vectors that are near each
other. The hash of the text is used where speed matters: the same text always has the same vector,
and the vectors of different texts are nearly orthogonal.
"""

import functools
import math
import re
from collections.abc import Callable
from hashlib import blake2b, shake_256
from operator import mul
from typing import Literal

import msgspec

_MAX_WORDS = 512  # The bge models read no more tokens of a text.
_DIGITS = 6
_WORD = re.compile(r"\w+")
_PART_LENGTH = 4
_SHORT_WORD = 3
"""A word of at most this many characters is mostly grammar, and has little weight."""


Embedder = Callable[[list[str], int], list[bytes]]
"""Turns texts into vectors of so many numbers, each as JSON."""


def scores(embed: Embedder, query: str, texts: list[str]) -> list[float]:
    """How near each text is to the query: the cosine, from 0 for opposite to 1 for equal."""
    wanted, *others = map(msgspec.json.decode, embed([query, *texts], 1_024))
    return [round((1 + sum(map(mul, wanted, other))) / 2, _DIGITS) for other in others]


def _of_hash(texts: list[str], dimension: int) -> list[bytes]:
    """Vectors without meaning, made in microseconds from a hash of the text."""
    table = _signs(dimension)
    digests = (shake_256(text.encode()).digest(dimension // 8) for text in texts)
    return [b"[%b]" % b",".join([table[byte] for byte in digest]) for digest in digests]


@functools.cache
def _signs(dimension: int) -> tuple[bytes, ...]:
    """For each byte of a hash, eight numbers."""
    size = f"{1 / math.sqrt(dimension):.8f}"
    return tuple(
        ",".join(size if byte >> bit & 1 else f"-{size}" for bit in range(8)).encode()
        for byte in range(256)
    )


def _of_words(texts: list[str], dimension: int) -> list[bytes]:
    """Vectors from words and their parts: texts with words of the same stem are near each other."""
    rounded = ([round(one, _DIGITS) for one in _vector(text, dimension)] for text in texts)
    return [msgspec.json.encode(vector) for vector in rounded]


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


_EMBEDDERS: dict[str, Embedder] = {"hash": _of_hash, "words": _of_words}


def embedder(choice: Literal["words", "hash"]) -> Embedder:
    return _EMBEDDERS[choice]
