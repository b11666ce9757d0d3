"""The check of the Cloudflare token, or of the Worker's secret, after a deployment."""

from http import HTTPStatus

import httpx

CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0


def _first_error(reply: httpx.Response) -> str:
    try:
        error = reply.json()["errors"][0]
    except (ValueError, LookupError, TypeError):
        return f"HTTP {reply.status_code}"
    return f"HTTP {reply.status_code}, code {error.get('code')}: {error.get('message')}"


def _client(secret: str, transport: httpx.BaseTransport | None) -> httpx.Client:
    return httpx.Client(
        transport=transport,
        headers={"Authorization": f"Bearer {secret}"},
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        trust_env=False,
        follow_redirects=False,
    )


def check_token(base_url: str, account_id: str, token: str, transport: httpx.BaseTransport | None = None) -> str:
    """List one model's name with the token, which is free.

    Success proves that the token is valid and may read Workers AI in this account. Only a submit, which is billed,
    would prove that it may run models.

    Args:
        base_url: the API, such as https://api.cloudflare.com/client/v4.
        account_id: the account whose models are listed.
        token: the bare token.
        transport: replaces the network in tests.

    Returns:
        What is wrong and how to fix it; empty if nothing is.
    """
    fix = "put the right one in the stack's secret (Secrets Manager); the functions read it immediately."
    if not token or token != token.strip():
        return f"The secret must hold the bare token, without spaces or line breaks: {fix}"
    with _client(token, transport) as client:
        try:
            reply = client.get(f"{base_url}/accounts/{account_id}/ai/models/search", params={"per_page": 1})
            if reply.is_success:
                return ""
            if reply.status_code not in {400, 401, 403, 404}:
                return f"Cloudflare cannot check the token now ({_first_error(reply)}); try again later."
            known = any(
                client.get(f"{base_url}{path}").is_success
                for path in ("/user/tokens/verify", f"/accounts/{account_id}/tokens/verify")
            )
        except httpx.HTTPError as error:
            return f"{base_url} cannot be reached from here ({type(error).__name__}); is WorkersAiBaseUrl right?"
    if known:
        return (
            f"The token is valid but may not use Workers AI in account {account_id} ({_first_error(reply)}): give it "
            'the permissions "Workers AI - Read" and "Workers AI - Edit" for that account, or correct '
            "CloudflareAccountId."
        )
    return f"Cloudflare does not know this token ({_first_error(reply)}): {fix}"


def check_worker(url: str, secret: str, transport: httpx.BaseTransport | None = None) -> str:
    """Call the Worker's free check with the shared secret.

    Args:
        url: the Worker's address.
        secret: the bare secret.
        transport: replaces the network in tests.

    Returns:
        What is wrong and how to fix it; empty if nothing is.
    """
    with _client(secret, transport) as client:
        try:
            reply = client.get(f"{url}/check")
        except httpx.HTTPError as error:
            return f"{url} cannot be reached from here ({type(error).__name__}); is WorkerUrl right?"
    if reply.is_success:
        return ""
    if reply.status_code == HTTPStatus.UNAUTHORIZED:
        return "The Worker does not accept this secret: run make deploy-worker, which sets the one in Secrets Manager."
    return f"There is no such Worker at {url} ({_first_error(reply)}); is WorkerUrl right?"
