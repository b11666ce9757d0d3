"""What `make up` makes of its environment, and that `make down` stops nothing it did not start."""

import json
import subprocess
import sys

import pytest

from local import aws


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("", {}),
        (
            "MaxRequestsPerBatch=7 DefaultModel=@cf/a/b",
            {"MaxRequestsPerBatch": "7", "DefaultModel": "@cf/a/b"},
        ),
        (
            "PollSchedule='rate(2 minutes)' LogLevel=DEBUG",
            {"PollSchedule": "rate(2 minutes)", "LogLevel": "DEBUG"},
        ),
        (
            "PollSchedule=rate(2 minutes) LogLevel=DEBUG",
            {"PollSchedule": "rate(2 minutes)", "LogLevel": "DEBUG"},
        ),
        ("DefaultModel=", {"DefaultModel": ""}),
    ],
)
def test_parameters_are_read_with_quotes_or_without(text, parameters):
    assert aws._parse_parameters(text) == parameters


def test_a_word_that_is_no_parameter_is_refused():
    with pytest.raises(aws.LocalAwsError, match="seven"):
        aws._parse_parameters("seven")


def test_every_default_is_said_so_that_an_earlier_value_does_not_stay():
    defaults = aws._default_parameters()

    assert defaults["MaxRequestsPerBatch"] == "5000"
    assert defaults["DefaultModel"] == ""
    assert "CloudflareAccountId" not in defaults


def test_another_process_under_an_old_number_is_left_alone(tmp_path):
    home = aws.Home(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        service = {"pid": other.pid, "born": "some other time", "port": 1, "code": ""}
        home.service_file("aws").write_text(json.dumps(service))

        assert aws._stop(home, "aws") is False
        assert other.poll() is None
    finally:
        other.communicate(b"\n")


def test_a_service_is_started_waited_for_and_stopped_once_it_is_outdated(tmp_path, monkeypatch, unused_port):
    home = home_in(tmp_path)
    monkeypatch.setattr(aws, "SERVICE_SOURCES", {"web": ()})
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(unused_port)]
    aws._start(home, "web", command, {}, unused_port, "/")

    assert aws._keep(home, "web", unused_port) is True
    with pytest.raises(aws.LocalAwsError, match="LOCAL_PORT"):
        aws._start(home, "other", command, {}, unused_port, "/")
    monkeypatch.setattr(aws, "SERVICE_SOURCES", {"web": ("Makefile",)})
    assert aws._keep(home, "web", unused_port) is False
    assert aws._running(home, "web") is None
    assert aws._stop(home, "web") is False


def test_a_service_that_fails_shows_the_end_of_its_log(tmp_path, monkeypatch, unused_port):
    monkeypatch.setattr(aws, "ROOT", tmp_path)

    with pytest.raises(aws.LocalAwsError, match="no such luck"):
        aws._start(
            home_in(tmp_path), "web", [sys.executable, "-c", "raise SystemExit('no such luck')"], {}, unused_port, "/"
        )


def home_in(folder):
    home = aws.Home(folder)
    home.logs.mkdir()
    return home


@pytest.fixture
def unused_port():
    with aws.socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
