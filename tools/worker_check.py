"""The free check of the secret that a stack shares with its Worker."""

from http import HTTPStatus

from dropbatch.cli.cloudflare import Api
from dropbatch.errors import Error


def check_worker(url: str, secret: str) -> str:
    """Call the Worker's free check with the shared secret.

    Args:
        url: the Worker's address.
        secret: the bare secret.

    Returns:
        What is wrong and how to fix it; empty if nothing is.
    """
    try:
        reply = Api(url, "", secret).get("/check")
    except Error as error:
        return f"{error}. Is WorkerUrl ({url}) right?"
    if reply.status == HTTPStatus.OK:
        return ""
    if reply.status == HTTPStatus.UNAUTHORIZED:
        return (
            "The Worker does not accept this secret: run make deploy-worker, which sets the "
            "one in Secrets Manager."
        )
    return (
        f"There is no such Worker at {url} (HTTP {reply.status}, code {reply.code}); is "
        "WorkerUrl right?"
    )
