"""The page beside this file shows the toy as it is, and what it prints."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

HERE = Path(__file__).parent
TOY, PROGRAM = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
(PRINTED,) = re.findall(
    r"\n```\n(.*?)```\n", (HERE / "README.md").read_text().split(f"{PROGRAM}```")[1], re.DOTALL
)


def test_page_shows_the_toy():
    assert f"{TOY}\n\n" in (HERE / "test_toy.py").read_text()


def test_program_of_page_prints_what_the_page_says():
    out = StringIO()
    with redirect_stdout(out):
        exec(PROGRAM, {})

    assert out.getvalue().startswith(PRINTED)
