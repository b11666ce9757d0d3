"""The stack on this machine: `python -m local.aws up|down|status`. No account, no Docker, no network.

`up` starts a local AWS and a local Workers AI, packs the functions with `sam build`, deploys template.yaml
with `sam deploy` and writes .local/stack.json; all of it goes on running until `down`. Only processes started
here are ever stopped. What runs where is decided here; what the stack is stands in template.yaml alone.

Environment: LOCAL_PORT (the local AWS; the local Workers AI takes the next one), WORKERS_AI_BASE_URL (another
Workers AI than the local one), LOCAL_PARAMETERS (further Name=value template parameters, space between).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".local"
STACK_FILE = STATE / "stack.json"
LOGS = STATE / "logs"
BUILD = STATE / "build"
DEPLOYED = STATE / "deployed.json"

REGION = "us-east-1"
STACK_NAME = "dropbatch"
DEFAULT_PORT = 4570
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}
LOCAL_TOKEN = "local-token"  # noqa: S105 - what the local Workers AI takes for a token
LOCAL_ACCOUNT = "0123456789abcdef0123456789abcdef"
START_SECONDS = 30
"""A service takes a second; on a machine that is busy with other things, some more."""

SOURCES = ("functions", "shared", "Makefile", "requirements.txt", "samconfig.toml", "template.yaml")
"""What decides about a build."""
SERVICE_SOURCES = {
    "aws": ("local/emulator.py", "requirements-local.txt"),
    "workers_ai": ("local/workers_ai",),
}
"""What decides about a service: changed, it is started anew."""


_children: dict[int, subprocess.Popen[bytes]] = {}
"""What this very process started: it alone can take note of their end."""


class LocalAwsError(Exception):
    """What went wrong, in words for the person at the terminal."""


# ------------------------------------------------------------------------------------------------------------
# Processes in the background
# ------------------------------------------------------------------------------------------------------------


def _fingerprint(*sources: str) -> str:
    """The same as long as these files and folders, this Python and this processor are."""
    digest = hashlib.sha256(f"{sys.version}{platform.machine()}".encode())
    for source in sources:
        path = ROOT / source
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()


def _born(pid: int) -> str | None:
    """When a process began (its number alone may be another's by now); None when it is gone."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if words[0] == "Z" else words[19]
    told = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, born = told.stdout.strip().partition(" ")
    return born.strip() if born and not state.startswith("Z") else None


def _service_file(name: str) -> Path:
    return STATE / f"{name}.pid.json"


def _running(name: str) -> dict[str, Any] | None:
    """What is known of a service that was started here and still runs."""
    try:
        service: dict[str, Any] = json.loads(_service_file(name).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return service if _born(service["pid"]) == service["born"] else None


def _keep(name: str, port: int) -> bool:
    """Whether a service runs as it would be started now; one that does not is stopped."""
    service = _running(name)
    if service and (service["port"], service.get("code")) == (port, _fingerprint(*SERVICE_SOURCES[name])):
        return True
    _stop(name)
    return False


def _last_lines(log: Path, count: int = 30) -> str:
    lines = log.read_text(errors="replace").splitlines()[-count:] if log.exists() else []
    return "\n".join([f"--- the last lines of {log.relative_to(ROOT)}:", *lines])


def _start(name: str, command: list[str], environment: Mapping[str, str], port: int, health: str) -> None:
    """Start a service in a session of its own and wait until it answers.

    Args:
        name: the service, as its log and its pid file are called.
        command: program and arguments.
        environment: all its variables.
        port: where it will listen.
        health: a path to ask for; empty, taking a connection is enough.
    """
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise LocalAwsError(
                f"Port {port} is taken by a program that was not started here; set LOCAL_PORT to use another."
            )
    log = LOGS / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[process.pid] = process
    code = _fingerprint(*SERVICE_SOURCES.get(name, ()))
    service = {"pid": process.pid, "born": _born(process.pid), "port": port, "code": code}
    _service_file(name).write_text(json.dumps(service))
    deadline = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            _service_file(name).unlink()
            raise LocalAwsError(f"{name} stopped at once.\n{_last_lines(log)}")
        with suppress(OSError):
            if not health:
                socket.create_connection(("127.0.0.1", port), timeout=2).close()
            else:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=2).close()
            return
        if time.monotonic() > deadline:
            _stop(name)
            raise LocalAwsError(f"{name} did not answer within {START_SECONDS} s.\n{_last_lines(log)}")
        time.sleep(0.05)


def _stop(name: str) -> bool:
    """Stop a service with all its children; tells whether it ran."""
    service = _running(name)
    _service_file(name).unlink(missing_ok=True)
    if service is None:
        return False
    pid = service["pid"]
    for sent, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.killpg(pid, sent)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if pid in _children:
                _children[pid].poll()
            if _born(pid) != service["born"]:
                # The leader is gone; its children get no second chance.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
                return True
            time.sleep(0.05)
    raise LocalAwsError(f"{name} (process {pid}) does not stop.")


@contextmanager
def _alone() -> Iterator[None]:
    """One `up` or `down` at a time; the second waits for the first."""
    for folder in (STATE, LOGS):
        folder.mkdir(exist_ok=True)
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ------------------------------------------------------------------------------------------------------------
# The pieces
# ------------------------------------------------------------------------------------------------------------


def _bare_environment() -> dict[str, str]:
    """What any program needs, and nothing of the user's own AWS settings."""
    wanted = (
        "HOME",
        "LANG",
        "LC_ALL",
        "PATH",
        "PYENV_VERSION",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "TMPDIR",
        "TZ",
    )
    return {name: os.environ[name] for name in wanted if name in os.environ}


def _sam(arguments: list[str], environment: Mapping[str, str], log: Path) -> str:
    """Run the SAM CLI, from the project's folder and without the user's own answers in samconfig.toml."""
    command = [str(STATE / "sam/bin/sam"), *arguments]
    settings = {"SAM_CLI_TELEMETRY": "0", "SAM_CLI_POLL_DELAY": "0.2", "PYTHONWARNINGS": "ignore"}
    nobody = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**_bare_environment(), **settings, **nobody, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    log.write_text(done.stdout)
    if done.returncode:
        raise LocalAwsError(f"`sam {arguments[0]}` failed.\n{_last_lines(log)}")
    return done.stdout


def _start_aws(port: int) -> None:
    scratch = STATE / "tmp"  # Where the functions run and what they take for /tmp.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    environment = {
        **_bare_environment(),
        **CREDENTIALS,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_HOST": "127.0.0.1",
        "IOT_MTLS_ENABLED": "0",  # It would listen on one more port, and not on loopback alone.
        "AUTH": "true",  # Each function has its role's permissions and no more.
        "TMPDIR": str(scratch),
        "PYTHONUNBUFFERED": "1",
        # Functions inherit the rest of this; nobody listens for traces here.
        "POWERTOOLS_TRACE_DISABLED": "true",
    }
    command = [str(STATE / "aws/bin/python"), "-P", str(ROOT / "local/emulator.py")]
    _start("aws", command, environment, port, "/_ministack/health")


