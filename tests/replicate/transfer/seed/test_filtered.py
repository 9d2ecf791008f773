"""Copies that would bring the primary's words past a filter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.errors import UsageError
from replicate.instance.consumers import read_hold
from replicate.transfer.seed.direct import seed
from replicate.transfer.seed.install import install_file
from replicate.transfer.seed.make import make_seed
from tests.harness.pair import SCHEMA, Pair

FTS = "CREATE VIRTUAL TABLE note USING fts5(body);"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Pair.create(tmp_path, SCHEMA + FTS)


def filter_at_the_source(pair: Pair) -> None:
    config = pair.primary.config
    pair.primary.config = replace(config, source=replace(config.source, filter="cat"))


def filter_at_the_receiver(pair: Pair) -> None:
    config = pair.secondary.config
    pair.secondary.config = replace(config, receiver=replace(config.receiver, filter="cat"))


def by_file(pair: Pair) -> None:
    path = pair.primary.path.parent / "west.seed"
    path.unlink(missing_ok=True)
    make_seed(pair.primary, "west", path)
    install_file(pair.secondary, path, restart=True)


def from_the_instance(pair: Pair) -> None:
    seed(pair.primary, pair.secondary, restart=True)


@pytest.mark.parametrize("sets", [filter_at_the_source, filter_at_the_receiver])
@pytest.mark.parametrize("way", [by_file, from_the_instance])
def test_rows_are_refused_where_a_filter_is_on_either_side(
    pair: Pair, sets: Callable[[Pair], None], way: Callable[[Pair], None]
) -> None:
    sets(pair)
    way(pair)  # a full-text index has rows of its own, and none of ours
    pair.write(1)
    pair.catch_up()
    held = pair.rows("account")
    assert held
    with pytest.raises(
        UsageError, match=r"table account of region main has rows, which \w+\.filter would tell"
    ) as said:
        way(pair)
    setting = "source.filter" if sets is filter_at_the_source else "receiver.filter"
    assert f"config unset {setting}" in said.value.do
    assert pair.rows("account") == held
    pair.write(1)
    pair.catch_up()  # nothing was given up
    assert len(pair.rows("account")) > len(held)


def test_a_row_of_a_full_text_index_is_a_row(pair: Pair) -> None:
    filter_at_the_receiver(pair)
    connection = pair.connect()
    connection.execute("INSERT INTO note VALUES ('what nobody may read')")
    connection.commit()
    connection.close()
    with pytest.raises(UsageError, match="table note of region main has rows"):
        from_the_instance(pair)


def test_a_refused_file_keeps_nothing_more_in_the_journal(pair: Pair) -> None:
    pair.write(1)
    filter_at_the_source(pair)
    before = read_hold(pair.primary.consumers_directory, "west")
    with pytest.raises(UsageError):
        by_file(pair)
    assert read_hold(pair.primary.consumers_directory, "west") == before
    assert not list(pair.primary.path.parent.glob("*.seed"))
