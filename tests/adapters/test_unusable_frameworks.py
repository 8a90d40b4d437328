"""Adapters whose framework is not there, or is another version, say so in a sentence."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from divopd.errors import UnsupportedVersionError

FRAMEWORKS = [
    ("trinity", "trinity-rft", "trinity", "0.6", "0.6.0"),
    ("transfer_queue", "TransferQueue", "transfer_queue", "0.1.11", "0.1.11"),
]


@pytest.mark.parametrize(("adapter", "package", "module", "fits", "tried"), FRAMEWORKS)
def test_a_framework_that_cannot_be_used_is_told_in_a_sentence(
    adapter: str, package: str, module: str, fits: str, tried: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not installed: what to install. Another version: which one, which fits, and that the pool needs none."""
    if find_spec(module) is not None:
        pytest.skip("the framework is installed here")
    name = f"divopd.adapters.{adapter}"
    with pytest.raises(UnsupportedVersionError, match=f"^{package} is not installed; pip install {package}=={tried}$"):
        import_module(name)
    about = tmp_path / f"{package.replace('-', '_')}-0.0.3.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedVersionError, match=f"^{package} 0.0.3 is installed; {name} fits {fits}: install"):
        import_module(name)
    assert name not in sys.modules
