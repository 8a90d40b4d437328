"""Which adapter fits what is installed, by metadata alone; no framework is needed for it."""

import sys
from pathlib import Path

import pytest

from divopd.adapters.feeding import pool_of_equal_rows
from divopd.adapters.frameworks import FRAMEWORKS, require_fit
from divopd.cli import doctor
from divopd.errors import InputError, UnsupportedVersionError


def install(folder: Path, package: str, version: str) -> None:
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a package seems to be installed; those that are here are out of sight."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_none_is_installed(packages: Path) -> None:
    """The doctor says which there are, and that divopd needs none of them."""
    (check,) = doctor.check_frameworks()
    assert check.found is None
    assert all(name in check.install for name in ("trinity-rft", "TransferQueue", "verl", "trl", "miles", "nemo-rl"))
    assert "divopd needs none of them" in check.install


def test_the_doctor_names_the_adapter_that_fits(packages: Path) -> None:
    """The version, the class, whether it was run for real; and of another version the one that is expected."""
    install(packages, "verl", "0.9.4")
    install(packages, "trl", "1.2.0")
    install(packages, "miles", "0.1.0")
    verl, trl, miles = doctor.check_frameworks()
    assert (verl.part, verl.found, verl.use) == ("framework verl", "0.9.4", "divopd.adapters.verl.DivOPDReplayBuffer")
    assert trl.found is None
    assert trl.install.startswith("trl 1.2.0 is installed; divopd.adapters.trl fits 1.16: install trl 1.16.0")
    assert miles.use == "divopd.adapters.miles.DivOPDDataBuffer (not run with the real package)"


@pytest.mark.parametrize(("version", "fits"), [("0.9", True), ("0.9.1", True), ("0.10.0", False), ("0.91", False)])
def test_an_unsupported_version_gets_one_sentence(packages: Path, version: str, fits: bool) -> None:
    """By whole numbers of the version, and before anything of the framework is used."""
    install(packages, "verl", version)
    if fits:
        return require_fit("verl")
    with pytest.raises(UnsupportedVersionError, match=r"fits 0\.9: install verl 0\.9\.1") as raised:
        require_fit("verl")
    assert "\n" not in str(raised.value)
    return None


def test_the_table_names_modules_that_are_there() -> None:
    """Each adapter is a file; those without a framework in their bases can be imported here."""
    folder = Path(doctor.__file__).parents[1] / "adapters"
    for framework in FRAMEWORKS.values():
        module, _, name = framework.adapter.rpartition(".")
        text = (folder / f"{module.rpartition('.')[2]}.py").read_text(encoding="utf-8")
        assert f"class {name}" in text


def test_row_weights_are_refused_where_there_is_no_place_for_them() -> None:
    """A method that weighs its rows would silently be another method."""
    with pytest.raises(InputError, match="weighs its rows, and verl has no place"):
        pool_of_equal_rows("verl", "turnopd")
    assert pool_of_equal_rows("verl", "divopd", cap=2).settings.cap == 2
