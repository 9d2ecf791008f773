"""Where an instance is, by the path or the name that is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import NotFoundError, UsageError
from replicate.instance import location
from replicate.instance.instance import Instance
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


def test_the_user_of_the_services_needs_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`runuser -u dualsite -- replicate -i primary status`: its home directory is where its instances are."""
    monkeypatch.setattr("os.geteuid", lambda: 997)
    monkeypatch.setattr(location, "SYSTEM_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path


def test_another_user_is_told_where_the_instance_of_that_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "SYSTEM_HOME", str(tmp_path))
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path / "mine"))
    for is_there in (False, True):
        with pytest.raises(NotFoundError) as caught:
            Instance.open("alpha")
        assert (f"export REPLICATE_HOME={tmp_path}, or" in caught.value.do) is is_there
        assert ("instance create alpha" in caught.value.do) is not is_there
        (tmp_path / "alpha").mkdir(exist_ok=True)
    with pytest.raises(NotFoundError, match="instance create"):
        Instance.open("./alpha")


@pytest.mark.parametrize("given", [".", "..", "./alpha", "/srv/alpha", "beside/../alpha"])
def test_a_path_is_one_from_here(given: str) -> None:
    found = resolve_instance(given)
    assert found.is_absolute()
    assert found == (Path.cwd() / given).resolve()
