"""`make release`: folders that deploy without building, and whose bytes two builds agree on."""

import hashlib
import os
import re
import shutil
import zipfile

import pytest
import yaml

from local.template import parse
from tools import release
from tools.release import ReleaseError, build_release, release_template, write_zip

TEMPLATE = release.TEMPLATE.read_text("utf-8")


def test_release_template_needs_no_build():
    made, source = parse(release_template(TEMPLATE, "code.zip", "x86_64")), parse(TEMPLATE)
    assert made["Globals"]["Function"].pop("CodeUri") == "code.zip"
    assert made["Parameters"]["Architecture"]["Default"] == "x86_64"
    assert made["Parameters"].pop("Architecture")["AllowedValues"] == ["x86_64"]
    del source["Globals"]["Function"]["CodeUri"], source["Parameters"]["Architecture"]
    for function in ("SubmitFunction", "PollFunction"):
        assert source["Resources"][function]["Metadata"].pop("BuildMethod") == "makefile"
    assert made == release._long_forms(source), "nothing else differs"


def test_template_of_release_is_expanded():
    """CloudFormation's console does not go through SAM, which would expand anchors."""
    text = release_template(TEMPLATE, "code.zip", "arm64")
    assert any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(TEMPLATE))
    assert not any(
        isinstance(event, yaml.AliasEvent)
        or getattr(event, "anchor", None)
        or str(getattr(event, "tag", "")).startswith("!")
        for event in yaml.parse(text)
    )
    assert len(text.encode()) < 1_000_000, "CloudFormation's limit"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CodeUri: .", "CodeUri: src"),
        ("[arm64, x86_64]", "[arm64]"),
        ("BuildMethod: makefile", "BuildMethod: python3.13"),
    ],
)
def test_changed_template_form_is_noticed(old, new):
    with pytest.raises(ReleaseError, match="is expected"):
        release_template(TEMPLATE.replace(old, new), "code.zip", "arm64")


def test_zip_depends_on_names_and_content_alone(tmp_path):
    for name, order in (("one", ["a", "b/c"]), ("two", ["b/c", "a"])):
        for number, path in enumerate(order):
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(path)
            file.chmod(0o600 if number else 0o755)
            os.utime(file, (10**9 + number, 10**9))
        write_zip(tmp_path / name, tmp_path / f"{name}.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as made:
        assert made.namelist() == ["a", "b/c"]
        assert {entry.external_attr >> 16 & 0o777 for entry in made.infolist()} == {0o644}


@pytest.mark.slow
@pytest.mark.build
def test_two_builds_give_same_bytes(release_folder, tmp_path):
    build_release("arm64", "arm64", tmp_path / "again")
    assert {path.name: path.read_bytes() for path in release_folder.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()
    }


@pytest.mark.build
def test_sums_are_those_of_every_other_file(release_folder):
    sums = dict(
        re.findall(
            r"^([0-9a-f]{64})  (.+)$", (release_folder / "SHA256SUMS").read_text(), re.MULTILINE
        )
    )
    files = {path.name for path in release_folder.iterdir()} - {"SHA256SUMS"}
    assert {
        hashlib.sha256((release_folder / name).read_bytes()).hexdigest(): name for name in files
    } == sums
    version, _ = release.project()
    zipped = f"dropbatch-{version}-arm64.zip"
    assert files == {zipped, "template.yaml", "samconfig.toml", "sbom.json", "README.md", "LICENSE"}
    with zipfile.ZipFile(release_folder / zipped) as made:
        assert {"functions/submit/handler.py", "shared/bootstrap.py"} <= {*made.namelist()}


@pytest.mark.build
def test_folder_in_use_is_left_alone(release_folder, tmp_path):
    kept = shutil.copytree(release_folder, tmp_path / "kept")
    with pytest.raises(ReleaseError, match="not empty"):
        build_release("arm64", "arm64", kept)
