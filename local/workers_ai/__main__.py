"""`python -m local.workers_ai`: serve the local Workers AI until a signal ends it."""

import argparse
import os
import signal
import sys
from pathlib import Path

from local.workers_ai.api import WorkersAI
from local.workers_ai.behaviour import Behaviour, SwitchError, switches
from local.workers_ai.edge import PREFIX
from local.workers_ai.faults import KINDS
from local.workers_ai.server import Server


def _lists() -> str:
    """List every switch with its default and the evidence for it."""
    named = [
        f"  {name}={default} ({verdict})\n      {about}"
        for name, default, verdict, about in switches()
    ]
    kinds = [f"  {name} ({kind.where})\n      {kind.about}" for name, kind in KINDS.items()]
    return "\n".join(["switches:", *named, "", "faults:", *kinds])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m local.workers_ai",
        description=__doc__,
        epilog=_lists(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 chooses one")
    parser.add_argument(
        "--port-file", type=Path, help="file that gets the port once the server listens"
    )
    parser.add_argument(
        "--switch",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="NAME.KEY=VALUE for a mapping",
    )
    options = parser.parse_args()
    try:
        behaviour = Behaviour().changed_by_text(*options.switch)
    except SwitchError as error:
        parser.error(str(error))

    server = Server(WorkersAI(behaviour), options.port)
    port = server.server_address[1]
    if options.port_file:
        # A reader that waits for the file must never see part of it.
        draft = options.port_file.with_name(f"{options.port_file.name}.{os.getpid()}")
        draft.write_text(f"{port}\n")
        draft.replace(options.port_file)
    print(f"http://127.0.0.1:{port}{PREFIX}", flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
