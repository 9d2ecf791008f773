"""admin/dropping_rows.py: the rows of what was removed are deleted, in steps, wherever it dies; all else stays."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.admin import dropping_rows, subscriptions
from replicate.admin.dropping_rows import drop_rows
from replicate.errors import InternalError
from replicate.region.kind import KIND
from tests.harness.instances import restore_region, save_region
from tests.harness.pair import Pair
from tests.replicate.admin.test_subscriptions import assert_restricted
from tests.replicate.transfer.seed.test_partition import SALES, begin, file, fill
from tests.replicate.transfer.seed.test_partition import pair as pair


class Died(Exception):
    pass


@pytest.fixture
def loaded(pair: Pair) -> Pair:
    from replicate.transfer.seed.partition import load_from_file

    fill(pair, 9)
    subscriptions.add(pair.secondary, ["sales"])
    begin(pair, SALES)
    load_from_file(pair.secondary, file(pair, SALES), [SALES])
    return pair


def counts(pair: Pair) -> list[int]:
    tables = "t0", "t1", "hidden", "keyed", "words"
    with closing(apsw.Connection(str(pair.secondary.region("main").path))) as connection:
        # Its index can be asked, too.
        assert connection.execute("SELECT count(*) FROM words WHERE words MATCH 'word'").get in (0, 13)
        return [connection.execute(f"SELECT count(*) FROM {table}").get for table in tables]


def test_all_of_it_and_no_more(loaded: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping_rows, "ROWS_MAX", 3)
    before, steps = counts(loaded), list[int]()
    assert min(before) > 3
    gone = drop_rows(loaded.secondary, [SALES], lambda: subscriptions.remove(loaded.secondary, ["sales"]),
                     told=steps.append)  # fmt: skip
    assert steps == sorted(steps)
    assert steps[-1] == gone
    assert len(steps) > sum(before[:4]) // 3
    assert counts(loaded) == [0] * 5
    assert loaded.secondary.content.choice.state(SALES) == "not wanted"
    fill(loaded)
    loaded.catch_up()
    assert_restricted(loaded, {1})
    subscriptions.add(loaded.secondary, ["sales"])
    begin(loaded, SALES)
    from replicate.transfer.seed.partition import load_from_file

    load_from_file(loaded.secondary, file(loaded, SALES), [SALES])
    assert_restricted(loaded, {1, SALES})


@pytest.mark.parametrize("at", [1, 4])
def test_killed_on_the_way(loaded: Pair, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping_rows, "ROWS_MAX", 3)
    left = [at]

    def die(name: str) -> None:
        assert name == "partition.dropped"
        left[0] -= 1
        if not left[0]:
            raise Died

    def remove() -> None:
        subscriptions.remove(loaded.secondary, ["sales"])

    with monkeypatch.context() as patched:
        patched.setattr(dropping_rows, "hit", die)
        with pytest.raises(Died):
            drop_rows(loaded.secondary, [SALES], remove)
    assert sum(counts(loaded)) > 0
    assert loaded.secondary.content.choice.state(SALES) == "not wanted"  # it is not as it was
    fill(loaded)
    loaded.catch_up()
    drop_rows(loaded.secondary, [SALES], remove)
    assert counts(loaded) == [0] * 5
    assert_restricted(loaded, {1})


def test_what_is_held_is_not_deleted(loaded: Pair) -> None:
    before = counts(loaded)
    with pytest.raises(InternalError, match="not all removed"):
        drop_rows(loaded.secondary, [SALES], lambda: None)
    assert counts(loaded) == before


def test_power_goes_after_the_command(loaded: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region, disk = loaded.secondary.region("main").path, tmp_path / "disk"
    with closing(apsw.Connection(str(region), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
        reader.execute("SELECT count(*) FROM t0").get  # noqa: B018 - so that nobody else is the last one to close it
        save_region(region, disk)
        assert min(counts(loaded)) > 3
        monkeypatch.setattr(type(KIND), "sync", staticmethod(lambda path: save_region(Path(path), disk)))
        drop_rows(loaded.secondary, [SALES], lambda: subscriptions.remove(loaded.secondary, ["sales"]))
    restore_region(region, disk)
    assert counts(loaded) == [0] * 5
