"""system/other_package.py: the other distribution of our import name is noticed, installed or written over ours."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

import replicate
from replicate.errors import OtherPackageError
from replicate.system.other_package import check_other_package


def install(directory: Path, name: str) -> None:
    made = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


@pytest.mark.parametrize(
    ("name", "is_theirs"), [("replicate", True), ("Replicate", True), ("replicate-x", False), ("re-plicate", False)]
)
def test_it_is_known_by_its_name_to_the_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_theirs: bool
) -> None:
    check_other_package()
    install(tmp_path / name, name)
    monkeypatch.syspath_prepend(tmp_path / name)
    assert metadata.version(name) == "1.0"
    if not is_theirs:
        check_other_package()
        return
    with pytest.raises(OtherPackageError, match="is installed in the same environment") as caught:
        check_other_package()
    assert "pip uninstall replicate" in caught.value.do
    assert caught.value.where == sys.prefix


def test_files_written_over_ours_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(replicate, "__dualsite__")
    with pytest.raises(OtherPackageError, match="overwritten"):
        check_other_package()
