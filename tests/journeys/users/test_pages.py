"""What docs/cli.md, docs/python.md and README.md show is what is printed."""

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


def shown(command):
    """The lines of docs/cli.md below a command."""
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    return (
        page.partition(f"\n$ {command}\n")[2].partition("```")[0].partition("\n$ ")[0].splitlines()
    )


def test_page_shows_validate_and_put_as_they_print(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.jsonl").write_text("\n".join(shown("cat reviews.jsonl")) + "\n")

    given = ("reviews.jsonl", "--model", "@cf/meta/m2m100-1.2b")
    warned, _ = shown(" ".join(["dropbatch", "put", *given]))

    assert command.run("validate", *given).out.splitlines() == shown(
        " ".join(["dropbatch", "validate", *given])
    )
    assert warned in command.run("put", *given).err.splitlines()


def test_page_shows_models_as_they_print(command):
    first, *wanted = shown("dropbatch models")
    done = command.run("models")

    assert re.sub("[-0-9]+ days?", "0 days", done.err.splitlines()[0]) == first
    assert wanted
    for line in wanted:
        assert line in done.out.splitlines()
