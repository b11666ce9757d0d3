"""Measurements that need their own process: peak memory and imports."""

import importlib
import json
import os
import re
import sys
import time
from pathlib import Path

from local.template import default_variables

_QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/"
EXAMPLE_SETTINGS = {
    **default_variables(),
    **{
        f"{name}_QUEUE_URL": f"{_QUEUE}{name.lower()}"
        for name in ("UPLOAD", "SPLIT", "SUBMIT", "POLL", "VISIT")
    },
    "BUCKET_NAME": "bucket",
    "TABLE_NAME": "table",
    "CLOUDFLARE_ACCOUNT_ID": "0123456789abcdef0123456789abcdef",
    "CLOUDFLARE_API_TOKEN_SECRET_ARN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:token",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
}


def peak() -> float:
    """The peak resident memory of this process, in MB."""
    status = Path("/proc/self/status")
    # getrusage may report the parent's peak, from before this program was loaded
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024 / 1e6  # type: ignore[index]
    import resource  # noqa: PLC0415 - only where there is no /proc

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def split_memory(upload: str) -> dict[str, float]:
    """Peak memory before and after a split, and its CPU seconds."""
    from bench.steps import split  # noqa: PLC0415 - `imports` must not find it loaded

    before, begun = peak(), time.process_time()
    with Path(os.devnull).open("wb") as null:
        split(Path(upload), null)
    return {"before": before, "peak": peak(), "seconds": time.process_time() - begun}


def collect_memory(reply: str, count: str) -> dict[str, float]:
    """The same for a collect, of a mapped file, whose pages count as long as memory is free."""
    from bench.steps import Collected  # noqa: PLC0415

    collected = Collected(int(count))
    before, begun = peak(), time.process_time()
    collected.collect(Path(reply))
    seconds = time.process_time() - begun
    return {"before": before, "peak": peak(), "seconds": seconds, "anonymous": collected.anonymous}


def imports(handler: str) -> dict[str, float]:
    """CPU seconds to import a handler, and then to build its services."""
    os.environ.update(EXAMPLE_SETTINGS)
    sys.dont_write_bytecode = False  # The first of these processes compiles for the others.
    begun = time.process_time()
    importlib.import_module(handler)
    imported = time.process_time()
    sys.modules["shared.bootstrap"].services()
    return {"imports": imported - begun, "services": time.process_time() - imported}


TASKS = {one.__name__: one for one in (split_memory, collect_memory, imports)}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])))
