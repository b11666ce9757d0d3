"""What a validation finds in an upload, batch by batch, and its report. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core import names
from dropbatch.core.cost import BYTES_PER_TOKEN, Tokens, cost_of, estimate_tokens, output_tokens
from dropbatch.core.formats.base import begins
from dropbatch.core.options import encode_options
from dropbatch.core.plan import Checkpoint
from dropbatch.core.read.index import record_spans

if TYPE_CHECKING:
    from dropbatch.core.models import Model
    from dropbatch.core.options import Options
    from dropbatch.core.plan import SplitPlan
    from dropbatch.core.read.cut import Cut

MAX_LISTED = 100
"""Bad records that a report lists."""
MAX_LISTED_CHARACTERS = 300
"""Characters that the report keeps of each of their messages."""
MAX_REFERENCES = 1_000_000
"""References that are compared with each other."""
CALLS_PER_BATCH = 3
"""API calls that a batch usually takes: a submit and two polls."""
_HASH_BYTES = 8
_MEDIA = re.compile(rb'"(?:image_url|input_image|input_audio|video_url|file|audio|image)"\s*:')


class BadRecord(msgspec.Struct):
    """A record that cannot be sent."""

    id: int
    line: int | None
    code: str
    message: str


class Longest(msgspec.Struct):
    """The longest record; its line is None in a document."""

    line: int | None = None
    bytes: int = 0


class Progress(msgspec.Struct):
    """What has been read of an upload.

    Attributes:
        offset: where to continue in the unpacked bytes; `line` and `record` likewise.
        cuts: all batches; `batches` are those with a record that can be sent.
        sent_bytes: bytes of all requests.
        output_tokens: the most that the requests may use.
        repeated: records with the same reference as an earlier one.
        long: requests whose text probably does not fit the model's context window.
        long_first: line of the first of them, None in a document; the others are its id and its
            tokens.
    """

    offset: int = 0
    line: int = 0
    record: int = 0
    bytes: int = 0
    cuts: int = 0
    batches: int = 0
    sent: int = 0
    sent_bytes: int = 0
    output_tokens: int = 0
    bad: int = 0
    bad_first: list[BadRecord] = []
    repeated: int = 0
    references: int = 0
    longest: Longest = msgspec.field(default_factory=Longest)
    long: int = 0
    long_first: int | None = None
    long_first_id: int = 0
    long_first_tokens: int = 0

    @property
    def place(self) -> Checkpoint:
        """Where to continue."""
        return Checkpoint(self.offset, self.line, self.record)


def add_cut(
    model: Model, progress: Progress, seen: set[int], cut: Cut, answer_tokens: int | None = None
) -> None:
    """Add a batch's records to the progress; `answer_tokens`: the option `output_tokens`."""
    rows = cut.rows
    progress.cuts += 1
    progress.batches += cut.sendable > 0
    progress.sent += cut.sendable
    progress.sent_bytes += len(cut.body)
    named = output_tokens(model, cut.body, cut.sendable, answer_tokens)
    progress.output_tokens += (
        estimate_tokens(model, len(cut.body), cut.sendable, named, answer_tokens).output or 0
    )
    progress.bad += len(rows.faults)
    for index in islice(rows.faults, MAX_LISTED - len(progress.bad_first)):
        row = rows[index]
        bad = BadRecord(
            cut.first_id + index, row.line, row.code, row.message[:MAX_LISTED_CHARACTERS]
        )
        progress.bad_first.append(bad)
    sizes = rows.originals or rows.lengths
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    if sizes[longest] > progress.longest.bytes:
        progress.longest = Longest(rows[longest].line, sizes[longest])
    _compare_references(progress, seen, rows.references)
    _count_long(model, progress, cut)


def _compare_references(progress: Progress, seen: set[int], references: list[msgspec.Raw]) -> None:
    for reference in references:
        text = bytes(reference)
        if text == b"null" or progress.references == MAX_REFERENCES:
            continue
        progress.references += 1
        digest = int.from_bytes(blake2b(text, digest_size=_HASH_BYTES).digest())
        progress.repeated += digest in seen
        seen.add(digest)


