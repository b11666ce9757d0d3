"""`validate` without a stack: the file is checked on this machine."""

import json

import pytest

from tests.support.terminal import run_alone

M2M = "@cf/meta/m2m100-1.2b"
GOOD = '{"text":"Hello","source_lang":"en","target_lang":"fr"}\n'


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.jsonl"
    path.write_text(GOOD + "nonsense\n" + GOOD)
    return str(path)


@pytest.mark.parametrize("asked", [(), ("--offline",)])
def test_file_is_checked_without_stack(tmp_path, reviews, asked):
    done = run_alone("validate", reviews, "--model", M2M, *asked)

    assert done.returncode == 1, done.stderr
    assert "records   3 in 119 bytes" in done.stdout
    assert "batches   1, about 3 calls" in done.stdout
    assert "line 2: invalid_json" in done.stdout
    assert ("no stack was found" in done.stderr) is not asked


@pytest.mark.parametrize("named", [("--stack", "mine"), ("--stack", "dropbatch"), ("--local",)])
def test_named_stack_must_exist(tmp_path, reviews, named):
    done = run_alone(*named, "validate", reviews, DROPBATCH_LOCAL=str(tmp_path))

    assert done.returncode in {2, 4, 5}
    assert done.stdout == ""


def test_options_of_the_folder_are_the_stacks(command, reviews):
    command.world.upload("a/_options.json", json.dumps({"model": M2M, "tags": {"team": "x"}}))
    before = command.world.objects()

    (alone,), (known,) = (
        command.run("validate", reviews, "--name", "a/", "--json", *asked).json()
        for asked in (["--offline"], [])
    )

    assert command.world.objects() == before
    assert alone["error"]["code"] == "no_model"
    assert (known["error"], known["bad"]) == (None, 1)
    assert known["options"] == {"model": M2M, "tags": {"team": "x"}}


def test_wrong_option_and_missing_model(tmp_path, reviews):
    assert run_alone("validate", reviews, "--offline", "-o", "modle=x").returncode == 2
    done = run_alone("validate", reviews, "--offline")
    assert (done.returncode, done.stdout.startswith("no_model: ")) == (1, True)
