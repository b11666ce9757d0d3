"""AWS accounts with stacks, for tests of what `make deploy` and `make destroy` choose."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import answers, answers_files, deploy, destroy
from tools.account_stack import Stack


class Cloud:
    """AWS accounts with stacks, reached by profile, and the SAM CLI."""

    def __init__(self):
        self.accounts = {None: "111111111111", "prod": "222222222222", "dev": "333333333333"}
        self.stacks = {}
        self.deployed = []
        self.deleted = []

    def place(self, saved):
        return self.account_of(saved), saved["region"], saved["stack_name"]

    def account_of(self, saved):
        return self.accounts[saved.get("profile")]

    def find_stack(self, saved):
        place = self.place(saved)
        return (
            Stack(place[2], "arn", "UPDATE_COMPLETE", self.stacks[place], {"BucketName": "files"})
            if place in self.stacks
            else None
        )

    def delete(self, saved):
        self.deleted.append(self.place(saved))
        del self.stacks[self.place(saved)]

    def sam(self, command, *options, **_):
        if command != "deploy":
            return
        given = dict(zip(options[1::2], options[2::2], strict=True))
        read = tomllib.loads(Path(given["--config-file"]).read_text())["default"]
        read = SimpleNamespace(**read["global"]["parameters"], **read["deploy"]["parameters"])
        profile = given.get("--profile", getattr(read, "profile", None))
        place = self.accounts[profile], given["--region"], read.stack_name
        assert given["--region"] == read.region
        self.stacks[place] = self.stacks.get(place, {}) | answers_files.parameters_of(vars(read))
        self.deployed.append((place, read))


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    made = Cloud()
    monkeypatch.setattr(answers_files, "FOLDER", tmp_path)
    (tmp_path / "samconfig.toml").write_text((answers_files.ROOT / "samconfig.toml").read_text())
    for module in (answers_files, deploy):
        monkeypatch.setattr(module, "account_of", made.account_of)
    for module in (deploy, destroy):
        monkeypatch.setattr(module, "find_stack", made.find_stack)
    monkeypatch.setattr(destroy, "physical_ids", lambda *_: {})
    monkeypatch.setattr(destroy, "confirmed", lambda _: True)
    monkeypatch.setattr(destroy, "delete", lambda saved, stack: made.delete(saved))
    monkeypatch.setattr(destroy, "what_stays", lambda stack, names, file: file)
    monkeypatch.setattr(deploy, "_sam", made.sam)
    monkeypatch.setattr(deploy, "_limit", lambda saved, parameters: "enough")
    monkeypatch.setattr(deploy, "_put_token", lambda *_: None)
    monkeypatch.setattr(answers, "session", lambda saved: SimpleNamespace(region_name="eu-north-1"))
    made.folder = tmp_path
    return made
