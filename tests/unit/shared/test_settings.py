"""Settings: all that is wrong is told at once, and nothing that could leak the token is taken."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.child import EXAMPLE_SETTINGS
from functions.poll import handler as poll
from functions.submit import handler as submit
from shared import bootstrap
from shared.errors import ConfigurationError
from shared.settings import ENVIRONMENT, read_settings

OPTIONAL = {
    *("TRANSPORT", "AI_GATEWAY_ID", "AI_GATEWAY_TOKEN_SECRET_ARN", "WORKER_URL"),
    *("WORKER_SECRET_ARN", "SOURCE_BUCKET_NAME", "SOURCE_PREFIX", "KMS_KEY_ARN"),
    *("COMPLETION_EVENTS", "EVENTS_QUEUE_NAME"),
}
GOOD = {name: value for name, value in EXAMPLE_SETTINGS.items() if name in ENVIRONMENT - OPTIONAL}
WORKER = {
    "TRANSPORT": "worker",
    "WORKER_URL": "https://dropbatch.example.workers.dev",
    "WORKER_SECRET_ARN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:worker",
    "CLOUDFLARE_API_TOKEN_SECRET_ARN": "",
}
GATEWAY = {"AI_GATEWAY_ID": "my-gateway"}


def refusal(**changes):
    with pytest.raises(ConfigurationError) as caught:
        read_settings({**GOOD, **changes})
    return str(caught.value)


def test_good_variables_make_settings():
    settings = read_settings({**GOOD, "SOMETHING_ELSE": "ignored"})
    assert settings.max_batch_bytes == 9_500_000
    assert settings.batch_deadline_hours == 24.0
    assert settings.default_model == ""


@pytest.mark.parametrize("name", sorted(GOOD))
def test_missing_or_empty_variable_is_named(name):
    with pytest.raises(ConfigurationError, match=f"^{name} is not set$"):
        read_settings({other: value for other, value in GOOD.items() if other != name})
    if name != "DEFAULT_MODEL":
        assert refusal(**{name: ""}).startswith(f"{name} must ")


def test_missing_and_wrong_are_reported_together():
    bad = {**GOOD, "AMBIGUOUS_SUBMIT": "maybe", "MAX_BATCH_BYTES": "lots"}
    del bad["TABLE_NAME"]
    with pytest.raises(ConfigurationError) as caught:
        read_settings(bad)
    named = [part.split()[0] for part in str(caught.value).split("; ")]
    assert named == ["TABLE_NAME", "MAX_BATCH_BYTES", "AMBIGUOUS_SUBMIT"]


WRONG = {
    "CLOUDFLARE_ACCOUNT_ID": ["0" * 31, "0" * 33, "G" * 32, "A" * 32, "0" * 32 + "\n"],
    "DEFAULT_MODEL": ["bge", "@cf/baai", "@cf/baai/", "@xx/a/b", "@cf/a/b/c", "@cf/a/b\n"],
    "MAX_REQUESTS_PER_BATCH": ["0", "-1", "1.5", "100001", "1e3", "٣", "1_000", " 5", "9" * 5_000],
    "MAX_BATCH_BYTES": ["999", "10000000", "-9500000", "9.5e6"],
    "API_CALLS_PER_MINUTE": ["0", "-200", "241", "2401", "20.5"],
    "BATCH_DEADLINE_HOURS": ["0", "-1", "nan", "inf", "169", "a day", "1e999"],
    "AMBIGUOUS_SUBMIT": ["Resubmit", "retry", "fail "],
}


def test_value_out_of_range_is_refused_by_name(subtests):
    for name, value in [(one, value) for one, values in WRONG.items() for value in values]:
        with subtests.test(name, value=value[:40]):
            assert refusal(**{name: value}).startswith(name)


@pytest.mark.parametrize("transport", [{}, GATEWAY])
def test_only_a_worker_makes_more_calls_than_a_token(transport):
    said = refusal(API_CALLS_PER_MINUTE="2400", **transport)
    assert said.startswith("API_CALLS_PER_MINUTE must be at most 240 with TRANSPORT=")
    assert "Only a Worker" in said

    made = read_settings({**GOOD, **WORKER, "API_CALLS_PER_MINUTE": "2400"})
    assert made.api_calls_per_minute == 2_400


API = "api.cloudflare.com/client/v4"
LEAKS = [
    *(f"http://{API}", f"ftp://{API}", API, f"//{API}", f" https://{API}"),
    *("https://", "https:///client/v4", "https://[::1/client/v4", f"https://user:secret@{API}"),
    *("https://api.cloudflare.com@evil.example/", "https://api.cloudflare.com\\@evil.example/"),
    *(f"https://{API}?a=b", f"https://{API}#part", f"https://{API}/a b", "https://api\n.com/v4"),
    *("https://api.cloudflare.com:port/client/v4", "https://api.cloudflare.com:99999/client/v4"),
    *("http://127.0.0.1.evil.example/", "http://localhost.evil.example/", "http://localhost@evil/"),
    *("http://10.0.0.1/client/v4", "http://0.0.0.0/", "file:///etc/passwd", "javascript:alert(1)"),
]


def test_base_url_that_could_leak_token_is_refused(subtests):
    for url in LEAKS:
        with subtests.test(url):
            said = refusal(WORKERS_AI_BASE_URL=url)
            assert said.startswith("WORKERS_AI_BASE_URL")
            assert "secret" not in said


KEPT = {
    f"https://{API}": f"https://{API}",
    f"https://{API}/": f"https://{API}",
    "HTTPS://proxy.example:8443/v4": "HTTPS://proxy.example:8443/v4",
    "http://127.0.0.1:8787/client/v4": "http://127.0.0.1:8787/client/v4",
    "http://localhost:8787": "http://localhost:8787",
    "http://[::1]:8787/client/v4": "http://[::1]:8787/client/v4",
}


def test_https_and_loopback_are_normalized():
    for url, kept in KEPT.items():
        assert read_settings({**GOOD, "WORKERS_AI_BASE_URL": url}).workers_ai_base_url == kept


@pytest.mark.parametrize("name", ["WORKER_URL", "WORKER_SECRET_ARN"])
def test_missing_setting_of_transport_is_named(name):
    said = refusal(**{**WORKER, name: ""})
    assert said == f"{name} must not be empty with TRANSPORT=worker"


@pytest.mark.parametrize(
    "changes",
    [
        {"TRANSPORT": "carrier-pigeon"},
        {**WORKER, "WORKER_URL": "http://worker.example"},
        {"TRANSPORT": "gateway"},
        {"AI_GATEWAY_ID": "a/../b"},
    ],
)
def test_transport_cannot_send_secret_astray(changes):
    assert " must be " in refusal(**changes)


@pytest.fixture
def built(monkeypatch):
    built = []
    monkeypatch.setattr(bootstrap, "services", lambda: built.append("services"))
    return built


def test_services_are_built_as_lambda_initializes_and_nowhere_else(built, monkeypatch):
    """A program that imports a handler may have no region."""
    monkeypatch.delenv("AWS_LAMBDA_RUNTIME_API", raising=False)
    bootstrap.build_in_init()
    assert built == []
    monkeypatch.setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")
    bootstrap.build_in_init()
    assert built == ["services"]


def test_bad_variable_is_left_to_first_invocation(monkeypatch):
    """An error of the initialization would be shown without the message that names the variable."""

    def services():
        raise ConfigurationError("BUCKET_NAME is missing")

    monkeypatch.setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")
    monkeypatch.setattr(bootstrap, "services", services)
    bootstrap.build_in_init()


def test_clients_that_each_request_needs_are_built_with_services(monkeypatch):
    """Also that of the secret, without which no call of the API is made."""
    made = []

    def client(name, **_):
        made.append(name)
        events = SimpleNamespace(register=lambda *_: None)
        return SimpleNamespace(meta=SimpleNamespace(events=events))

    for name, value in EXAMPLE_SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("boto3.session.Session", lambda: SimpleNamespace(client=client))
    bootstrap.services.__wrapped__()

    assert sorted(made) == ["dynamodb", "s3", "secretsmanager", "sqs"]


@pytest.mark.parametrize("handler", [submit, poll], ids=["submit", "poll"])
def test_handler_builds_services_last(handler):
    """Whatever an import does is done by then."""
    assert Path(handler.__file__).read_text().endswith("\n\n\nbuild_in_init()\n")