class _Request(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw(b"null")


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _count_long(model: Model, progress: Progress, cut: Cut) -> None:
    """Count requests with a text that is probably longer than the model's context window."""
    context = model.context
    if context is None or max(cut.rows.lengths, default=0) <= context * BYTES_PER_TOKEN:
        return
    for index, (begin, length) in enumerate(record_spans(cut.rows)):
        if length <= context * BYTES_PER_TOKEN:
            continue
        tokens = _longest_text(cut.body[begin : begin + length]) // BYTES_PER_TOKEN
        if tokens > context:
            if not progress.long:
                progress.long_first, progress.long_first_tokens = cut.rows[index].line, tokens
                progress.long_first_id = cut.first_id + index
            progress.long += 1


def _longest_text(request: bytes) -> int:
    """Bytes of the longest text of a request: of embeddings, each text has a window of its own."""
    if _MEDIA.search(request):
        return 0  # Its bytes say nothing about its tokens.
    text = _decode_request(request).text
    if begins(text, b"["):
        return max((len(bytes(one)) for one in _decode_texts(text)), default=0)
    return len(bytes(text)) if begins(text, b'"') else len(request)


# ── the report ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Subject:
    """What is validated.

    Attributes:
        key: the upload's.
        plan: how it is cut.
        options: resolved.
        created_at: ISO 8601.
        job_id: None without a stack.
        version: of the upload; None without a stack.
        estimated: whether the stack's parameters are not known, and `template.yaml`'s are assumed.
        advice: what is odd about the model; empty if nothing is.
    """

    key: str
    plan: SplitPlan
    options: Options
    created_at: str | None
    job_id: str | None = None
    version: str | None = None
    estimated: bool = False
    advice: str = ""


def build_report(subject: Subject, progress: Progress, code: str = "", message: str = "") -> bytes:
    """`report.json`.

    Args:
        subject: what was validated.
        progress: what was read of it.
        code: why the upload would fail as a whole; empty if it would not.
        message: the code's message.
    """
    model, tokens = subject.plan.known_model, Tokens(None, None)
    if model.id and progress.sent:
        tokens = Tokens(
            estimate_tokens(model, progress.sent_bytes, progress.sent).input, progress.output_tokens
        )
    cost = cost_of(model, tokens, estimated=True)
    report: dict[str, Any] = {
        "job_id": subject.job_id,
        "path": names.upload_path(subject.key),
        "version": subject.version,
        "error": {"code": code, "message": message} if code else None,
        "format": subject.plan.format or None,
        "model": model.id or None,
        "options": msgspec.Raw(encode_options(subject.options)),
        "records": progress.record,
        "bytes": progress.bytes,
        "batches": progress.batches,
        "calls": progress.batches * CALLS_PER_BATCH,
        "estimated": subject.estimated,
        "bad": progress.bad,
        "bad_first": progress.bad_first,
        "warnings": _warnings(subject.advice, model, progress),
        "repeated": progress.repeated,
        "longest": progress.longest if progress.longest.bytes else None,
        "estimate": {
            "input_tokens": tokens.input,
            "output_tokens": tokens.output,
            "cost": cost.to_manifest() if cost else None,
        },
        "created_at": subject.created_at,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def _warnings(advice: str, model: Model, progress: Progress) -> list[str]:
    """What the API would probably reject, though each record is sent."""
    found = [advice]
    if progress.long:
        where = (
            f"id {progress.long_first_id:,}"
            if progress.long_first is None
            else f"line {progress.long_first:,}"
        )
        found.append(
            f"{model.id} has a context window of {model.context:,} tokens. "
            f"{progress.long:,} records are "
            f"longer by an estimate of {BYTES_PER_TOKEN} bytes a token, the first with "
            f"{progress.long_first_tokens:,} "
            f"tokens ({where}): they will be cut short or rejected. Divide them."
        )
    return [message for message in found if message]
