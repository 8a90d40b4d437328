"""Small results that outlive a run: whole or absent, never wrong."""

from pathlib import Path

import pytest

from divopd.remembered import keep, key_of, recall, remembered_file

RESULT = {"success_rate": 12.857142857142858, "by_kind": {"größer": 1.0}, "version": 0}


def test_what_was_kept_is_recalled(tmp_path: Path) -> None:
    """To the last digit, and the newest of two; nothing but the file itself is left in the folder."""
    file = tmp_path / "deep" / "a.json"
    assert recall(file) is None
    assert keep(file, {"old": 1})
    assert keep(file, RESULT)
    assert recall(file) == RESULT
    assert list(file.parent.iterdir()) == [file]


def test_a_torn_or_altered_file_counts_as_absent(tmp_path: Path) -> None:
    """Cut off anywhere, or with one figure changed by hand."""
    file = tmp_path / "a.json"
    keep(file, RESULT)
    whole = file.read_text(encoding="utf-8")
    end = len(whole.rstrip())
    for size in range(0, end, 7):
        file.write_text(whole[:size], encoding="utf-8")
        assert recall(file) is None
    file.write_text(whole.replace("12.85", "92.85"), encoding="utf-8")
    assert recall(file) is None
    for wrong in ("null", "[]", '{"sha256": 1}', "\x00"):
        file.write_text(wrong, encoding="utf-8")
        assert recall(file) is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not keep(tmp_path / "file" / "a.json", RESULT)
    (tmp_path / "b.json").mkdir()
    assert not keep(tmp_path / "b.json", RESULT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.json", "file"]


def test_the_folder_is_the_users_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIVOPD_CACHE", str(tmp_path / "named"))
    assert remembered_file("kind", "key") == tmp_path / "named" / "kind" / "key.json"
    monkeypatch.delenv("DIVOPD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert remembered_file("kind", "key") == tmp_path / "cache" / "divopd" / "kind" / "key.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert remembered_file("kind", "key") == tmp_path / ".cache" / "divopd" / "kind" / "key.json"


def test_other_facts_have_another_key() -> None:
    """The order in which they are said does not matter."""
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1})
    assert len({key_of({"a": 1}), key_of({"a": 2}), key_of({"b": 1}), key_of({"a": "1"})}) == 4
