"""From where the stream is asked for while the regions may have less than the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from receiver_server.position import NotRecoveredError, find_reference
from replicate.journal import durable
from tests.harness.instances import lose_pool, restore_region, save_region
from tests.harness.pair import Pair

BOOT_OF_NOBODY = 0x1234567


def test_no_place_is_known_before_the_journal_is_recovered(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the machine: what the regions have lost the journal may hold."""
    with pair.receive_pool() as pool:
        assert find_reference(pair.secondary, pool) is not None
        monkeypatch.setattr(durable, "_BOOT", BOOT_OF_NOBODY)
        assert find_reference(pair.secondary, pool) is not None, "the pool is of this boot"
        lose_pool(pair.secondary)
        with pytest.raises(NotRecoveredError, match="not recovered yet") as raised:
            find_reference(pair.secondary, pool)
        assert raised.value.do.endswith("update start")
        with pair.session():  # what the Update Process begins with
            pass
        assert find_reference(pair.secondary, pool) is not None


def test_no_place_is_known_before_the_regions_are_rolled_forward(pair: Pair, tmp_path: Path) -> None:
    """The primary may have pruned what we have called durable, and would say that it is lost."""
    path = pair.secondary.region("main").path
    save_region(path, tmp_path / "aside")
    first = pair.last_seqno(pair.secondary)
    pair.write(3)
    pair.catch_up()
    last = pair.last_seqno(pair.secondary)
    assert last > first
    with pair.session() as session:
        session.door.durability.sync_to_end()
    with pair.receive_pool() as pool:
        restore_region(path, tmp_path / "aside")
        lose_pool(pair.secondary)
        with pytest.raises(NotRecoveredError, match=f"up to {first};"):
            find_reference(pair.secondary, pool)
        with pair.session():
            pass
        found = find_reference(pair.secondary, pool)
        assert found is not None
        assert found.applied_seqno == last
