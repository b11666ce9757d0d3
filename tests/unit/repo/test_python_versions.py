"""What differs between the Python versions that the project allows: only where zstd comes from."""

import subprocess
import sys

from tests.support.shipped import ROOT


def test_zstd_is_from_standard_library_if_there():
    """Python 3.14 has `compression.zstd`, and the locks leave the backport out there."""
    program = """
import sys, types
from backports import zstd
sys.modules.pop("backports.zstd"), sys.modules.pop("backports")
sys.modules["compression"] = types.ModuleType("compression")
sys.modules["compression"].zstd = sys.modules["compression.zstd"] = zstd
class NoBackports:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "backports":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoBackports())
sys.version_info = (3, 14, 0, "final", 0)
from dropbatch.core.read import unpack
assert b"".join(unpack.decompress("zstd", iter([zstd.compress(b"text")]))) == b"text"
"""
    if sys.version_info >= (3, 14):
        program = """
from compression import zstd
from dropbatch.core.read import unpack
assert unpack.zstd_module() is zstd
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
