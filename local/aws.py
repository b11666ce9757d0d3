"""The stack on this machine: `python -m local.aws up|down`.

No account, no Docker, no network.

`up` starts a local AWS and a local Workers AI, builds the functions with `sam build`, deploys
template.yaml with `sam deploy` and writes .local/stack.json. All of it runs until `down`, which
stops only what was started here.

Environment: LOCAL_PORT (port of the local AWS; the local Workers AI uses the next one),
WORKERS_AI_BASE_URL (use another Workers AI), LOCAL_PARAMETERS (more template parameters, Name=value
separated by spaces), LOCAL_FAULTS (any
value: the functions reach the local AWS through a proxy that breaks calls on demand, on the port
after the next).
"""

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from local.processes import (
    ROOT,
    LocalAwsError,
    Service,
    bare_environment,
    fingerprint,
    free_port,
    last_lines,
    locked,
    run,
)
from local.template import defaults, parse_parameters, toml, write_parameters

__all__ = ["ROOT", "Home", "LocalAwsError", "build", "client", "down", "free_port", "up"]

TOOLS = ROOT / ".local"
"""The environments of the local AWS and the SAM CLI, and the build: the same for every stack."""
BUILD = TOOLS / "build"

REGION = "us-east-1"
STACK_NAME = "dropbatch"
EXAMPLE = "--model @cf/meta/llama-3.3-70b-instruct-fp8-fast --template 'In Spanish: {text}'"
"""Options for examples/reviews.csv, as README writes them."""
DEFAULT_PORT = 4570
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": REGION,
}
LOCAL_TOKEN = "local-token"  # noqa: S105 - the token that the local Workers AI accepts
LOCAL_ACCOUNT = "0123456789abcdef0123456789abcdef"

BUILD_SOURCES = (
    *("functions", "shared", "dropbatch/__init__.py", "dropbatch/core"),
    *("tools/pack.py", "requirements/functions.txt", "samconfig.toml", "template.yaml"),
)
"""A change in one of these triggers a new build."""
SERVICES = {
    "aws": ("local/emulator.py", "requirements/local.txt"),
    "workers_ai": ("local/workers_ai",),
    "proxy": ("local/fault_proxy.py",),
}
"""The services by name, with the sources whose change restarts them."""


@dataclass(frozen=True)
class Home:
    """The folder, inside the project, of one local stack; a second stack has another one."""

    state: Path = TOOLS
    stack_file = property(lambda self: self.state / "stack.json")
    deployed = property(lambda self: self.state / "deployed.json")
    logs = property(lambda self: self.state / "logs")
    scratch = property(lambda self: self.state / "tmp")  # The functions' /tmp.

    def service(self, name: str) -> Service:
        return Service(name, self.state, SERVICES[name])


MAIN = Home()
"""The stack of `make up`."""


# ── services ──────────────────────────────────────────────────────────────────────────────────────


def _start_aws(home: Home, port: int, functions_endpoint: str) -> None:
    for file in (home.deployed, home.stack_file):
        file.unlink(missing_ok=True)
    shutil.rmtree(home.scratch, ignore_errors=True)
    home.scratch.mkdir()
    environment = {
        **bare_environment(),
        **CREDENTIALS,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_HOST": "127.0.0.1",
        "IOT_MTLS_ENABLED": "0",  # It would listen on one more port, and not only on loopback.
        "AUTH": "true",  # Each function has its role's permissions and no more.
        "TMPDIR": str(home.scratch),
        "PYTHONUNBUFFERED": "1",
        **({"AWS_ENDPOINT_URL": functions_endpoint} if functions_endpoint else {}),
    }
    command = [str(TOOLS / "aws/bin/python"), "-P", str(ROOT / "local/emulator.py")]
    home.service("aws").start(command, environment, port, "/_ministack/health", functions_endpoint)


def _start_module(home: Home, name: str, port: int, upstream: str = "") -> None:
    """Run a module of `local` that is a service, unless it runs already."""
    service = home.service(name)
    if service.is_current(port, upstream):
        return
    command = [sys.executable, "-m", SERVICES[name][0].removesuffix(".py").replace("/", ".")]
    command += ["--port", str(port), *(["--upstream-port", upstream] if upstream else [])]
    service.start(command, {**os.environ, "PYTHONUNBUFFERED": "1"}, port, peer=upstream)


