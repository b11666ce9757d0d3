"""When the services of a process are built."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.child import EXAMPLE_SETTINGS
from functions.poll import handler as poll
from functions.submit import handler as submit
from shared import bootstrap
from shared.errors import ConfigurationError


@pytest.fixture
def built(monkeypatch):
    built = []
    monkeypatch.setattr(bootstrap, "services", lambda: built.append("services"))
    return built


def test_services_are_built_as_lambda_initializes(built, monkeypatch):
    monkeypatch.setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")
    bootstrap.build_in_init()
    assert built == ["services"]


def test_import_elsewhere_builds_nothing(built, monkeypatch):
    """A program that imports a handler may have no region."""
    monkeypatch.delenv("AWS_LAMBDA_RUNTIME_API", raising=False)
    bootstrap.build_in_init()
    assert built == []


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
        return SimpleNamespace(
            meta=SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))
        )

    for name, value in EXAMPLE_SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("boto3.session.Session", lambda: SimpleNamespace(client=client))
    bootstrap.services.__wrapped__()

    assert sorted(made) == ["dynamodb", "s3", "secretsmanager", "sqs"]


@pytest.mark.parametrize("handler", [submit, poll], ids=["submit", "poll"])
def test_handler_builds_services_last(handler):
    """Whatever an import does is done by then."""
    assert Path(handler.__file__).read_text().endswith("\n\n\nbuild_in_init()\n")
