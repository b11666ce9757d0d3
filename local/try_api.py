"""`make try FILE=… MODEL=… TEMPLATE=…`.

The local stack against the real API, for those with a token and no AWS account.

The token comes from the environment and is never written to disk: it is put in the local Secrets
Manager, which keeps it in memory. Everything is stopped at the end.

Environment: CLOUDFLARE_ACCOUNT_ID, CLOUDFLARE_API_TOKEN; WORKERS_AI_BASE_URL for an API other than
Cloudflare's.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from dropbatch.cli.cloudflare import DEFAULT_BASE_URL, Api, check_token
from dropbatch.errors import Error
from local import aws
from local.processes import stopped_at_end

HOME = aws.Home(aws.ROOT / ".local/try")
RESULTS = HOME.state / "results"
TOKEN = "CLOUDFLARE_API_TOKEN"  # noqa: S105 - the variable's name
ACCOUNT = "CLOUDFLARE_ACCOUNT_ID"


def run(file: Path, given: Mapping[str, str], environment: Mapping[str, str]) -> int:
    """Start the stack, run one job and download its results; return the command line's exit code.

    `given`: options of `put`, by name.
    """
    missing = [name for name in (ACCOUNT, TOKEN) if not environment.get(name)]
    if missing:
        raise Error(f"Set {' and '.join(missing)}.")
    base_url = environment.get("WORKERS_AI_BASE_URL") or DEFAULT_BASE_URL
    if wrong := check_token(Api(base_url, environment[ACCOUNT], environment[TOKEN])):
        raise Error(wrong)
    port = aws.free_port()
    parameters = f"CloudflareAccountId={environment[ACCOUNT]}"
    print(f"Starting a local AWS that calls {base_url} ...", flush=True)
    aws.up(
        {"LOCAL_PORT": str(port), "WORKERS_AI_BASE_URL": base_url, "LOCAL_PARAMETERS": parameters},
        HOME,
    )
    aws.put_secret(port, "ApiToken", environment[TOKEN])
    # A folder takes one job, and this stack is new.
    folder = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    command = [sys.executable, "-m", "dropbatch", "--local", "put", str(file), "--get", str(folder)]
    names = {name: value for name, value in environment.items() if name != TOKEN}
    done = subprocess.run(
        [*command, *(f"--{name}={value}" for name, value in given.items() if value)],
        env=names | {"DROPBATCH_LOCAL": str(HOME.stack_file), "PYTHONPATH": str(aws.ROOT)},
        check=False,
    )
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="make try", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("template", nargs="?", default="")
    options = parser.parse_args()
    if not options.file.is_file():
        how = "make try FILE=… MODEL=…, of a table also TEMPLATE='… {column} …'"
        parser.error(f"{options.file} is not a file; write {how}")
    given = {"model": options.model, "template": options.template}
    with stopped_at_end(lambda: aws.down(HOME)):
        try:
            return run(options.file, given, os.environ)
        except (Error, aws.LocalAwsError) as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
