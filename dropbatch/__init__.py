"""Dropbatch, the library.

`Client` for a user's programs, and the rules that the stack's functions use too.

The functions import this package: it loads nothing until a name is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dropbatch.client.client import Client
    from dropbatch.client.job import Job, wait
    from dropbatch.client.records import Record
    from dropbatch.errors import (
        Error,
        JobFailed,
        NotFound,
        NotPermitted,
        TimedOut,
        UploadRefused,
        UsageError,
    )

__version__ = "0.9.0"

__all__ = [
    "Client",
    "Error",
    "Job",
    "JobFailed",
    "NotFound",
    "NotPermitted",
    "Record",
    "TimedOut",
    "UploadRefused",
    "UsageError",
    "wait",
]

_MODULES = {
    "Client": "dropbatch.client.client",
    "Job": "dropbatch.client.job",
    "Record": "dropbatch.client.records",
    "wait": "dropbatch.client.job",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "dropbatch.errors")), name)
