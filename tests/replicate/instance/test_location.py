"""Where an instance is, by the path or the name that is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import UsageError
from replicate.instance.location import home, resolve_instance


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPLICATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_named_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    assert home() == tmp_path
    assert resolve_instance("alpha") == tmp_path / "alpha"
    assert resolve_instance("./alpha") == Path.cwd() / "alpha"
    with pytest.raises(UsageError):
        resolve_instance("../x y".replace("/", ""))


def test_without_a_home_of_its_own_it_is_the_systems_or_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert home() == Path("/var/lib/replicate")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".local/share/replicate"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home() == tmp_path / "data/replicate"


@pytest.mark.parametrize("given", [".", "..", "./alpha", "/srv/alpha", "beside/../alpha"])
def test_a_path_is_one_from_here(given: str) -> None:
    found = resolve_instance(given)
    assert found.is_absolute()
    assert found == (Path.cwd() / given).resolve()
