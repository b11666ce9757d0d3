"""Runs a notebook with the library on the local stack."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
PACKAGES = (
    ROOT / ".venv/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
)
SUBMIT = (
    'client.submit([{"text": str(n)} for n in range(5)], name="notebook/", '
    'model="@cf/baai/bge-small-en-v1.5")'
)
CELLS = {
    "setup": f"""
import sys
sys.path[:0] = {[str(ROOT), str(PACKAGES)]!r}
import asyncio, dropbatch
asyncio.get_running_loop()  # An error if none runs.
client = dropbatch.Client(local=True)
job = {SUBMIT}
""",
    "wait": "job.wait()",
    "frame": "job.to_pandas()",
    "interrupt": f"""
import os, signal, threading, time
job = {SUBMIT}
while job.status()["state"] in {{"uploaded", "splitting"}}:
    time.sleep(0.1)
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
job.wait()
""",
    "again": "job.wait()",
}


def shown(output: Any) -> str:  # nbformat's nodes have any members
    """An output's text; an error's name and message."""
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    return str(output.text if output.output_type == "stream" else output.data["text/plain"])


if __name__ == "__main__":
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(code) for code in CELLS.values()]
    )
    NotebookClient(notebook, timeout=120, allow_errors=True, kernel_name="python3").execute()
    print(
        json.dumps(
            {
                name: [shown(one) for one in cell.outputs]
                for name, cell in zip(CELLS, notebook.cells, strict=True)
            }
        )
    )
