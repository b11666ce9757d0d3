"""`python -m local.workers_ai`: serve the local Workers AI until a signal ends it."""

import argparse
import signal
import sys

import msgspec

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
    parser.add_argument("--switches", default="{}", help="a JSON object, by name")
    options = parser.parse_args()
    try:
        given = msgspec.json.decode(options.switches, type=dict[str, object])
        behaviour = Behaviour().changed(given)
    except (msgspec.MsgspecError, SwitchError) as error:
        parser.error(str(error))

    server = Server(WorkersAI(behaviour), options.port)
    print(f"http://127.0.0.1:{server.server_port}{PREFIX}", flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
