"""admin/subscriptions.py: what is removed stays as it was, though power goes and a region has what was synced only."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.admin import subscriptions
from replicate.admin.partitions import assign
from replicate.region.kind import KIND
from tests.harness.instances import lose_pool, restore_region, save_region
from tests.harness.pair import Pair
from tests.replicate.admin.test_subscriptions import assert_restricted, write
from tests.replicate.admin.test_subscriptions import pair as pair


def test_power_goes_after_the_command(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal brings back what is held; of what is not it passes over all changes."""
    assign(pair.primary, "sales", ["t0"])
    pair.seed()
    region, disk = pair.secondary.region("main").path, tmp_path / "disk"
    with closing(apsw.Connection(str(region), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
        reader.execute("SELECT count(*) FROM t0").get  # noqa: B018 - so that nobody else is the last one to close it
        save_region(region, disk)
        write(pair, *(f"INSERT INTO {table} (v) VALUES ({n})" for n in range(3) for table in ("t0", "t1")))
        pair.catch_up()
        with monkeypatch.context() as patched:
            patched.setattr(type(KIND), "sync", staticmethod(lambda path: save_region(Path(path), disk)))
            subscriptions.set_(pair.secondary, ["DEFAULT"])
        write(pair, "INSERT INTO t0 (v) VALUES (9)", "INSERT INTO t1 (v) VALUES (9)")
        pair.catch_up()
    restore_region(region, disk)
    lose_pool(pair.secondary)
    pair.catch_up()
    assert [row[2] for row in pair.rows("t0")] == [0, 1, 2]
    assert [row[2] for row in pair.rows("t1")] == [0, 1, 2, 9]
    assert_restricted(pair, {1})


def test_what_is_only_wanted_more_syncs_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    subscriptions.set_(pair.secondary, ["DEFAULT"])
    pair.seed()

    def fail(_path: Path) -> None:
        raise AssertionError("a sync")

    monkeypatch.setattr(type(KIND), "sync", staticmethod(fail))
    subscriptions.add(pair.secondary, ["sales"])
    assert pair.secondary.content.choice.wants(2)
    with pytest.raises(AssertionError, match="a sync"):
        subscriptions.remove(pair.secondary, ["DEFAULT"])
