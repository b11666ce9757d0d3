"""Generated uploads and replies, the same in every run."""

import json
import random
from collections.abc import Callable
from pathlib import Path

MODEL = "@cf/baai/bge-small-en-v1.5"
_SENTENCE = """
the quick brown fox jumps over a lazy dog while many small files wait in their bucket for an
answer and each of them holds questions that somebody wrote down one evening about rivers letters
engines gardens invoices weather"""
_WORDS = _SENTENCE.split()
_FOREIGN = "größer, été, señor, Київ, 東京の天気, "


def texts(characters: int, different: int = 1_000) -> list[str]:
    dice = random.Random(characters)
    return [
        " ".join(dice.choices(_WORDS, k=characters // 5))[:characters] for _ in range(different)
    ]


def _kilobyte(dice: random.Random, text: list[str], _: int) -> str:
    return json.dumps({"text": dice.choice(text)})


def _accented(dice: random.Random, text: list[str], _: int) -> str:
    return json.dumps({"text": _FOREIGN * 6 + dice.choice(text)[:700]}, ensure_ascii=False)


def _chat(dice: random.Random, text: list[str], number: int) -> str:
    said = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": dice.choice(text)[:760]},
    ]
    settings = {"max_tokens": 64, "temperature": 0.2, "top_p": 0.9, "seed": number}
    return json.dumps({"external_reference": f"row-{number}", "messages": said, **settings})


LONG, SHORT = texts(985), texts(72)
CHAT, CHAT_MODEL = "1 KB of chat messages", "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
UPLOADS: dict[str, tuple[Callable[[random.Random, list[str], int], str], list[str]]] = {
    "1 KB records": (_kilobyte, LONG),
    "1 KB records, not ASCII": (_accented, LONG),
    CHAT: (_chat, LONG),
    "85-byte records": (_kilobyte, SHORT),
}
"""Kinds of uploads: how a record is made, and from which texts."""


def write_upload(path: Path, kind: str, size: int) -> None:
    """Write an upload of about `size` bytes: JSON Lines."""
    record, text = UPLOADS[kind]
    dice = random.Random(kind)
    written = number = 0
    with path.open("wb") as file:
        while written < size:
            written += file.write(record(dice, text, number).encode() + b"\n")
            number += 1


def repeat_upload(path: Path, source: Path, size: int) -> None:
    """Write a large upload that repeats the lines of a small one."""
    lines = source.read_bytes()
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(lines)


def _embedding(dimensions: int) -> Callable[[random.Random], str]:
    """Results with one of a few vectors, printed like 32-bit floats stored as 64-bit ones."""
    dice = random.Random(dimensions)
    vectors = [
        "[" + ",".join(repr(round(dice.gauss(0, 0.05), 10)) for _ in range(dimensions)) + "]"
        for _ in range(64)
    ]

    def result(dice: random.Random) -> str:
        return f'{{"shape":[1,{dimensions}],"data":[{dice.choice(vectors)}],"pooling":"cls"}}'

    return result


def _generated(dice: random.Random) -> str:
    answer = {
        "response": dice.choice(PARAGRAPHS),
        "usage": {"prompt_tokens": 90, "completion_tokens": 70},
    }
    return json.dumps(answer)


PARAGRAPHS = texts(400)
MOST_ANSWERS = {
    "embeddings of 384 floats": "@cf/baai/bge-small-en-v1.5",
    "generated text of 400 characters": "@cf/meta/llama-3.1-8b-instruct",
}
"""The models that answer so: a batch has as many records as its model may have."""
REPLIES: dict[str, Callable[[random.Random], str]] = {
    "embeddings of 384 floats": _embedding(384),
    "generated text of 400 characters": _generated,
}


def write_reply(path: Path, kind: str, size: int) -> int:
    """Write a finished batch's reply of about `size` bytes, items shuffled; return their number."""
    return write_answers(
        path, kind, max(size // len(_item(0, REPLIES[kind](random.Random(kind)))), 1)
    )


def write_answers(path: Path, kind: str, count: int) -> int:
    """Write a finished batch's reply to so many requests, items shuffled; return their number."""
    dice = random.Random(kind)
    numbers = list(range(count))
    dice.shuffle(numbers)
    with path.open("w") as file:
        file.write('{"success":true,"errors":[],"messages":[],"result":{"responses":[')
        for position, number in enumerate(numbers):
            file.write(("," if position else "") + _item(number, REPLIES[kind](dice)))
        file.write('],"usage":{"prompt_tokens":12000,"completion_tokens":0,"total_tokens":12000}}}')
    return count


def _item(number: int, result: str) -> str:
    return f'{{"id":{number},"external_reference":"row-{number}","success":true,"result":{result}}}'
