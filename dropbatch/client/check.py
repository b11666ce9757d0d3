"""Checks a file on this machine by the rules of the stack: whole, or only its beginning.

Nothing is sent.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core import names
from dropbatch.core.models import catalog as shipped_catalog
from dropbatch.core.models import model_advice
from dropbatch.core.options import (
    Options,
    as_arguments,
    file_options,
    metadata_of,
    metadata_options,
    path_options,
    resolve,
)
from dropbatch.core.plan import (
    Checkpoint,
    StackLimits,
    check_model,
    check_path,
    first_plan,
    make_reader,
    plan_upload,
    with_default_model,
)
from dropbatch.core.read import reading
from dropbatch.core.read.convert import windows
from dropbatch.core.read.form import read_beginning
from dropbatch.core.read.unpack import decompress
from dropbatch.core.validation import Progress, Subject, add_cut, build_report
from dropbatch.errors import UploadRefused, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from dropbatch.core.models import Catalog
    from dropbatch.core.plan import Planned, SplitPlan
    from dropbatch.core.read.cut import Cut
    from dropbatch.core.read.form import Beginning

_USAGE = frozenset({"bad_options", "bad_model", "no_model", "path_too_long"})
"""Codes of faults that are not the file's."""
LOOKED_AT_RECORDS = 1_000
"""First records of which at least one must be fit to be sent."""


def check_beginning(
    stored: Iterable[bytes],
    path: str,
    metadata: Mapping[str, str],
    *,
    folder_options: bytes | None = None,
    default_model: str | None = None,
    catalog: Catalog | None = None,
) -> None:
    """Check an upload's options, and its first 12 MB, before it is sent.

    Warn of a model that is odd.

    A file compressed with zstd is not checked where the package for it is missing.

    Args:
        stored: the file's bytes, in blocks; read only as far as needed.
        path: under `inbox/`.
        metadata: of the upload, as `metadata_of` returned it.
        folder_options: content of the nearest `_options.json`; None if there is none, or it is not
            known.
        default_model: the stack's, empty if it has none; None if it is not known: then the upload
            may name no model.
        catalog: what the stack knows of models; what is shipped if not given.

    Raises:
        UsageError: the stack would refuse the options, the model or the path.
        UploadRefused: it would refuse the file, or none of its first 1,000 records can be sent.
    """
    key, limits = (
        names.INBOX + path,
        StackLimits(default_model=default_model or "", catalog=catalog or shipped_catalog()),
    )
    try:
        check_path(key)
        options = _resolve(key, metadata, folder_options)
        try:
            beginning = read_beginning(iter(stored))
        except UsageError:
            return
        planned = _plan(key, options, beginning, limits)
        _check_records(planned, beginning, limits.catalog, needs_model=default_model is not None)
    except _BeginningOverError:
        return
    except UploadRefused as fault:
        message = as_arguments(fault.message)
        if fault.code in _USAGE:
            raise UsageError(message) from None
        raise UploadRefused(fault.code, message, fault.line) from None


def check_source(source: object, name: str | None, options: Mapping[str, object]) -> dict[str, Any]:
    """Check a whole file without a stack; return the report that its validation would write.

    What only the stack knows is assumed to be as `template.yaml` has it: the report's `estimated`
    is true.

    Args:
        source: as for `Client.submit`.
        name: as for `Client.submit`.
        options: as for `Client.submit`; None for one that is not set.

    Raises:
        UsageError: an option is wrong, or the file cannot be read.
    """
    from dropbatch.client.sources import open_source
    from dropbatch.client.uploads import upload_key

    opened = open_source(source, options.get("template"))
    with opened.stream as stream, tempfile.TemporaryFile() as copy:
        key = upload_key(name, opened.name)
        given = {one: value for one, value in options.items() if value is not None}
        if not stream.seekable():
            shutil.copyfileobj(stream, copy)
        metadata = metadata_of({**opened.options, **given})
        report = check_file(stream if stream.seekable() else copy, names.upload_path(key), metadata)
    return dict(msgspec.json.decode(report))


def check_file(file: BinaryIO, path: str, metadata: Mapping[str, str]) -> bytes:
    """Check a whole file; return the `report.json` that the stack's validation would write.

    Flat memory at any size.

    Args:
        file: one that can be read again from its beginning.
        path: under `inbox/`.
        metadata: of the upload, as `metadata_of` returned it.

    Raises:
        UsageError: the file cannot be read, or the package that unpacks it is missing.
    """
    key, limits = names.INBOX + path, StackLimits()
    progress, error = Progress(), ("", "")
    options = Options()
    plan = first_plan(options, limits, by_default=True)
    try:
        resolved = _resolve(key, metadata, None)
        options = with_default_model(resolved, limits)
        plan = first_plan(options, limits, by_default=resolved.model is None)
        check_path(key)
        file.seek(0)
        planned = _plan(key, resolved, read_beginning(_blocks(file)), limits)
        plan, options = planned.plan, planned.options
        _read(file, planned, progress)
    except UploadRefused as fault:
        error = (fault.code, fault.message)
    except OSError as fault:
        raise UsageError(f"{path} cannot be read: {fault.strerror}.") from fault
    created_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    advice = model_advice(plan.model, limits.catalog)
    return build_report(
        Subject(key, plan, options, created_at, estimated=True, advice=advice), progress, *error
    )


