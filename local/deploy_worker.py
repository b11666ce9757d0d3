"""`make deploy-worker`: deploy the Worker of `worker/` to a Cloudflare account, with its shared secret on both sides.

The secret is generated here, stored in AWS Secrets Manager, and passed to the Worker through wrangler's standard input.
It is never printed and never on disk. Another run deploys the current Worker with the same secret.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
from botocore.exceptions import BotoCoreError, ClientError

from local import worker
from local.account_stack import DeployError, saved_answers, session
from local.processes import LocalAwsError
from local.token_check import check_worker

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

ADDRESS = re.compile(r"https://[a-z0-9.-]+\.workers\.dev")
CHECK_TRIES, CHECK_SECONDS = 10, 3.0
"""A new Worker, or a new secret, takes some seconds to take effect everywhere."""


def shared_secret(client: SecretsManagerClient, name: str) -> tuple[str, str]:
    """ARN and value of the shared secret, which is created if it does not exist."""
    try:
        found = client.get_secret_value(SecretId=name)
    except client.exceptions.ResourceNotFoundException:
        value = secrets.token_urlsafe(32)
        description = "Secret that Dropbatch shares with its Worker, bare."
        return client.create_secret(Name=name, Description=description, SecretString=value)["ARN"], value
    return found["ARN"], found["SecretString"]


def _wrangler(*arguments: str, given: str = "") -> str:
    """Run wrangler in worker/; return what it printed.

    Raises:
        DeployError: it failed, and has printed why.
    """
    command = [shutil.which("npx") or "npx", "--no-install", "wrangler", *arguments]
    lines = []
    with subprocess.Popen(
        command, cwd=worker.WORKER, stdin=subprocess.PIPE if given else None, stdout=subprocess.PIPE, text=True
    ) as process:
        if given and process.stdin:
            process.stdin.write(given)
            process.stdin.close()
        for line in process.stdout or ():
            sys.stdout.write(line)
            lines.append(line)
    if process.returncode:
        raise DeployError("wrangler failed; see above. It needs a login: run npx wrangler login in the folder worker/.")
    return "".join(lines)


def address_in(output: str) -> str:
    """The Worker's address in the output of `wrangler deploy`; empty if there is none."""
    found = ADDRESS.search(output)
    return found[0] if found else ""


def deploy_worker() -> tuple[str, str]:
    """Deploy the Worker and give it its secret; return its address and the secret's ARN.

    Raises:
        DeployError: what failed.
        LocalAwsError: Node.js is missing.
    """
    worker.install()
    saved = saved_answers()
    client = session(saved).client("secretsmanager")
    arn, value = shared_secret(client, f"{saved['stack_name']}/worker")
    address = address_in(_wrangler("deploy"))
    _wrangler("secret", "put", "SHARED_SECRET", given=value)
    if not address:
        raise DeployError(
            "The Worker is deployed, but wrangler printed no workers.dev address. Cloudflare's dashboard shows it."
        )
    for tried in range(CHECK_TRIES):
        if not (wrong := check_worker(address, value)):
            return address, arn
        time.sleep(CHECK_SECONDS if tried < CHECK_TRIES - 1 else 0)
    raise DeployError(f"The Worker is deployed, but its check failed. {wrong}")


def main() -> int:
    """Deploy; return the exit code."""
    try:
        address, arn = deploy_worker()
    except (DeployError, LocalAwsError) as error:
        print(error, file=sys.stderr)
        return 1
    except (BotoCoreError, ClientError, httpx.HTTPError) as error:
        print(f"AWS rejected a call or could not be reached: {error}", file=sys.stderr)
        return 1
    print(f"""
The Worker is up and accepts the secret. Set these parameters of the stack with make deploy:
  Transport        worker
  WorkerUrl        {address}
  WorkerSecretArn  {arn}""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
