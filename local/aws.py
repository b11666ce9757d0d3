"""The stack on this machine: `python -m local.aws up|down|status`. No account, no Docker, no network.

`up` starts a local AWS and a local Workers AI, packs the functions with `sam build`, deploys template.yaml
with `sam deploy` and writes .local/stack.json; all of it goes on running until `down`. Only processes started
here are ever stopped. What runs where is decided here; what the stack is stands in template.yaml alone.

Environment: LOCAL_PORT (the local AWS; the local Workers AI takes the next one), WORKERS_AI_BASE_URL (another
Workers AI than the local one), LOCAL_PARAMETERS (further Name=value template parameters, space between), LOCAL_FAULTS
(anything: the functions reach the local AWS through a proxy, on the port after the next, that breaks calls on demand).
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
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".local"
"""The environments of the local AWS and the SAM CLI, and the build: the same for every stack."""
BUILD = TOOLS / "build"

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
    "proxy": ("local/fault_proxy.py",),
}
"""What decides about a service: changed, it is started anew."""


_children: dict[int, subprocess.Popen[bytes]] = {}
"""What this very process started: it alone can take note of their end."""


class LocalAwsError(Exception):
    """What went wrong, in words for the person at the terminal."""


@dataclass(frozen=True)
class Home:
    """Where one local stack keeps what it must remember: who wants a second one beside the first takes another folder.

    Attributes:
        state: the folder, inside the project.
    """

    state: Path = TOOLS

    @property
    def stack_file(self) -> Path:
        """Where the stack is, for whoever wants to use it."""
        return self.state / "stack.json"

    @property
    def deployed(self) -> Path:
        """What was deployed last."""
        return self.state / "deployed.json"

    @property
    def logs(self) -> Path:
        """The services' logs and the SAM CLI's."""
        return self.state / "logs"

    @property
    def scratch(self) -> Path:
        """Where the functions run and what they take for /tmp."""
        return self.state / "tmp"

    def service_file(self, name: str) -> Path:
        """Which process a service is."""
        return self.state / f"{name}.pid.json"


MAIN = Home()
"""The stack of `make up`."""


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
    told = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, born = told.stdout.strip().partition(" ")
    return born.strip() if born and not state.startswith("Z") else None


def _running(home: Home, name: str) -> dict[str, Any] | None:
    """What is known of a service that was started here and still runs."""
    try:
        service: dict[str, Any] = json.loads(home.service_file(name).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return service if _born(service["pid"]) == service["born"] else None


def _keep(home: Home, name: str, port: int, peer: str = "") -> bool:
    """Whether a service runs as it would be started now; one that does not is stopped."""
    service = _running(home, name)
    wanted = {"port": port, "code": _fingerprint(*SERVICE_SOURCES[name]), "peer": peer}
    if service and service.items() >= wanted.items():
        return True
    _stop(home, name)
    return False


def _last_lines(log: Path, count: int = 30) -> str:
    lines = log.read_text(errors="replace").splitlines()[-count:] if log.exists() else []
    return "\n".join([f"--- the last lines of {log.relative_to(ROOT)}:", *lines])


def _start(
    home: Home,
    name: str,
    command: list[str],
    environment: Mapping[str, str],
    port: int,
    health: str,
    *,
    peer: str = "",
) -> None:
    """Start a service in a session of its own and wait until it answers.

    Args:
        home: the stack it is for.
        name: the service, as its log and its pid file are called.
        command: program and arguments.
        environment: all its variables.
        port: where it will listen.
        health: a path to ask for; empty, taking a connection is enough.
        peer: the address of another service that it was told at its start.
    """
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise LocalAwsError(
                f"Port {port} is taken by a program that was not started here; set LOCAL_PORT to use another."
            )
    log = home.logs / f"{name}.log"
    code = _fingerprint(*SERVICE_SOURCES.get(name, ()))
    with log.open("wb") as output, _undisturbed():
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
        service = {"pid": process.pid, "born": _born(process.pid), "port": port, "code": code, "peer": peer}
        home.service_file(name).write_text(json.dumps(service))
    deadline = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            home.service_file(name).unlink()
            raise LocalAwsError(f"{name} stopped at once.\n{_last_lines(log)}")
        with suppress(OSError):
            if not health:
                socket.create_connection(("127.0.0.1", port), timeout=2).close()
            else:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=2).close()
            return
        if time.monotonic() > deadline:
            _stop(home, name)
            raise LocalAwsError(f"{name} did not answer within {START_SECONDS} s.\n{_last_lines(log)}")
        time.sleep(0.05)


def _stop(home: Home, name: str) -> bool:
    """Stop a service with all its children; tells whether it ran."""
    service = _running(home, name)
    home.service_file(name).unlink(missing_ok=True)
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
                if child := _children.pop(pid, None):
                    child.wait()
                return True
            time.sleep(0.05)
    raise LocalAwsError(f"{name} (process {pid}) does not stop.")


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    """One at a time, of all processes; the second waits for the first. Gives the lock's file descriptor."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait until a process just started is written down: else it might outlive us, and nobody would know it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals come to the main thread only.
        return
    came: list[int] = []
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in endings}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def free_port() -> int:
    """A port that is free now, and the next two as well: a local AWS, its local Workers AI, its fault proxy."""
    while True:
        with (
            socket.socket() as first,
            socket.socket() as second,
            socket.socket() as third,
            suppress(OSError, OverflowError),
        ):
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            second.bind(("127.0.0.1", port + 1))
            third.bind(("127.0.0.1", port + 2))
            return port


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


