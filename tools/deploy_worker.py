"""`make deploy-worker`.

Deploy the Worker of `worker/` to a Cloudflare account, with the secret that its stack has.

The stack generates the secret; it reaches the Worker through wrangler's standard input. It is never
printed and never on disk. The Worker is named after its stack, so that each stack has its own.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from http import HTTPStatus
from pathlib import Path

from dropbatch.cli.cloudflare import Api
from dropbatch.errors import Error
from local import worker
from tools import answers
from tools.account_stack import (
    DeployError,
    Step,
    exit_code,
    find_stack,
    next_step,
    settings_of,
)

MAX_NAME = 63
"""Characters: a Worker's name is a part of its host's name."""
CHECK_TRIES, CHECK_SECONDS = 10, 3.0
"""A new Worker, or a new secret, takes some seconds to take effect everywhere."""
WHAT_WRANGLER_NEEDS = """wrangler failed; its own message is above. It needs
- a login: run npx wrangler login in the folder worker/. Without a browser, set CLOUDFLARE_API_TOKEN
  to a token with the permission "Workers Scripts - Edit" (a token for Workers AI alone is refused;
  unset that one);
- the account, if it can see several: set CLOUDFLARE_ACCOUNT_ID;
- a workers.dev subdomain of that account: the page "Workers & Pages" of Cloudflare's dashboard
  creates one."""


def worker_name(stack_name: str, region: str) -> str:
    """The name of a stack's Worker: lower-case letters, digits and hyphens."""
    name = f"{stack_name}-{region}".lower()
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _wrangler(
    *arguments: str, account: str, given: str | None = None, report: Path | None = None
) -> None:
    """Run wrangler in worker/. A person sees its own output, and answers its own questions.

    It finds an account that is empty. `given` is its standard input, None: this program's.
    In `report` it writes what it did, as JSON Lines.
    """
    environment = dict(os.environ)
    if account:
        environment["CLOUDFLARE_ACCOUNT_ID"] = account
    if report:
        environment["WRANGLER_OUTPUT_FILE_PATH"] = str(report)
    command = [shutil.which("npx") or "npx", "--no-install", "wrangler", *arguments]
    done = subprocess.run(
        command, cwd=worker.WORKER, env=environment, input=given, text=True, check=False
    )
    if done.returncode:
        raise DeployError(WHAT_WRANGLER_NEEDS)


def address_in(report: str) -> str:
    """The Worker's address in what `wrangler deploy` reports; empty if there is none."""
    entries = map(json.loads, report.splitlines())
    deployed = [one for one in entries if one.get("type") == "deploy"]
    targets = [target for one in deployed for target in one.get("targets") or ()]
    return next((one for one in targets if re.fullmatch(r"https://[a-z0-9.-]+", one)), "")


def deploy_code(name: str, account: str) -> str:
    """Deploy the Worker; return its address. Until it has a secret, it rejects every call."""
    worker.install()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        _wrangler("deploy", "--name", name, account=account, report=report)
        address = address_in(report.read_text("utf-8") if report.exists() else "")
    if not address:
        raise DeployError(
            f"The Worker {name} is deployed, but wrangler reports no address: is its "
            "workers.dev route off? "
            'The page "Workers & Pages" of Cloudflare\'s dashboard shows it.'
        )
    return address


def give_secret(name: str, account: str, value: str) -> None:
    worker.install()
    _wrangler("secret", "put", "SHARED_SECRET", "--name", name, account=account, given=value)


def check_worker(url: str, secret: str) -> str:
    """Call the Worker's free check; return what is wrong and how to fix it, empty if nothing is."""
    try:
        reply = Api(url, "", secret).get("/check")
    except Error as error:
        return f"{error}. Is WorkerUrl ({url}) right?"
    if reply.status == HTTPStatus.OK:
        return ""
    if reply.status == HTTPStatus.UNAUTHORIZED:
        return "The Worker does not accept the stack's secret: make deploy-worker sets it."
    return f"There is no such Worker at {url} ({reply}); is WorkerUrl right?"


def wait_until_accepted(address: str, value: str) -> str:
    """Wait until the Worker accepts the secret; return what is wrong if it does not."""
    for _ in range(CHECK_TRIES):
        if not (wrong := check_worker(address, value)):
            break
        time.sleep(CHECK_SECONDS)
    return wrong


def deploy_worker() -> str:
    """Deploy the stack's Worker, with the stack's secret if it uses one; return what to say."""
    saved = answers.choose(os.environ).settings
    stack = find_stack(saved)
    known = stack.parameters if stack and next_step(stack) is Step.UPDATE else {}
    account = os.environ.get(answers.ACCOUNT) or known.get("CloudflareAccountId", "")
    name = worker_name(saved["stack_name"], saved["region"])
    address = deploy_code(name, account)
    if stack is None or known.get("Transport") != "worker":
        return (
            f"The Worker {name} is up. To use it:\n  make deploy "
            f'PARAMETERS="Transport=worker WorkerUrl={address}"\n'
            "which also gives it the stack's secret. Until then it rejects every call."
        )
    settings, value = settings_of(saved, stack)
    give_secret(name, account, value)
    if settings["WORKER_URL"].rstrip("/") != address:
        return (
            f"The Worker {name} is up and has the stack's secret, but the stack calls "
            f"{settings['WORKER_URL']}. To use this one:\n  make deploy "
            f'PARAMETERS="WorkerUrl={address}"'
        )
    if wrong := wait_until_accepted(address, value):
        raise DeployError(f"The Worker is deployed, but its check failed. {wrong}")
    return f"The Worker {name} is up at {address} and accepts the stack's secret."


def main() -> int:
    return exit_code(lambda: print(f"\n{deploy_worker()}"), "The same command goes on.")


if __name__ == "__main__":
    sys.exit(main())
