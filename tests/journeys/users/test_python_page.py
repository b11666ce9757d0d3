"""Python samples of the documents run on moto as they stand."""

import re

from local.workers_ai import Fault
from tests.support.python_page import printed_and_shown
from tests.support.shipped import ROOT


def test_page_prints_what_it_shows(command, api, tmp_path, monkeypatch, capsys):
    api.inject(
        Fault(kind="item_fails", contains="Sleep well", marker="Sleep well", code=5001, times=0)
    )
    monkeypatch.chdir(tmp_path)
    printed, shown = printed_and_shown(capsys)
    assert printed == shown


def test_readme_has_answers_in_order(command, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert printed == ["0 The room was clean. True", "1 We heard the lift all night. True"]
