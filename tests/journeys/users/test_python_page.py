"""The walk in docs/python.md runs on moto; tests/deployed runs it on a deployed stack."""

from tests.support.python_page import printed_and_shown


def test_page_prints_what_it_shows(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    printed, shown = printed_and_shown(capsys)
    assert printed == shown
