"""How an upload is cut, and a place in it.

Every run cuts by the same plan, and continues at such a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropbatch.core.formats.model_catalog import planned_model
from dropbatch.core.records.index import WRAPPER_BYTES

if TYPE_CHECKING:
    from dropbatch.core.formats.model_catalog import Model

FIRST_BATCH_RECORDS = 500
"""Records in the first batches of a job.

So that a small job is quick and a first error costs little.
"""
BATCHES_PER_DOUBLING = 4
"""Batches of one size before the size doubles.

Never change it: jobs that are being split must be cut the same way.
"""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How an upload is cut; pinned in its job, so that every run cuts in the same way.

    Attributes:
        model: the model id; empty while none was given.
        max_requests: maximum records in a batch.
        max_bytes: maximum bytes of a batch's body.
        account: the Cloudflare account the job is submitted to.
        form: `jsonl` (also for lines of text), `rows` (a table), `object` (the API's document) or
            `array` (one without its wrapper); empty until it is known.
        packing: `plain`, `gzip` or `zstd`; empty until it is known.
        start: offset, in the unpacked bytes, of the first record's line, or of the place after the
            array's bracket.
        first_requests: maximum records in the first batches; later ones grow up to `max_requests`.
        format: one of `dropbatch.core.formats.registry.FORMATS`; empty until it is known.
        start_line: lines before the first record: those of a table's header.
        converts: whether what is sent differs from the records as written; if so, these are staged
            too.
        delimiter: between the fields of a table's rows; empty for other formats.
        answers: whether a table's answers have more columns than `answer`; their names are in an
            object of their own.
        inputs: name of the schema by which requests are judged; empty: all are sent.
        task: of the model, as it was known when the upload was planned; older versions read it, and
            pinned only this.
        facts: what was known of the model then, as `dropbatch.core.formats.model_catalog.facts_of`
            writes it.
        first_bytes: maximum bytes of the first bodies, if fewer than `max_bytes`; later ones grow
            up to that. 0: none.
        by_default: whether the model is the stack's default: a model that the file names precedes
            it.
        checks_models: whether a request that names another model is not sent; in jobs of older
            versions it was.
        is_strict: whether a request without anything to answer, or with a member that no answer can
            be right for, is not sent; in jobs of older versions it was.
    """

    model: str
    max_requests: int
    max_bytes: int
    account: str
    form: str = ""
    packing: str = ""
    start: int = 0
    first_requests: int = 500  # Of items that leave it out, whatever a new job's is.
    format: str = ""
    start_line: int = 0
    converts: bool = False
    by_default: bool = False
    delimiter: str = ""
    answers: bool = False
    inputs: str = ""
    task: str = ""
    facts: str = ""
    first_bytes: int = 0
    checks_models: bool = False
    is_strict: bool = False

    @property
    def known_model(self) -> Model:
        """The model as it was known when the upload was planned.

        For jobs of older versions, as it is known now.
        """
        return planned_model(self.model, self.facts, self.task)

    @property
    def is_document(self) -> bool:
        """Whether records are elements of a JSON document instead of lines."""
        return self.form in {"object", "array"}

    @property
    def is_table(self) -> bool:
        """Whether records are the rows of a table."""
        return self.form == "rows"


def max_records(plan: SplitPlan, number: int) -> int:
    """Records that one batch of a job may have; depends only on the plan and the batch's number.

    The first four batches have up to `first_requests` records, the next four twice as many, and so
    on up to `max_requests`.
    """
    return min(plan.first_requests << _doublings(number), plan.max_requests)


def body_room(plan: SplitPlan, number: int) -> int:
    """Bytes for the records of one batch of a job, each with a comma; they grow likewise.

    One record may be larger.
    """
    return (
        min(plan.first_bytes << _doublings(number) or plan.max_bytes, plan.max_bytes)
        - WRAPPER_BYTES
        + 1
    )


def _doublings(number: int) -> int:
    return min(number // BATCHES_PER_DOUBLING, 30)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a cut ends: offset in the unpacked bytes, lines read, records read."""

    offset: int = 0
    line: int = 0
    record: int = 0
