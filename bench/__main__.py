"""`make bench`: measures everything and writes the pages of this folder.

This module measures split, collect and imports for `README.md`. Each figure is CPU time, never wall
time, and each speed stands beside that of a floor with which it took turns in one run.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from bench import cost_page, inputs, small_jobs, steps
from bench.timing import (
    Spread,
    Times,
    grid,
    in_fresh_process,
    machine,
    ratio,
    take_turns,
    write_page,
)
from dropbatch.core.models import find_model, max_records_per_reply
from dropbatch.core.plan import FIRST_BATCH_RECORDS
from local.template import template
from shared.observability import logger
from tests.simulation.cloudflare import both_ways

README = Path(__file__).with_name("README.md")
HANDLERS = ("functions.submit.handler", "functions.poll.handler")
GB, MB = 1e9, 1_000_000
ROUNDS, PROCESSES = 5, 7
UPLOAD, REPLIES = 80 * MB, 30 * MB
ANSWERS = 100_000
"""The most answers of a reply."""
UPLOADS = (200 * MB, 600 * MB, 2_000 * MB)
"""Below 200 MB an upload ends before its batches, which grow, are at their largest."""
LARGE_REPLIES = (2 * MB, 20 * MB, 200 * MB)
MOST_TIMES_FLOOR, MOST_TIMES_FLOOR_OF_SMALL = 1.8, 3.0
"""The second of few answers: what is done once is as much as the rest."""


def _split() -> list[list[str]]:
    """Split and its floor, for each kind of upload."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        upload, written = (Path(name) / one for one in ("upload", "written"))
        for kind in inputs.UPLOADS:
            inputs.write_upload(upload, kind, UPLOAD)
            model = inputs.CHAT_MODEL if kind == inputs.CHAT else inputs.MODEL
            ways = {
                "ours": partial(_into, written, upload, partial(steps.split, model=model)),
                "floor": partial(_into, written, upload, steps.split_floor),
            }
            times = take_turns(ways, ROUNDS)
            rows.append(_speed(kind, times, upload.stat().st_size, MOST_TIMES_FLOOR))
    return rows


def _into(written: Path, upload: Path, way: Callable[[Path, BinaryIO], object]) -> None:
    with written.open("wb", buffering=0) as output:
        way(upload, output)


def _collect() -> list[list[str]]:
    """Collect and its floor, for each kind of reply: few answers, the usual most, and the most."""
    rows = []
    with tempfile.NamedTemporaryFile(prefix="bench-") as file:
        reply = Path(file.name)
        for kind, model in inputs.MOST_ANSWERS.items():
            most = min(max_records_per_reply(find_model(model)), ANSWERS)
            for count in sorted({FIRST_BATCH_RECORDS, steps.MAX_RECORDS, most}):
                collected = steps.Collected(inputs.write_answers(reply, kind, count))
                repeat = max(REPLIES // reply.stat().st_size, 1)  # One takes a millisecond.
                ways = {
                    "ours": partial(_again, repeat, collected.collect, reply),
                    "floor": partial(_again, repeat, steps.collect_floor, reply),
                }
                is_small = count == FIRST_BATCH_RECORDS
                limit = MOST_TIMES_FLOOR_OF_SMALL if is_small else MOST_TIMES_FLOOR
                size = repeat * reply.stat().st_size
                rows.append(_speed(f"{count:,} {kind}", take_turns(ways, ROUNDS), size, limit))
    return rows


def _again(times: int, way: Callable[[Path], object], reply: Path) -> None:
    for _ in range(times):
        way(reply)


def _speed(name: str, times: Times, size: int, most: float) -> list[str]:
    per_gb = Spread.of([one / size * GB for one in times["ours"]])
    floors = ratio(times, "ours", "floor")
    print(f"{name}: {floors.text()} times its floor", flush=True)
    verdict = "met" if floors.middle <= most else "**missed**"
    return [name, per_gb.text(), floors.text(), f"{most} {verdict}"]


def _growth() -> tuple[list[list[str]], str]:
    """Memory and CPU of both steps by the size of their input; whether a split's is flat."""
    rows, peaks = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        seed, upload, reply = (Path(name) / one for one in ("seed", "upload", "reply"))
        inputs.write_upload(seed, "1 KB records", 10 * MB)
        for size in UPLOADS:
            inputs.repeat_upload(upload, seed, size)
            runs = [in_fresh_process("split_memory", upload) for _ in range(3)]
            peaks.append(Spread.of([one["peak"] for one in runs]).middle)
            rows.append(_grown("split", size, runs))
        for size in LARGE_REPLIES:
            count = inputs.write_reply(reply, "embeddings of 384 floats", size)
            runs = [in_fresh_process("collect_memory", reply, count) for _ in range(3)]
            rows.append(_grown("collect", size, runs))
    is_flat = max(peaks) < 1.1 * min(peaks) and max(peaks) < 200
    return rows, "met" if is_flat else "**missed**"


def _grown(step: str, size: int, runs: list[dict[str, float]]) -> list[str]:
    spreads = {name: Spread.of([one[name] for one in runs]) for name in runs[0]}
    per_gb = Spread.of([one["seconds"] / size * GB for one in runs])
    memory = [spreads[name].text(".0f") for name in ("before", "peak")]
    own = spreads["anonymous"].text(".0f") if "anonymous" in spreads else "-"
    print(f"{step} of {size // MB:,} MB: peak {memory[1]} MB", flush=True)
    return [step, f"{size // MB:,} MB", per_gb.text(), *memory, own]


def _imports() -> list[list[str]]:
    """CPU milliseconds of importing each handler and of building its services."""
    rows = []
    for handler in HANDLERS:
        in_fresh_process("imports", handler)  # It compiles for the others.
        runs = [in_fresh_process("imports", handler) for _ in range(PROCESSES)]
        found = {
            name: Spread.of([one[name] * 1_000 for one in runs]) for name in ("imports", "services")
        }
        rows.append([f"`{handler}`", *(one.text(".0f") for one in found.values())])
    return rows


def measure() -> None:
    """Write the tables of the page."""
    growth, flat = _growth()
    head = ["step", "input", "CPU, s/GB", "after imports, MB", "peak, MB", "not of files, MB"]
    promise = f"Split: at most 200 MB, and within 10 % whatever the size: {flat}."
    write_page(
        README,
        "make bench",
        machine=f"On {machine()}.",
        split=grid(["upload", "s/GB", "times floor", "at most"], _split()),
        collect=grid(["reply", "s/GB", "times floor", "at most"], _collect()),
        growth=f"{promise}\n\n{grid(head, growth)}",
        imports=grid(["handler", "imports, ms", "services, ms"], _imports()),
    )


def main() -> None:
    variables = template()["Globals"]["Function"]["Environment"]["Variables"]
    allocator = {name: value for name, value in variables.items() if name.startswith("MALLOC_")}
    if not os.environ.items() >= allocator.items():
        os.environ |= allocator  # Read when a process starts.
        os.execv(sys.executable, [sys.executable, "-m", "bench"])  # noqa: S606 - this again
    logger.setLevel("WARNING")
    measure()
    for page in (cost_page, both_ways, small_jobs):
        page.main()


if __name__ == "__main__":
    main()
