"""The environment of `make up`, and processes: only those started here are stopped."""

import socket
import sys

import pytest

from local import aws, processes
from local.processes import Service
from local.template import parse_parameters


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("", {}),
        (
            "MaxRequestsPerBatch=7 DefaultModel=@cf/a/b",
            {"MaxRequestsPerBatch": "7", "DefaultModel": "@cf/a/b"},
        ),
        (
            "SourcePrefix='a folder/' LogLevel=DEBUG",
            {"SourcePrefix": "a folder/", "LogLevel": "DEBUG"},
        ),
        (
            "SourcePrefix=a folder/ LogLevel=DEBUG",
            {"SourcePrefix": "a folder/", "LogLevel": "DEBUG"},
        ),
        ("DefaultModel=", {"DefaultModel": ""}),
    ],
)
def test_parameters_are_read_with_quotes_or_without(text, parameters):
    assert parse_parameters(text) == parameters


def test_word_without_parameters_name_is_error():
    with pytest.raises(aws.LocalAwsError, match=r"LOCAL_PARAMETERS: .*'seven'"):
        aws._parameters({"LOCAL_PARAMETERS": "seven"}, "http://127.0.0.1:1")


def test_defaults_replace_earlier_values():
    parameters = aws._parameters(
        {"LOCAL_PARAMETERS": "LogLevel=DEBUG"}, "http://127.0.0.1:1/client/v4"
    )

    assert parameters["MaxRequestsPerBatch"] == "5000"
    assert parameters["DefaultModel"] == ""
    assert parameters["LogLevel"] == "DEBUG"


def test_outdated_service_is_restarted(folder, unused_port):
    service = Service("web", folder)
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(unused_port)]
    service.start(command, {}, unused_port, "/")

    assert service.is_current(unused_port) is True
    with pytest.raises(aws.LocalAwsError, match="LOCAL_PORT"):
        Service("other", folder).start(command, {}, unused_port, "/")
    assert Service("web", folder, sources=("Makefile",)).is_current(unused_port) is False
    assert service.running() is None
    assert service.stop() is False


def test_service_that_fails_shows_end_of_its_log(folder, monkeypatch, unused_port):
    monkeypatch.setattr(processes, "ROOT", folder)

    with pytest.raises(aws.LocalAwsError, match="no such luck"):
        Service("web", folder).start(
            [sys.executable, "-c", "raise SystemExit('no such luck')"], {}, unused_port, "/"
        )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.fixture
def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
