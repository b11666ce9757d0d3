"""Settings: everything that is wrong is told at once.

And nothing that could leak the token is taken.
"""

import pytest

from bench.child import EXAMPLE_SETTINGS
from shared.errors import ConfigurationError
from shared.settings import ENVIRONMENT, read_settings

OPTIONAL = {
    "TRANSPORT",
    "AI_GATEWAY_ID",
    "AI_GATEWAY_TOKEN_SECRET_ARN",
    "WORKER_URL",
    "WORKER_SECRET_ARN",
    "SOURCE_BUCKET_NAME",
    "SOURCE_PREFIX",
    "KMS_KEY_ARN",
    "COMPLETION_EVENTS",
    "EVENTS_QUEUE_NAME",
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
def test_missing_variable_is_named(name):
    with pytest.raises(ConfigurationError, match=f"^{name} is not set$"):
        read_settings({other: value for other, value in GOOD.items() if other != name})


@pytest.mark.parametrize("name", sorted(GOOD.keys() - {"DEFAULT_MODEL"}))
def test_empty_variable_is_named(name):
    assert refusal(**{name: ""}).startswith(f"{name} must ")


def test_missing_and_wrong_are_reported_together():
    bad = {**GOOD, "AMBIGUOUS_SUBMIT": "maybe", "MAX_BATCH_BYTES": "lots"}
    del bad["TABLE_NAME"]
    with pytest.raises(ConfigurationError) as caught:
        read_settings(bad)
    named = [part.split()[0] for part in str(caught.value).split("; ")]
    assert named == ["TABLE_NAME", "MAX_BATCH_BYTES", "AMBIGUOUS_SUBMIT"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("CLOUDFLARE_ACCOUNT_ID", value)
            for value in ("0" * 31, "0" * 33, "G" * 32, "A" * 32, "0" * 32 + "\n", "../" + "0" * 29)
        ),
        *(
            ("DEFAULT_MODEL", value)
            for value in (
                "bge",
                "@cf/baai",
                "@cf/baai/",
                "@xx/a/b",
                "@cf/a/b/c",
                "@cf/a/b\n",
                "@cf/a/../b",
            )
        ),
        *(
            ("MAX_REQUESTS_PER_BATCH", value)
            for value in ("0", "-1", "1.5", "100001", "1e3", "٣", "1_000", " 5", "9" * 5_000)
        ),
        *(("MAX_BATCH_BYTES", value) for value in ("999", "10000000", "-9500000", "9.5e6")),
        *(("API_CALLS_PER_MINUTE", value) for value in ("0", "-200", "241", "2401", "20.5")),
        *(
            ("BATCH_DEADLINE_HOURS", value)
            for value in ("0", "-1", "nan", "inf", "169", "a day", "1e999")
        ),
        *(("AMBIGUOUS_SUBMIT", value) for value in ("Resubmit", "retry", "fail ")),
    ],
)
def test_value_out_of_range_is_refused_by_name(name, value):
    assert refusal(**{name: value}).startswith(name)


@pytest.mark.parametrize("transport", [{}, GATEWAY])
def test_only_a_worker_makes_more_calls_than_a_token(transport):
    said = refusal(API_CALLS_PER_MINUTE="2400", **transport)
    assert said.startswith("API_CALLS_PER_MINUTE must be at most 240 with TRANSPORT=")
    assert "Only a Worker" in said

    assert (
        read_settings({**GOOD, **WORKER, "API_CALLS_PER_MINUTE": "2400"}).api_calls_per_minute
        == 2_400
    )


@pytest.mark.parametrize(
    "url",
    [
        "http://api.cloudflare.com/client/v4",
        "ftp://api.cloudflare.com/client/v4",
        "api.cloudflare.com/client/v4",
        "//api.cloudflare.com/client/v4",
        "https://",
        "https:///client/v4",
        "https://user:secret@api.cloudflare.com/client/v4",
        "https://api.cloudflare.com@evil.example/client/v4",
        "https://api.cloudflare.com\\@evil.example/client/v4",
        "https://api.cloudflare.com/client/v4?a=b",
        "https://api.cloudflare.com/client/v4#part",
        "https://api.cloudflare.com/cli ent/v4",
        "https://api.cloudflare\n.com/client/v4",
        " https://api.cloudflare.com/client/v4",
        "https://api.cloudflare.com:port/client/v4",
        "https://api.cloudflare.com:99999/client/v4",
        "https://[::1/client/v4",
        "http://127.0.0.1.evil.example/client/v4",
        "http://localhost.evil.example/client/v4",
        "http://localhost@evil.example/client/v4",
        "http://10.0.0.1/client/v4",
        "http://0.0.0.0/client/v4",
        "file:///etc/passwd",
        "javascript:alert(1)",
    ],
)
def test_base_url_that_could_leak_token_is_refused(url):
    assert refusal(WORKERS_AI_BASE_URL=url).startswith("WORKERS_AI_BASE_URL")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://api.cloudflare.com/client/v4", "https://api.cloudflare.com/client/v4"),
        ("https://api.cloudflare.com/client/v4/", "https://api.cloudflare.com/client/v4"),
        ("HTTPS://proxy.example:8443/v4", "HTTPS://proxy.example:8443/v4"),
        ("http://127.0.0.1:8787/client/v4", "http://127.0.0.1:8787/client/v4"),
        ("http://localhost:8787", "http://localhost:8787"),
        ("http://[::1]:8787/client/v4", "http://[::1]:8787/client/v4"),
    ],
)
def test_https_and_loopback_are_normalized(url, kept):
    assert read_settings({**GOOD, "WORKERS_AI_BASE_URL": url}).workers_ai_base_url == kept


def test_refusal_never_repeats_value():
    url = "https://user:secret-canary@api.cloudflare.com"
    assert "secret-canary" not in refusal(WORKERS_AI_BASE_URL=url)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({**WORKER, "WORKER_URL": ""}, "WORKER_URL"),
        ({**WORKER, "WORKER_SECRET_ARN": ""}, "WORKER_SECRET_ARN"),
    ],
)
def test_missing_setting_of_transport_is_named(changes, name):
    assert refusal(**changes) == f"{name} must not be empty with TRANSPORT={changes['TRANSPORT']}"


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