def _start_workers_ai(port: int) -> None:
    command = [sys.executable, "-m", "local.workers_ai", "--port", str(port)]
    _start("workers_ai", command, {**os.environ, "PYTHONUNBUFFERED": "1"}, port, "")


def _build() -> str:
    """Pack the functions for this machine, unless that was done already; the build's fingerprint."""
    fingerprint = _fingerprint(*SOURCES)
    mark = STATE / "build.sha256"
    if mark.exists() and mark.read_text() == fingerprint:
        return fingerprint
    mark.unlink(missing_ok=True)
    print("Packing the functions (sam build) ...", flush=True)
    arguments = ["build", "--build-in-source", "--parallel", "--build-dir", str(BUILD)]
    _sam(arguments, {**CREDENTIALS, "DROPBATCH_BUILD": "local"}, LOGS / "build.log")
    mark.write_text(fingerprint)
    return fingerprint


def _parse_parameters(text: str) -> dict[str, str]:
    """Read `Name=value Other="a value"`; words without a name go on with the value, as in rate(1 minute)."""
    parameters: dict[str, str] = {}
    name = ""
    for word in shlex.split(text):
        if match := re.match(r"([A-Za-z][A-Za-z0-9]*)=", word):
            name = match[1]
            parameters[name] = word[match.end() :]
        elif name:
            parameters[name] += f" {word}"
        else:
            raise LocalAwsError(f"LOCAL_PARAMETERS must hold Name=value pairs; {word!r} is none.")
    return parameters


class _TemplateLoader(yaml.SafeLoader):
    """Reads a template's plain parts; what `!Sub` and the like would make of theirs is not ours to know."""


_TemplateLoader.add_multi_constructor("!", lambda *_: None)


def _default_parameters() -> dict[str, str]:
    """Every default, to be said aloud: CloudFormation keeps a value that an earlier deploy gave."""
    template = yaml.load((ROOT / "template.yaml").read_text(), _TemplateLoader)  # noqa: S506 - a SafeLoader
    parameters: dict[str, dict[str, Any]] = template["Parameters"]
    return {name: str(told["Default"]) for name, told in parameters.items() if "Default" in told}