def _start_services(home: Home, port: int, proxy: str, *, with_workers_ai: bool) -> None:
    """Start what does not run yet, restart what has changed, stop what is not needed."""
    if not home.service("aws").is_current(port, proxy):
        _start_aws(home, port, proxy)
    wanted = {"workers_ai": with_workers_ai, "proxy": bool(proxy)}
    for place, (name, is_wanted) in enumerate(wanted.items(), 1):
        if is_wanted:
            _start_module(home, name, port + place, str(port) if name == "proxy" else "")
        else:
            home.service(name).stop()


# ── build and deployment ──────────────────────────────────────────────────────────────────────────


def _sam(arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
    settings = {
        "SAM_CLI_TELEMETRY": "0",
        "SAM_CLI_POLL_DELAY": "0.2",
        "PYTHONWARNINGS": "ignore",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    command = [str(TOOLS / "sam/bin/sam"), *arguments]
    if run(command, {**bare_environment(), **settings, **CREDENTIALS, **environment}, log):
        raise LocalAwsError(f"`sam {arguments[0]}` failed.\n{last_lines(log)}")


def _build(home: Home) -> str:
    """Build the functions for this machine unless the build is current."""
    current = fingerprint(*BUILD_SOURCES)
    mark = TOOLS / "build.sha256"
    if mark.exists() and mark.read_text() == current:
        return current
    mark.unlink(missing_ok=True)
    print("Building the functions (sam build) ...", flush=True)
    arguments = ["build", "--build-in-source", "--parallel", "--build-dir", str(BUILD)]
    _sam(arguments, {"DROPBATCH_BUILD": "local"}, home.logs / "build.log")
    mark.write_text(current)
    return current


def client(service: str, port: int, config: Config | None = None) -> Any:
    return boto3.client(  # type: ignore[call-overload] # The service is known at run time.
        service,
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        config=config,
    )


def put_secret(port: int, logical_id: str, value: str, *, only_if_empty: bool = False) -> None:
    """Put a value in one of the stack's secrets, if the stack has it."""
    resources = client("cloudformation", port).describe_stack_resources(StackName=STACK_NAME)[
        "StackResources"
    ]
    names = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in resources}
    secrets = client("secretsmanager", port)
    if name := names.get(logical_id):
        if only_if_empty and secrets.get_secret_value(SecretId=name)["SecretString"]:
            return
        secrets.put_secret_value(SecretId=name, SecretString=value)


def _deploy(home: Home, port: int, parameters: dict[str, str]) -> None:
    print("Deploying the stack (sam deploy) ...", flush=True)
    packages = "dropbatch-packages"
    client("s3", port).create_bucket(Bucket=packages)
    settings = {
        "stack_name": STACK_NAME,
        "region": REGION,
        "s3_bucket": packages,
        "capabilities": "CAPABILITY_IAM",
        "confirm_changeset": False,
        "fail_on_empty_changeset": False,
        "parameter_overrides": write_parameters(parameters),
    }
    config = home.state / "samconfig.toml"
    tables = {"version": 0.1, "default": {"deploy": {"parameters": settings}}}
    config.write_text("\n".join(toml(tables)))
    arguments = ["deploy", "--template-file", str(BUILD / "template.yaml")]
    arguments += ["--config-file", str(config)]
    _sam(arguments, {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}, home.logs / "deploy.log")


def _describe(port: int, workers_ai_base_url: str) -> dict[str, str]:
    stack = client("cloudformation", port).describe_stacks(StackName=STACK_NAME)["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    return {
        "endpoint_url": f"http://127.0.0.1:{port}",
        "region": REGION,
        "bucket": outputs["BucketName"],
        "table": outputs["TableName"],
        "submit_function": outputs["SubmitFunctionName"],
        "poll_function": outputs["PollFunctionName"],
        "workers_ai_base_url": workers_ai_base_url,
    }


def _machine_architecture() -> str:
    machine = platform.machine().lower()
    return "arm64" if machine in {"arm64", "aarch64"} else "x86_64"


def _parameters(environment: Mapping[str, str], base_url: str) -> dict[str, str]:
    try:
        given = parse_parameters(environment.get("LOCAL_PARAMETERS", ""))
    except ValueError as error:
        raise LocalAwsError(f"LOCAL_PARAMETERS: {error}") from error
    return {
        **defaults(),  # explicitly: CloudFormation would keep the values of an earlier deployment
        "CloudflareAccountId": LOCAL_ACCOUNT,
        "WorkersAiBaseUrl": base_url,
        "Architecture": _machine_architecture(),
        **given,
    }


def _deploy_if_changed(home: Home, port: int, parameters: dict[str, str]) -> None:
    # No other build may run between this one and its deployment.
    with locked(TOOLS / "build.lock"):
        wanted = {"build": _build(home), "parameters": parameters}
        deployed = json.loads(home.deployed.read_text()) if home.deployed.exists() else None
        if deployed != wanted or not home.stack_file.exists():
            home.deployed.unlink(missing_ok=True)
            _deploy(home, port, parameters)
            put_secret(port, "ApiToken", LOCAL_TOKEN, only_if_empty=True)
            home.deployed.write_text(json.dumps(wanted))


# ── the commands ──────────────────────────────────────────────────────────────────────────────────


def build() -> Path:
    """Build the functions for this machine, as `up` does; return the folder of one package."""
    MAIN.logs.mkdir(parents=True, exist_ok=True)
    with locked(TOOLS / "build.lock"):
        _build(MAIN)
    return BUILD / "SubmitFunction"


def up(environment: Mapping[str, str] = os.environ, home: Home = MAIN) -> dict[str, str]:
    """Start or update a stack with this module's variables; return its stack.json's content."""
    home.logs.mkdir(parents=True, exist_ok=True)
    with locked(home.state / "lock"):
        running = home.service("aws").running()
        port = int(environment.get("LOCAL_PORT") or (running["port"] if running else DEFAULT_PORT))
        proxy = f"http://127.0.0.1:{port + 2}" if environment.get("LOCAL_FAULTS") else ""
        base_url = environment.get("WORKERS_AI_BASE_URL", "")
        _start_services(home, port, proxy, with_workers_ai=not base_url)
        parameters = _parameters(environment, base_url or f"http://127.0.0.1:{port + 1}/client/v4")
        _deploy_if_changed(home, port, parameters)
        stack = _describe(port, parameters["WorkersAiBaseUrl"])
        if proxy:
            stack["fault_proxy_url"] = proxy
        home.stack_file.write_text(json.dumps(stack, indent=1) + "\n")
        return stack


def down(home: Home = MAIN) -> list[str]:
    """Stop what `up` started; return the names of the services that ran. The logs stay."""
    with locked(home.state / "lock"):
        stopped = [name for name in SERVICES if home.service(name).stop()]
        for file in (home.stack_file, home.deployed):
            file.unlink(missing_ok=True)
        shutil.rmtree(home.scratch, ignore_errors=True)
        return stopped


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m local.aws", description="The stack on this machine."
    )
    parser.add_argument("verb", choices=["up", "down"])
    verb = parser.parse_args().verb
    try:
        if verb == "down":
            stopped = down()
            print(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing was running.")
            return 0
        stack = up()
    except LocalAwsError as error:
        print(error, file=sys.stderr)
        return 1
    file = MAIN.stack_file.relative_to(ROOT)
    print(f"""The stack is up; {file} describes it. Three commands to begin with:
  .venv/bin/dropbatch --local put examples/reviews.csv --get out {EXAMPLE}
  cat out/output.csv
  .venv/bin/dropbatch --local serve    # OpenAI's Batch API: OPENAI_BASE_URL=http://127.0.0.1:8000/v1
To use it as you would AWS:
  export AWS_ENDPOINT_URL={stack["endpoint_url"]} AWS_DEFAULT_REGION={stack["region"]}
  export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test BUCKET={stack["bucket"]}
Logs are in {MAIN.logs.relative_to(ROOT)}/; `make down` stops it.""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
