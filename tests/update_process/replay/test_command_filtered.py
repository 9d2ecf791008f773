"""Replay and rebuild where a filter is set between the journals and what is here: refused by name, nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.admin.subscriptions import filter_
from replicate.errors import UsageError
from replicate.instance.instance import Instance
from replicate.transfer.seed.make import make_seed
from tests.harness.pair import SMALL, Pair
from update_process.replay.command import replay, require_whole_journal
from update_process.replay.rebuild import rebuild


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    made.write(3)
    return made


def bring(pair: Pair, way: str, base: Path) -> None:
    """What the primary has, by its journal, with the settings of now."""
    here = Instance.open(pair.secondary.path)
    if way == "replay":
        replay(here, [pair.primary.path])
    else:
        rebuild(here, base, [pair.primary.path], restart=True)


@pytest.mark.parametrize("side", ["receiver", "source"])
@pytest.mark.parametrize("way", ["replay", "rebuild"])
def test_a_filter_on_the_way_is_never_gone_past(pair: Pair, side: str, way: str) -> None:
    base = pair.primary.path.parent / "base.seed"
    make_seed(pair.primary, "west", base)
    site = pair.secondary if side == "receiver" else pair.primary
    settings = site.path / "replicate.toml"
    settings.write_text(f'{SMALL}\n[{side}]\nfilter = "cat"\n')
    rows, last = pair.rows("account"), pair.last_seqno(pair.secondary)
    with pytest.raises(UsageError, match=f"a {side}.filter is set") as said:
        bring(pair, way, base)
    assert f"-i {site.path} config unset {side}.filter" in said.value.do
    assert (pair.rows("account"), pair.last_seqno(pair.secondary)) == (rows, last)
    settings.write_text(SMALL)
    bring(pair, way, base)
    assert pair.rows("account", Instance.open(pair.secondary.path)) == pair.rows("account", pair.primary)


@pytest.mark.parametrize("way", ["replay", "rebuild"])
def test_some_rows_of_a_table_come_by_no_journal(pair: Pair, way: str) -> None:
    """Neither where they are wanted, nor where they are here; nor is a journal of some rows taken for a whole one."""
    base = pair.primary.path.parent / "base.seed"
    make_seed(pair.primary, "west", base)
    last = pair.last_seqno(pair.secondary)
    filter_(pair.secondary, "account", "id > 2")
    with pytest.raises(
        UsageError, match=r"of west is wanted of table main\.account where id > 2, no other rows, and a"
    ):
        bring(pair, way, base)
    pair.seed(restart=True)
    with pytest.raises(UsageError, match=r"west has of table main\.account where id > 2") as said:
        bring(pair, way, base)
    assert "subscription filter main.account --none" in said.value.do
    with pytest.raises(UsageError, match=r"the journal is that of an instance which has of table main\.account where"):
        require_whole_journal(pair.secondary.path)
    assert last < pair.last_seqno(pair.secondary)
