"""What several files of unit tests share because it is slow to make."""

import pytest

from tools.release import build_release


@pytest.fixture(scope="session")
def release_folder(tmp_path_factory):
    """The folder of a release for arm64."""
    made = tmp_path_factory.mktemp("release") / "arm64"
    build_release("arm64", "arm64", made)
    return made