def _client(service: str, port: int) -> Any:  # noqa: ANN401 - boto3 makes its clients' types at run time
    return boto3.client(
        service,
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # A basic TOML string is written as in JSON.


def _deploy(port: int, parameters: dict[str, str]) -> None:
    print("Deploying the stack (sam deploy) ...", flush=True)
    packages = "dropbatch-packages"
    _client("s3", port).create_bucket(Bucket=packages)
    quoted = " ".join(f'{name}="{value}"' for name, value in parameters.items())
    settings = {
        "stack_name": _toml(STACK_NAME),
        "region": _toml(REGION),
        "s3_bucket": _toml(packages),
        "capabilities": _toml("CAPABILITY_IAM"),
        "confirm_changeset": "false",
        "fail_on_empty_changeset": "false",
        "parameter_overrides": _toml(quoted),
    }
    config = STATE / "samconfig.toml"
    table = "\n".join(f"{name} = {value}" for name, value in settings.items())
    config.write_text(f"version = 0.1\n\n[default.deploy.parameters]\n{table}\n")
    arguments = ["deploy", "--template-file", str(BUILD / "template.yaml"), "--config-file", str(config)]
    endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    _sam(arguments, {**CREDENTIALS, **endpoint}, LOGS / "deploy.log")


def _describe(port: int, workers_ai_base_url: str) -> dict[str, str]:
    stack = _client("cloudformation", port).describe_stacks(StackName=STACK_NAME)["Stacks"][0]
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


# ------------------------------------------------------------------------------------------------------------
# The verbs
# ------------------------------------------------------------------------------------------------------------


def _machine_architecture() -> str:
    machine = platform.machine().lower()
    return "arm64" if machine in {"arm64", "aarch64"} else "x86_64"


def up(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Bring the stack up, or up to date, and tell where it is: what .local/stack.json says.

    Raises:
        LocalAwsError: in words for the person at the terminal, with the log's last lines.
    """
    with _alone():
        running = _running("aws")
        port = int(environment.get("LOCAL_PORT") or (running["port"] if running else DEFAULT_PORT))
        if not _keep("aws", port):
            DEPLOYED.unlink(missing_ok=True)
            STACK_FILE.unlink(missing_ok=True)
            _start_aws(port)
        base_url = environment.get("WORKERS_AI_BASE_URL", "")
        if base_url:
            _stop("workers_ai")
        else:
            base_url = f"http://127.0.0.1:{port + 1}/client/v4"
            if not _keep("workers_ai", port + 1):
                _start_workers_ai(port + 1)
        parameters = {
            **_default_parameters(),
            "CloudflareAccountId": LOCAL_ACCOUNT,
            "CloudflareApiToken": LOCAL_TOKEN,
            "WorkersAiBaseUrl": base_url,
            "Architecture": _machine_architecture(),
            **_parse_parameters(environment.get("LOCAL_PARAMETERS", "")),
        }
        wanted = {"build": _build(), "parameters": parameters}
        deployed = json.loads(DEPLOYED.read_text()) if DEPLOYED.exists() else None
        if deployed != wanted or not STACK_FILE.exists():
            DEPLOYED.unlink(missing_ok=True)
            _deploy(port, parameters)
            DEPLOYED.write_text(json.dumps(wanted))
        stack = _describe(port, parameters["WorkersAiBaseUrl"])
        STACK_FILE.write_text(json.dumps(stack, indent=1) + "\n")
        return stack


def down() -> list[str]:
    """Stop what `up` started and tell what that was. The logs stay."""
    with _alone():
        stopped = [name for name in ("aws", "workers_ai") if _stop(name)]
        for file in (STACK_FILE, DEPLOYED):
            file.unlink(missing_ok=True)
        shutil.rmtree(STATE / "tmp", ignore_errors=True)
        return stopped


def _print_status() -> int:
    for name, title in (("aws", "local AWS"), ("workers_ai", "local Workers AI")):
        service = _running(name)
        state = f"runs on port {service['port']} (process {service['pid']})" if service else "does not run"
        print(f"{title:17} {state}")
    if not STACK_FILE.exists():
        print("no stack; `make up` makes one")
        return 1
    print(STACK_FILE.read_text(), end="")
    return 0


def main() -> int:
    """Read the command line, do it, and tell the person what to do next."""
    parser = argparse.ArgumentParser(prog="python -m local.aws", description="The stack on this machine.")
    parser.add_argument("verb", choices=["up", "down", "status"])
    verb = parser.parse_args().verb
    try:
        if verb == "status":
            return _print_status()
        if verb == "down":
            stopped = down()
            print(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing ran.")
            return 0
        stack = up()
    except LocalAwsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"""The stack is up; {STACK_FILE.relative_to(ROOT)} says where. To use it as you would AWS:
  export AWS_ENDPOINT_URL={stack["endpoint_url"]} AWS_DEFAULT_REGION={stack["region"]}
  export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
  aws s3 cp requests.jsonl s3://{stack["bucket"]}/inbox/@cf/baai/bge-small-en-v1.5/requests.jsonl
Logs are in {LOGS.relative_to(ROOT)}/; `make down` stops it.""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