def _sam(arguments: list[str], environment: Mapping[str, str], log: Path, lock: int) -> None:
    """Run the SAM CLI, from the project's folder and without the user's own answers in samconfig.toml.

    It holds the lock too: should this process be killed, the next waits until what it left has ended.
    """
    settings = {"SAM_CLI_TELEMETRY": "0", "SAM_CLI_POLL_DELAY": "0.2", "PYTHONWARNINGS": "ignore"}
    nobody = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    with log.open("wb") as output:
        process = None
        try:
            with _undisturbed():
                process = subprocess.Popen(
                    [str(TOOLS / "sam/bin/sam"), *arguments],
                    cwd=ROOT,
                    env={**_bare_environment(), **settings, **nobody, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
            code = process.wait()
        except BaseException:  # Somebody wants us to end; make and pip, which it started, would go on.
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise
    if code:
        raise LocalAwsError(f"`sam {arguments[0]}` failed.\n{_last_lines(log)}")


def _start_aws(home: Home, port: int, functions_endpoint: str) -> None:
    shutil.rmtree(home.scratch, ignore_errors=True)
    home.scratch.mkdir()
    environment = {
        **_bare_environment(),
        **CREDENTIALS,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_HOST": "127.0.0.1",
        "IOT_MTLS_ENABLED": "0",  # It would listen on one more port, and not on loopback alone.
        "AUTH": "true",  # Each function has its role's permissions and no more.
        "TMPDIR": str(home.scratch),
        "PYTHONUNBUFFERED": "1",
        **({"AWS_ENDPOINT_URL": functions_endpoint} if functions_endpoint else {}),
    }
    command = [str(TOOLS / "aws/bin/python"), "-P", str(ROOT / "local/emulator.py")]
    _start(home, "aws", command, environment, port, "/_ministack/health", peer=functions_endpoint)


def _start_proxy(home: Home, port: int, aws_port: int) -> None:
    command = [sys.executable, "-m", "local.fault_proxy", "--port", str(port), "--upstream-port", str(aws_port)]
    _start(home, "proxy", command, _bare_environment(), port, "/_faults", peer=str(aws_port))


def _start_workers_ai(home: Home, port: int) -> None:
    command = [sys.executable, "-m", "local.workers_ai", "--port", str(port)]
    _start(home, "workers_ai", command, {**os.environ, "PYTHONUNBUFFERED": "1"}, port, "")


def _build(home: Home, lock: int) -> str:
    """Pack the functions for this machine, unless that was done already; the build's fingerprint."""
    fingerprint = _fingerprint(*SOURCES)
    mark = TOOLS / "build.sha256"
    if mark.exists() and mark.read_text() == fingerprint:
        return fingerprint
    mark.unlink(missing_ok=True)
    print("Packing the functions (sam build) ...", flush=True)
    arguments = ["build", "--build-in-source", "--parallel", "--build-dir", str(BUILD)]
    _sam(arguments, {**CREDENTIALS, "DROPBATCH_BUILD": "local"}, home.logs / "build.log", lock)
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


def _deploy(home: Home, port: int, parameters: dict[str, str], lock: int) -> None:
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
    config = home.state / "samconfig.toml"
    table = "\n".join(f"{name} = {value}" for name, value in settings.items())
    config.write_text(f"version = 0.1\n\n[default.deploy.parameters]\n{table}\n")
    arguments = ["deploy", "--template-file", str(BUILD / "template.yaml"), "--config-file", str(config)]
    endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    _sam(arguments, {**CREDENTIALS, **endpoint}, home.logs / "deploy.log", lock)


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


def up(environment: Mapping[str, str] = os.environ, home: Home = MAIN) -> dict[str, str]:
    """Bring a stack up, or up to date, and tell where it is: what .local/stack.json says.

    Args:
        environment: where the variables are that this module's beginning names.
        home: which stack.

    Raises:
        LocalAwsError: in words for the person at the terminal, with the log's last lines.
    """
    home.logs.mkdir(parents=True, exist_ok=True)
    with _locked(home.state / "lock"):
        running = _running(home, "aws")
        port = int(environment.get("LOCAL_PORT") or (running["port"] if running else DEFAULT_PORT))
        proxy = f"http://127.0.0.1:{port + 2}" if environment.get("LOCAL_FAULTS") else ""
        if not _keep(home, "aws", port, proxy):
            home.deployed.unlink(missing_ok=True)
            home.stack_file.unlink(missing_ok=True)
            _start_aws(home, port, proxy)
        if not proxy:
            _stop(home, "proxy")
        elif not _keep(home, "proxy", port + 2, str(port)):
            _start_proxy(home, port + 2, port)
        base_url = environment.get("WORKERS_AI_BASE_URL", "")
        if base_url:
            _stop(home, "workers_ai")
        else:
            base_url = f"http://127.0.0.1:{port + 1}/client/v4"
            if not _keep(home, "workers_ai", port + 1):
                _start_workers_ai(home, port + 1)
        parameters = {
            **_default_parameters(),
            "CloudflareAccountId": LOCAL_ACCOUNT,
            "CloudflareApiToken": LOCAL_TOKEN,
            "WorkersAiBaseUrl": base_url,
            "Architecture": _machine_architecture(),
            **_parse_parameters(environment.get("LOCAL_PARAMETERS", "")),
        }
        with _locked(TOOLS / "build.lock") as lock:  # What is deployed must be what was built just now.
            wanted = {"build": _build(home, lock), "parameters": parameters}
            deployed = json.loads(home.deployed.read_text()) if home.deployed.exists() else None
            if deployed != wanted or not home.stack_file.exists():
                home.deployed.unlink(missing_ok=True)
                _deploy(home, port, parameters, lock)
                home.deployed.write_text(json.dumps(wanted))
        stack = _describe(port, parameters["WorkersAiBaseUrl"])
        if proxy:
            stack["fault_proxy_url"] = proxy
        home.stack_file.write_text(json.dumps(stack, indent=1) + "\n")
        return stack


def down(home: Home = MAIN) -> list[str]:
    """Stop what `up` started and tell what that was. The logs stay."""
    with _locked(home.state / "lock"):
        stopped = [name for name in ("aws", "workers_ai", "proxy") if _stop(home, name)]
        for file in (home.stack_file, home.deployed):
            file.unlink(missing_ok=True)
        shutil.rmtree(home.scratch, ignore_errors=True)
        return stopped


def _print_status() -> int:
    for name, title in (("aws", "local AWS"), ("workers_ai", "local Workers AI"), ("proxy", "fault proxy")):
        service = _running(MAIN, name)
        state = f"runs on port {service['port']} (process {service['pid']})" if service else "does not run"
        print(f"{title:17} {state}")
    if not MAIN.stack_file.exists():
        print("no stack; `make up` makes one")
        return 1
    print(MAIN.stack_file.read_text(), end="")
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
    print(f"""The stack is up; {MAIN.stack_file.relative_to(ROOT)} says where. To use it as you would AWS:
  export AWS_ENDPOINT_URL={stack["endpoint_url"]} AWS_DEFAULT_REGION={stack["region"]}
  export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
  aws s3 cp requests.jsonl s3://{stack["bucket"]}/inbox/@cf/baai/bge-small-en-v1.5/requests.jsonl
Logs are in {MAIN.logs.relative_to(ROOT)}/; `make down` stops it.""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