def _resolve(key: str, metadata: Mapping[str, str], folder_options: bytes | None) -> Options:
    """The options that the metadata, the path and an `_options.json` give.

    Without the stack's default model.
    """
    nearest = {} if folder_options is None else file_options(folder_options)
    return resolve([metadata_options(metadata), path_options(key), nearest])


def _plan(key: str, resolved: Options, beginning: Beginning, limits: StackLimits) -> Planned:
    options = with_default_model(resolved, limits)
    first = first_plan(options, limits, by_default=resolved.model is None)
    return plan_upload(first, options, key, beginning, limits)


def _batches(planned: Planned, blocks: Iterable[bytes]) -> Iterator[Cut | Checkpoint]:
    """The batches of an upload that is read from its first record on."""
    plan = planned.plan
    place = Checkpoint(plan.start, plan.start_line)
    return reading.read_batches(
        plan, place, 0, blocks, make_reader(plan, planned.options, planned.header)
    )


# ── the whole file ────────────────────────────────────────────────────────────────────────────────


def _read(file: BinaryIO, planned: Planned, progress: Progress) -> None:
    """Add all records of a file to the progress."""
    plan, seen, since = planned.plan, set[int](), 0
    progress.bytes = plan.start

    def counted() -> Iterator[bytes]:
        nonlocal since
        for block in _unpacked(file, plan):
            progress.bytes += len(block)
            since += len(block)
            if since > reading.MAX_BYTES_WITHOUT_BATCH:
                raise reading.gap_error(plan.packing)
            yield block

    for one in _batches(planned, counted()):
        if isinstance(one, Checkpoint):
            since = 0 if plan.packing == "plain" else since
            continue
        check_model(plan.model)
        add_cut(plan.known_model, progress, seen, one, planned.options.output_tokens)
        progress.record, since = one.end.record, 0


def _unpacked(file: BinaryIO, plan: SplitPlan) -> Iterator[bytes]:
    """The unpacked bytes from the first record on, in the blocks in which the stack reads them."""
    skip = plan.start
    if plan.packing == "plain":
        file.seek(skip)
        yield from _blocks(file)
        return
    file.seek(0)
    for block in decompress(plan.packing, _blocks(file)):
        if skip < len(block):
            yield block[skip:]
        skip = max(skip - len(block), 0)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(reading.RANGE_BYTES):
        yield block


# ── the beginning ─────────────────────────────────────────────────────────────────────────────────


class _BeginningOverError(Exception):
    """The beginning was read to its end, but the file goes on; never leaves this module."""


def _check_records(
    planned: Planned, beginning: Beginning, catalog: Catalog, *, needs_model: bool
) -> None:
    """Check the model, if there is a record, and how the records are divided.

    A bad record would fail alone.
    """
    plan = replace(planned.plan, first_requests=1, max_requests=1)
    if plan.model or needs_model:
        _check_model_and_records(planned._replace(plan=plan), beginning, catalog)
    if plan.form != "jsonl":
        for _ in windows(
            plan, Checkpoint(plan.start, plan.start_line), _to_end(beginning, plan.start)
        ):
            pass


def _check_model_and_records(planned: Planned, beginning: Beginning, catalog: Catalog) -> None:
    """Check that the model can be called, and that the first records can be sent to it.

    Warn of those that cannot.
    """
    model, seen, bad, is_all, first = planned.plan.model, 0, 0, True, None
    try:
        for one in _batches(planned, _to_end(beginning, planned.plan.start)):
            if isinstance(one, Checkpoint):
                continue
            if not seen:
                check_model(model)
                if advice := model_advice(model, catalog):
                    warnings.warn(advice, stacklevel=6)
            seen += len(one.rows)
            bad += len(one.rows.faults)
            if first is None and one.rows.faults:
                first = one.rows[min(one.rows.faults)]
            if seen >= LOOKED_AT_RECORDS:
                break
    except _BeginningOverError:
        is_all = False
    if first is None:
        return
    named = first.message.startswith("Line ")
    where = "" if named else f"Line {first.line:,}: " if first.line else "The first: "
    which = f"the first {seen:,}" if seen >= LOOKED_AT_RECORDS or not is_all else f"the {seen:,}"
    if bad == seen and is_all:
        message = f"None of {which} records can be sent to {model}. {where}{first.message}"
        raise UploadRefused(
            first.code, f"{message} Upload it all the same with `check=False`.", first.line
        )
    message = (
        f"{bad:,} of {which} records cannot be sent and will fail alone. {where}{first.message}"
    )
    warnings.warn(message, stacklevel=6)


def _to_end(beginning: Beginning, start: int) -> Iterator[bytes]:
    yield beginning.head[start:]
    if not beginning.complete:
        raise _BeginningOverError
