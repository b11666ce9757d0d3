"""`make deploy`: pack for AWS, `sam deploy` (guided the first time), then one check of the Cloudflare token.

Only this and the SAM CLI ever speak to a real AWS account, with the user's own credentials. The token is read
back from where the stack keeps it, so that what is checked is what the functions will use. It is not printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.exceptions import BotoCoreError, ClientError

ROOT = Path(__file__).resolve().parent.parent
SAM = ROOT / ".local/sam/bin/sam"
CONFIG = ROOT / "samconfig.toml"
CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0


def _saved() -> dict[str, Any]:
    """What `sam deploy` has been told: the defaults, and the user's answers once there are any."""
    told = tomllib.loads(CONFIG.read_text())["default"]
    return {**told["global"]["parameters"], **told["deploy"]["parameters"]}


def _architecture(saved: dict[str, Any]) -> str:
    """The processor that the stack's functions run on; the template's default is arm64."""
    overrides = saved.get("parameter_overrides", "")
    text = overrides if isinstance(overrides, str) else " ".join(overrides)
    chosen = re.search(r'Architecture"?="?(arm64|x86_64)', text)
    return chosen[1] if chosen else "arm64"


def _sam(*arguments: str, **environment: str) -> None:
    subprocess.run([SAM, *arguments], cwd=ROOT, env={**os.environ, **environment}, check=True)


def _session(saved: dict[str, Any]) -> boto3.Session:
    return boto3.Session(profile_name=saved.get("profile"), region_name=saved.get("region"))


def _is_deployed(saved: dict[str, Any]) -> bool:
    """Whether answers were saved and led to a stack: without one, nobody remembers the token."""
    if "parameter_overrides" not in saved:
        return False
    try:
        _session(saved).client("cloudformation").describe_stacks(StackName=saved["stack_name"])
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":  # CloudFormation's word for "no such stack".
            return False
        raise
    return True


def deploy() -> dict[str, Any]:
    """Pack and deploy; what was saved of the answers."""
    saved = _saved()
    again = _is_deployed(saved)
    built = _architecture(saved)
    _sam("build", DROPBATCH_BUILD=built)
    if again:
        _sam("deploy", "--no-fail-on-empty-changeset")
    else:
        print("\nThe first time: a few questions. Save the answers to samconfig.toml; the token is left out.\n")
        _sam("deploy", "--guided")
    saved = _saved()
    if _architecture(saved) != built:
        print(f"\nThe functions run on {_architecture(saved)}, but were packed for {built}: once more.\n")
        _sam("build", DROPBATCH_BUILD=_architecture(saved))
        _sam("deploy", "--no-fail-on-empty-changeset")
    return saved


def _deployed_settings(saved: dict[str, Any]) -> tuple[dict[str, str], str]:
    """The submit function's environment, and the token it reads."""
    session = _session(saved)
    stack = session.client("cloudformation").describe_stacks(StackName=saved["stack_name"])["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    function = session.client("lambda").get_function_configuration(FunctionName=outputs["SubmitFunctionName"])
    settings: dict[str, str] = function["Environment"]["Variables"]
    secret = session.client("secretsmanager").get_secret_value(SecretId=settings["CLOUDFLARE_API_TOKEN_SECRET_ARN"])
    return settings, secret.get("SecretString", "")


def _first_error(reply: httpx.Response) -> str:
    try:
        error = reply.json()["errors"][0]
    except (ValueError, LookupError, TypeError):
        return f"HTTP {reply.status_code}"
    return f"HTTP {reply.status_code}, code {error.get('code')}: {error.get('message')}"


def check_token(base_url: str, account_id: str, token: str, transport: httpx.BaseTransport | None = None) -> str:
    """Ask Cloudflare for one model's name with the token; what is wrong and how to mend it, or nothing.

    Args:
        base_url: the API, such as https://api.cloudflare.com/client/v4.
        account_id: the account whose models are asked for.
        token: the bare token.
        transport: another way to the API, for tests.
    """
    mend = "put the right one in the stack's secret (Secrets Manager); the functions read it at once."
    if not token or token != token.strip():
        return f"The secret must hold the bare token and no space or line end: {mend}"
    with httpx.Client(
        transport=transport,
        headers={"Authorization": f"Bearer {token}"},
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        trust_env=False,
        follow_redirects=False,
    ) as client:
        try:
            reply = client.get(f"{base_url}/accounts/{account_id}/ai/models/search", params={"per_page": 1})
            if reply.is_success:
                return ""
            if reply.status_code not in {400, 401, 403, 404}:
                return f"Cloudflare cannot tell now whether it is good ({_first_error(reply)}); try again later."
            known = any(
                client.get(f"{base_url}{path}").is_success
                for path in ("/user/tokens/verify", f"/accounts/{account_id}/tokens/verify")
            )
        except httpx.HTTPError as error:
            return f"{base_url} cannot be reached from here ({type(error).__name__}); mend WorkersAiBaseUrl?"
    if known:
        return (
            f"The token is good but may not use Workers AI in account {account_id} ({_first_error(reply)}): "
            'give it the permission "Workers AI - Read" for that account, or mend CloudflareAccountId.'
        )
    return f"Cloudflare does not know this token ({_first_error(reply)}): {mend}"


def main() -> int:
    """Deploy, check, and tell the person what to do next."""
    try:
        saved = deploy()
    except (BotoCoreError, ClientError) as error:
        print(f"AWS does not let us look for the stack: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode  # The SAM CLI has said why.
    try:
        settings, token = _deployed_settings(saved)
    except (BotoCoreError, ClientError) as error:
        print(f"The stack is there, but its token could not be read to check it: {error}", file=sys.stderr)
        return 1
    base_url = settings["WORKERS_AI_BASE_URL"].rstrip("/")
    wrong = check_token(base_url, settings["CLOUDFLARE_ACCOUNT_ID"], token)
    if wrong:
        print(f"The stack is there, but the token is not right yet. {wrong}", file=sys.stderr)
        return 1
    print(f"""
The stack is up and the token is good. Drop a file:
  aws s3 cp requests.jsonl s3://{settings["BUCKET_NAME"]}/inbox/@cf/baai/bge-small-en-v1.5/requests.jsonl
The answers appear under s3://{settings["BUCKET_NAME"]}/results/.""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
