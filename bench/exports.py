"""Exports of a million embeddings: seconds and peak memory, and as a ratio to Arrow's own JSON reader.

python -m bench.exports [RECORDS]

2026-11-23, 2 processors shared with other work, so times are rough: 1,000,000 embeddings,
4.53 GB. arrow-json 73.7 s, 503 MB;
parquet 97.3 s (1.32x), 317 MB; arrow 61.1 s (0.83x), 294 MB; npy 54.0 s (0.73x), 329 MB.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyarrow import json as arrow_json

from dropbatch.results.exports import export_folder

DIMENSIONS = 384
KINDS = ("arrow-json", "parquet", "arrow", "npy", "vectorize")


def write_output(folder: Path, records: int) -> int:
    """Write an output of embeddings and its manifest; return its bytes."""
    chance = random.Random(1)
    vectors = [",".join(f"{chance.uniform(-1, 1):.8f}" for _ in range(DIMENSIONS)) for _ in range(200)]
    with (folder / "output.jsonl").open("w") as file:
        for number in range(records):
            file.write(
                f'{{"id":{number},"external_reference":"r{number}","success":true,"result":{{"shape":[1,{DIMENSIONS}],'
                f'"data":[[{vectors[number % 200]}]],"pooling":"mean"}}}}\n'
            )
    size = (folder / "output.jsonl").stat().st_size
    entry = {"name": "output.jsonl", "kind": "output", "bytes": size, "sha256": None, "lines": records}
    manifest = {"job_id": "bench", "format": "native", "model": "@cf/baai/bge-small-en-v1.5", "files": [entry]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return size


def measure(kind: str, folder: Path) -> None:
    """Do one export in this process; print seconds and peak MB."""
    began = time.perf_counter()
    if kind == "arrow-json":
        reader = arrow_json.open_json(str(folder / "output.jsonl"), arrow_json.ReadOptions(block_size=8 << 20))
        for _ in reader:
            pass
    else:
        export_folder(folder, kind)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"kind": kind, "seconds": round(seconds, 2), "peak_mb": round(peak)}))


def main() -> None:
    """Measure each export in its own process."""
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
        return
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        size = write_output(Path(name), records)
        print(f"{records:,} embeddings of {DIMENSIONS} numbers, {size / 1e9:.2f} GB")
        baseline = 0.0
        for kind in KINDS:
            done = subprocess.run(
                [sys.executable, "-m", "bench.exports", kind, name], check=True, capture_output=True, text=True
            )
            found = json.loads(done.stdout)
            baseline = baseline or found["seconds"]
            ratio = found["seconds"] / baseline
            print(f"{kind:<10}  {found['seconds']:>7.2f} s  {ratio:>5.2f}x  {found['peak_mb']:>5} MB")


if __name__ == "__main__":
    main()
