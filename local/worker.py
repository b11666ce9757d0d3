"""The Worker of `worker/` on this machine, in workerd, with a Workers AI behind its AI binding.

Needs Node.js.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from local.processes import ROOT, LocalAwsError, Service, bare_environment

WORKER = ROOT / "worker"
LOCK = "package-lock.json"
INSTALLED = "node_modules/.package-lock.json"
"""npm writes this file last."""
LOCAL_SECRET = "local-worker-secret"  # noqa: S105 - what the Worker on this machine accepts
MIN_NODE = 20


def install(folder: Path = WORKER) -> None:
    """Install the packages of a folder's lock file, checked by hash, unless they are installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise LocalAwsError(
            f"The Worker needs Node.js {MIN_NODE} or later with npm, which is not on the "
            "PATH. Nothing else needs it."
        )
    version = subprocess.check_output([node, "--version"], text=True).strip()
    if int(version.removeprefix("v").partition(".")[0]) < MIN_NODE:
        raise LocalAwsError(f"The Worker needs Node.js {MIN_NODE} or later; this is {version}.")
    installed, lock = folder / INSTALLED, folder / LOCK
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return
    print(f"Installing {folder.relative_to(ROOT)}/node_modules ...", file=sys.stderr, flush=True)
    command = [npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"]
    if subprocess.run(command, cwd=folder, stdout=sys.stderr, check=False).returncode:
        raise LocalAwsError(f"npm could not install the packages of {folder.relative_to(ROOT)}.")
    installed.touch()


def start(
    state: Path, port: int, base_url: str, account: str, token: str, *, raw: bool = True
) -> Service:
    """Start the Worker of a stack's folder; `base_url` is the REST API behind its AI binding."""
    service = Service("worker", state)
    service.log.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **bare_environment(),
        "WORKERS_AI_BASE_URL": base_url,
        "CLOUDFLARE_ACCOUNT_ID": account,
        "CLOUDFLARE_API_TOKEN": token,
        "SHARED_SECRET": LOCAL_SECRET,
        "RAW_RESPONSE": "yes" if raw else "no",
    }
    command = [shutil.which("node") or "node", str(WORKER / "local.mjs"), str(port)]
    service.start(command, environment, port)
    return service


def stop(state: Path) -> None:
    Service("worker", state).stop()


if __name__ == "__main__":
    try:
        install()
    except LocalAwsError as error:
        sys.exit(str(error))
