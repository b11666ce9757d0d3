"""Measurements that need their own process: peak memory and imports."""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import re
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from local.template import default_variables

RUNTIME_PACKAGES = ("boto3", "botocore", "s3transfer", "urllib3", "dateutil", "jmespath", "six.py")
"""Packages that come compiled with the Lambda runtime."""

EXAMPLE_SETTINGS = {
    **default_variables(),
    "BUCKET_NAME": "bucket",
    "TABLE_NAME": "table",
    "UPLOAD_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/123456789012/upload",
    "SPLIT_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/123456789012/split",
    "SUBMIT_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/123456789012/submit",
    "POLL_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/123456789012/poll",
    "VISIT_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/123456789012/visit",
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
    """The same for a collect.

    The reply is a mapped file, whose pages count as long as memory is free.
    """
    from bench.steps import Collected  # noqa: PLC0415

    collected = Collected(int(count))
    before, begun = peak(), time.process_time()
    collected.collect(Path(reply))
    seconds = time.process_time() - begun
    return {"before": before, "peak": peak(), "seconds": seconds, "anonymous": collected.anonymous}


def imports(handler: str, compiled: str) -> dict[str, float]:
    """CPU seconds to import a handler, and then to build its services.

    Our own packages with byte code or without.
    """
    os.environ.update(EXAMPLE_SETTINGS)
    sys.dont_write_bytecode = False  # the first of these processes compiles for the others
    if compiled == "no":
        _ignore_byte_code()
    begun = time.process_time()
    importlib.import_module(handler)
    imported = time.process_time()
    sys.modules["shared.bootstrap"].services()
    return {"imports": imported - begun, "services": time.process_time() - imported}


def _ignore_byte_code() -> None:
    """Compile the artifact's modules at import, as in a function whose package has no byte code."""
    kept = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
    packages = sysconfig.get_path("purelib")
    cached = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> Any:
        path = self.get_filename(name)
        inside = path.removeprefix(packages).lstrip("/")
        ours = path.startswith(packages) or not path.startswith(kept)
        if not ours or inside.startswith(RUNTIME_PACKAGES):
            return cached(self, name)
        return self.source_to_code(self.get_data(path), path)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


TASKS = {one.__name__: one for one in (split_memory, collect_memory, imports)}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])))
