"""The checks of the token and of the Worker's secret.

A wrong token and a wrong permission are different messages.
"""

import pytest

from dropbatch.cli.cloudflare import Api, Reply, check_token
from dropbatch.errors import Error
from tools.deploy_worker import check_worker

ACCOUNT = "0123456789abcdef0123456789abcdef"
TOKEN = "secret-canary"
BASE = "https://api.cloudflare.com/client/v4"
REFUSED = {"success": False, "errors": [{"code": 10000, "message": "no"}]}
WORKER = "https://dropbatch.example.workers.dev"


@pytest.fixture
def answered(monkeypatch):
    """Sets what each path is answered with; returns the calls."""

    def answer(**statuses):
        def get(self, path):
            url = f"{self.base_url}{path}"
            asked.append((url, self.token))
            name = url.partition("?")[0].rpartition("/")[2]
            if name not in statuses:
                raise Error(f"{url} cannot be reached: no route")
            return Reply(statuses[name], REFUSED)

        asked = []
        monkeypatch.setattr(Api, "get", get)
        return asked

    return answer


@pytest.mark.parametrize(
    ("models", "verify", "words"),
    [
        (200, 401, ""),
        (403, 200, "Workers AI - Edit"),
        (401, 401, "does not accept this token"),
    ],
)
def test_says_what_is_wrong(answered, models, verify, words):
    asked = answered(search=models, verify=verify)

    told = check_token(Api(BASE, ACCOUNT, TOKEN))

    assert words in told
    assert bool(told) == bool(words)
    assert TOKEN not in told
    assert asked[0] == (f"{BASE}/accounts/{ACCOUNT}/ai/models/search?per_page=1", TOKEN)


@pytest.mark.parametrize("status", [302, 500])
def test_reply_about_something_else_proves_nothing(answered, status):
    answered(search=status, verify=401)

    with pytest.raises(Error, match="cannot check the token now"):
        check_token(Api(BASE, ACCOUNT, TOKEN))


@pytest.mark.parametrize("status", ["disabled", "expired"])
def test_verified_token_may_have_ended(monkeypatch, status):
    ended = {"success": True, "errors": [], "result": {"id": "1" * 32, "status": status}}

    def get(self, path):
        return Reply(200, ended) if "/verify" in path else Reply(403, REFUSED)

    monkeypatch.setattr(Api, "get", get)

    assert "does not accept this token" in check_token(Api(BASE, ACCOUNT, TOKEN))


@pytest.mark.parametrize("token", ["", "token\n", " token"])
def test_token_with_white_space_is_not_even_sent(answered, token):
    asked = answered()

    assert "space" in check_token(Api(BASE, ACCOUNT, token))
    assert asked == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (200, ""),
        (401, "make deploy-worker"),
        (404, "no such Worker"),
        (None, f"WorkerUrl ({WORKER})"),
    ],
)
def test_workers_free_check_says_what_is_wrong(answered, status, said):
    asked = answered(**({"check": status} if status else {}))

    told = check_worker(WORKER, "shared")

    assert said in told
    assert bool(told) == bool(said)
    assert asked == [(f"{WORKER}/check", "shared")]
