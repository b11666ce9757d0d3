"""The library on the deployed stack: the walk in docs/python.md, and a notebook run without a browser."""

import pytest

from local import aws
from tests.support import vendors
from tests.support.aws.stack import running_stack
from tests.support.python_page import printed_and_shown

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

HOME = aws.Home(aws.ROOT / ".local/test-python")


@pytest.fixture(scope="module")
def stack():
    with running_stack(HOME, "") as made:
        yield made


def test_page_prints_what_it_shows(stack, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", stack.s3.meta.endpoint_url)
    for name, value in aws.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    printed, shown = printed_and_shown(capsys)
    assert printed == shown


def test_notebook_shows_one_line_that_changes(stack, monkeypatch):
    """Each cell's outputs as it is saved; an interrupted wait leaves the job, which is then waited for again."""
    monkeypatch.setenv("DROPBATCH_LOCAL", str(HOME.stack_file))
    cells = vendors.run("vendors", "notebook_runs.py")

    waited, frame, interrupted, again = (cells[name] for name in ("wait", "frame", "interrupt", "again"))
    for over in (waited, again):
        line, returned = over
        assert line.endswith(" s")
        assert "  completed    [################] 100%  5 of 5 records  " in line
        assert "\n" not in line
        assert returned == "'completed'"
    (table,) = frame
    assert "success" in table
    assert table.count("True") == 5
    shown, error = interrupted
    assert "of 5 records" in shown
    assert error == "KeyboardInterrupt"
    assert not [text for name in cells if name != "frame" for text in cells[name] if "\r" in text or "\x1b" in text]
