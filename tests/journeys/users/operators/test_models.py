"""docs/cli.md shows what `validate`, `put` and `models` print."""

import re

from tests.support.shipped import ROOT


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

    assert re.sub("[-0-9]+ days", "0 days", done.err.splitlines()[0]) == first
    assert wanted
    for line in wanted:
        assert line in done.out.splitlines()
