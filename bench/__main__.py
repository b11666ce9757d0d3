"""`python -m bench`: measures everything and writes `bench/README.md`.

`--quick` prints a rough table in a minute.

Each figure is CPU time, never wall time, and each target is a ratio between steps that took turns
in one run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import inputs, steps
from bench.report import MOST_TIMES_FLOOR, MOST_TIMES_FLOOR_OF_FEW, Growth, Speed, Table, readme
from bench.timing import Spread, Times, in_fresh_process, ratio, take_turns
from dropbatch.core.models import find_model, max_records_per_reply
from dropbatch.core.plan import FIRST_BATCH_RECORDS
from local.template import template
from shared.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

HANDLERS = ("functions.submit.handler", "functions.poll.handler")
README = Path(__file__).with_name("README.md")
GB, MB = 1e9, 1_000_000


@dataclass(frozen=True, slots=True)
class Extent:
    """The sizes and numbers of rounds of a run."""

    rounds: int
    upload: int
    reply: int
    answers: int
    split_growth: tuple[int, ...]
    collect_growth: tuple[int, ...]
    processes: int


# From 200 MB on: below that an upload ends before its batches, which grow, are at their largest.
FULL = Extent(
    5, 80 * MB, 30 * MB, 100_000, (200 * MB, 600 * MB, 2_000 * MB), (2 * MB, 20 * MB, 200 * MB), 7
)
QUICK = Extent(2, 16 * MB, 6 * MB, 5_000, (10 * MB, 50 * MB), (2 * MB, 20 * MB), 2)


def split_rows(extent: Extent, folder: Path) -> list[Speed]:
    """Split and its floor, for each kind of upload.

    A document's floor reads the same records as JSON Lines.
    """
    found = []
    kinds = [(kind, False) for kind in inputs.UPLOADS] + [("1 KB records", True)]
    upload, lines, written = folder / "upload", folder / "lines", folder / "written"
    for kind, document in kinds:
        inputs.write_upload(upload, kind, extent.upload, document=document)
        inputs.write_upload(lines, kind, extent.upload)
        ways = {
            "ours": partial(_into, written, upload, partial(steps.split, document=document)),
            "floor": partial(_into, written, lines, steps.split_floor),
        }
        name = f"{kind}, as the API's document" if document else kind
        found.append(_speed(name, take_turns(ways, extent.rounds), upload.stat().st_size))
        print(found[-1].line())
    return found


def _into(written: Path, upload: Path, way: Callable[[Path, BinaryIO], object]) -> None:
    with written.open("wb", buffering=0) as output:
        way(upload, output)


def collect_rows(extent: Extent, folder: Path) -> list[Speed]:
    """Collect and its floor, for each kind of reply, to batches of few.

    Of the usual most and of the most requests.
    """
    found = []
    reply = folder / "reply"
    for kind, model in inputs.MOST_ANSWERS.items():
        most = min(max_records_per_reply(find_model(model)), extent.answers)
        for count in sorted({FIRST_BATCH_RECORDS, steps.MAX_RECORDS, most}):
            collected = steps.Collected(inputs.write_answers(reply, kind, count))
            # A small reply takes a millisecond.
            repeat = max(extent.reply // reply.stat().st_size, 1)
            ways = {"ours": collected.collect, "floor": steps.collect_floor}
            times = take_turns(
                {name: partial(_again, repeat, way, reply) for name, way in ways.items()},
                extent.rounds,
            )
            size = repeat * reply.stat().st_size
            few = count == FIRST_BATCH_RECORDS
            found.append(
                _speed(
                    f"{count:,} {kind}",
                    times,
                    size,
                    MOST_TIMES_FLOOR_OF_FEW if few else MOST_TIMES_FLOOR,
                )
            )
            print(found[-1].line())
    return found


def _again(times: int, way: Callable[[Path], object], reply: Path) -> None:
    for _ in range(times):
        way(reply)


def _speed(name: str, times: Times, size: int, most: float = MOST_TIMES_FLOOR) -> Speed:
    per_gb, floor = (
        Spread.of([one / size * GB for one in times[step]]) for step in ("ours", "floor")
    )
    return Speed(name, per_gb, floor, ratio(times, "ours", "floor"), most)


def growth_rows(extent: Extent, folder: Path) -> list[Growth]:
    """Memory and CPU of both steps by the size of their input, each in its own process."""
    found = []
    seed, upload, reply = folder / "seed", folder / "upload", folder / "reply"
    inputs.write_upload(seed, "1 KB records", 10 * MB)
    for size in extent.split_growth:
        inputs.repeat_upload(upload, seed, size)
        found.append(_growth("split", size, partial(in_fresh_process, "split_memory", upload)))
        print(found[-1].line())
    for size in extent.collect_growth:
        count = inputs.write_reply(reply, "embeddings of 384 floats", size)
        found.append(
            _growth("collect", size, partial(in_fresh_process, "collect_memory", reply, count))
        )
        print(found[-1].line())
    return found


def _growth(step: str, size: int, measure: Callable[[], dict[str, float]]) -> Growth:
    runs = [measure() for _ in range(3)]
    spreads = {what: Spread.of([one[what] for one in runs]) for what in runs[0]}
    per_gb = Spread.of([one["seconds"] / size * GB for one in runs])
    return Growth(step, size, spreads["before"], spreads["peak"], spreads.get("anonymous"), per_gb)


def import_rows(extent: Extent) -> list[tuple[str, str, Spread, Spread]]:
    """CPU milliseconds of importing each handler and of building its services."""
    found = []
    for handler in HANDLERS:
        in_fresh_process("imports", handler, "yes")
        for compiled in ("yes", "no"):
            runs = [in_fresh_process("imports", handler, compiled) for _ in range(extent.processes)]
            spreads = [
                Spread.of([one[what] * 1_000 for one in runs]) for what in ("imports", "services")
            ]
            found.append((handler, compiled, spreads[0], spreads[1]))
            print(f"import {handler}, byte code {compiled}: {spreads[0].text('.0f', ' ms')}")
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="smaller inputs, fewer rounds; print, and write no file",
    )
    quick = parser.parse_args().quick
    variables = template()["Globals"]["Function"]["Environment"]["Variables"]
    allocator = {name: value for name, value in variables.items() if name.startswith("MALLOC_")}
    if not os.environ.items() >= allocator.items():
        os.environ |= allocator  # read when a process starts
        os.execv(sys.executable, [sys.executable, "-m", "bench", *sys.argv[1:]])  # noqa: S606 - this program again
    logger.setLevel("WARNING")
    extent = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        table = Table(
            rounds=extent.rounds,
            upload=extent.upload,
            reply=extent.reply,
            split=split_rows(extent, folder),
            collect=collect_rows(extent, folder),
            growth=growth_rows(extent, folder),
            imports=import_rows(extent),
            processes=extent.processes,
        )
    text = readme(table)
    if quick:
        print(text)
    else:
        README.write_text(text)
        print(
            "Written: "
            f"{README.relative_to(Path.cwd()) if README.is_relative_to(Path.cwd()) else README}"
        )


if __name__ == "__main__":
    main()
