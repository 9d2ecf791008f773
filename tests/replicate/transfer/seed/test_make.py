"""transfer/seed/make.py: a relay that gives up a partition while a copy of it is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from replicate.admin import partitions, subscriptions
from replicate.admin.dropping_rows import drop_rows
from replicate.admin.regions import add_region
from replicate.errors import TryAgainError
from replicate.instance.instance import Instance
from replicate.transfer.seed import direct, make, some_regions
from replicate.transfer.seed.make import make_seed
from tests.harness.pair import Pair
from tests.harness.regions import make_database

SALES = 2


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """It holds DEFAULT and sales, and has the peer third."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    pair = Pair.create(tmp_path, schema="CREATE TABLE t1 (id INTEGER PRIMARY KEY, v); CREATE TABLE t2 (v);")
    partitions.create(pair.primary, "sales")
    partitions.assign(pair.primary, "sales", ["t1"])
    with closing(pair.connect()) as connection, connection:
        connection.execute("INSERT INTO t1 (v) VALUES ('a'), ('b'), ('c')")
    add_region(pair.primary, make_database(tmp_path / "two.db", "CREATE TABLE t3 (v);"), name="two")
    pair.primary.reload()
    subscriptions.set_(pair.secondary, ["1", "2"])
    pair.seed()
    pair.secondary.register_peer("third", "127.0.0.1", 7431)
    return pair.secondary


@pytest.fixture
def third(relay: Instance, tmp_path: Path) -> Instance:
    made = Instance.create(tmp_path / "third", role="secondary", name="third", network=relay.content.network)
    subscriptions.set_(made, ["2"])
    return made


@pytest.fixture
def meanwhile(relay: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at what is held and the moment that is copied, another command deletes its rows."""

    def after_removal(real: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def taken(*args: Any, **options: Any) -> Iterator[Any]:
            other = Instance.open(relay.path)
            drop_rows(other, [SALES], lambda: subscriptions.remove(other, ["2"]))
            with real(*args, **options) as snapshot:
                yield snapshot

        return taken

    for module, name in ((make, "take_absorbed"), (direct, "take_absorbed"), (some_regions, "take_snapshot")):
        monkeypatch.setattr(module, name, after_removal(getattr(module, name)))


@pytest.mark.usefixtures("meanwhile")
@pytest.mark.parametrize("numbers", [(), (SALES,)], ids=["all", "a partition"])
def test_a_file(relay: Instance, third: Instance, tmp_path: Path, numbers: tuple[int, ...]) -> None:
    with pytest.raises(TryAgainError, match="has changed while the copy was begun"):
        make_seed(relay, third.name, tmp_path / "third.seed", partitions=numbers)
    assert not (tmp_path / "third.seed").exists()


@pytest.mark.usefixtures("meanwhile")
def test_straight_from_the_relay(relay: Instance, third: Instance) -> None:
    with pytest.raises(TryAgainError, match="has changed while the copy was begun"):
        direct.seed(relay, third)
    assert not third.regions
    assert third.content.held == (SALES,)


def test_a_region(relay: Instance, third: Instance, request: pytest.FixtureRequest) -> None:
    direct.seed(relay, third)
    third.note_waiting("two")
    request.getfixturevalue("meanwhile")
    with pytest.raises(TryAgainError, match="has changed while the copy was begun"):
        some_regions.seed_alone(relay, third, ["two"])
