"""The oracle sees what it is for: rows dropped, invented, torn or changed behind everybody's back, and false words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from replicate.instance.instance import Instance
from tests.faults.client import NUMBERS, Where, where
from tests.faults.oracle import ZERO, Told, judge_both, read_told
from tests.faults.report import merge
from tests.faults.shares import PARTITIONS, ROWS, WHOLE, wants_of
from tests.faults.town import Town

CLIENTS = 3
EACH = 12


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with lived(tmp_path_factory.mktemp("town"), WHOLE) as made:
        yield made


@contextmanager
def lived(directory: Path, share: str) -> Iterator[Town]:
    """Some commits, and all daemons run."""
    made = Town(directory, "durable", seed=3, share=share)
    try:
        made.start_daemons()
        for _ in range(CLIENTS):
            client = made.client("several", count=EACH, pause_s=0.0)
            assert client.wait(120)
        made.reap()
        assert not made.strange
        yield made
    finally:
        made.close()


def judged(town: Town, told: Told, lost_may: frozenset[int] = frozenset()) -> dict[str, int]:
    """What is not zero and should be; the digests are compared, too."""
    out = town.told / "judged.json"

    def judge() -> None:
        figures: Counter[str] = Counter()
        sites = Instance.open(town.primary), Instance.open(town.secondary)
        judge_both(*sites, told, figures, timeout_s=120, lost_may=lost_may, wants=wants_of(town.share))
        out.write_text(json.dumps(figures))

    town.do("judge", judge)
    figures: Counter[str] = Counter()
    merge(figures, json.loads(out.read_text()))
    assert figures["digests compared"] == 1
    assert figures["transactions walked"] >= (1 if town.share else 2) * CLIENTS * EACH
    return {name: figures[name] for name in ZERO if figures[name]}


def spoil(path: Path, statement: str) -> None:
    """As somebody who has switched the guards off."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(statement)
    assert connection.changes() == 1
    connection.close()


@pytest.mark.slow
def test_what_is_spoilt_is_seen(town: Town) -> None:
    told = read_told(town.told)
    assert len(told.ok) == CLIENTS * EACH
    assert judged(town, told) == {}
    # What clients were told, changed: either side is judged by it.
    an_op, another = sorted(told.ok)[:2]
    assert judged(town, Told({**told.ok, 77 * NUMBERS: 10**6})) == {"acknowledged but missing": 2}
    assert judged(town, Told({**told.ok, 77 * NUMBERS: 10**6}), lost_may=frozenset([77 * NUMBERS])) == {}
    assert judged(town, Told(told.ok, failed={an_op})) == {"failed but present": 2}
    assert "order errors" in judged(town, Told({**told.ok, an_op: told.ok[another], another: told.ok[an_op]}))
    # What is there, changed; each is put back.
    app, side = town.directory / "app.db", town.directory / "side.db"
    row = next(op for op in told.ok if op // NUMBERS == 1)
    for path, statement, back, seen in (
        (app, "UPDATE op SET id = -id WHERE id = {}", "UPDATE op SET id = -id WHERE id = -{}",
         {"gaps", "torn between regions", "digests unequal", "duplicates", "order errors"}),
        (side, "UPDATE twin SET value = value + 1 WHERE id = {}", "UPDATE twin SET value = value - 1 WHERE id = {}",
         {"torn between regions", "digests unequal"}),
        (town.secondary / "regions" / "main.db", "UPDATE total SET last = -last WHERE client = 1",
         "UPDATE total SET last = -last WHERE client = 1", {"digests unequal", "order errors"}),
        (town.secondary / "regions" / "side.db", "INSERT INTO ballast(id, content) VALUES (-7, x'00')",
         "DELETE FROM ballast WHERE id = -7", {"digests unequal"}),
    ):  # fmt: skip
        town.do("spoil", lambda path=path, statement=statement: spoil(path, statement.format(row)))
        assert judged(town, told).keys() <= seen | {"acknowledged but missing"}
        assert judged(town, told).keys() >= {"digests unequal"}, statement
        town.do("put back", lambda path=path, back=back: spoil(path, back.format(row)))
    assert judged(town, told) == {}
    # Last, since it cannot be put back: an acknowledged row is dropped on both sites alike.
    for path, table in ((app, "op"), (side, "twin")):
        town.do("drop", lambda path=path, table=table: spoil(path, f"DELETE FROM {table} WHERE id = {row}"))
    for name, table in (("main", "op"), ("side", "twin")):
        region = town.secondary / "regions" / f"{name}.db"
        town.do("drop", lambda region=region, table=table: spoil(region, f"DELETE FROM {table} WHERE id = {row}"))
    found = judged(town, told)
    assert found["acknowledged but missing"] == 2
    assert found["gaps"] >= 2  # the journals have it, the regions have not


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "statement", "back"),
    [
        (PARTITIONS, "INSERT INTO twin VALUES (1000001, 1, 1, 5)", "DELETE FROM twin WHERE id = 1000001"),
        (ROWS, "INSERT INTO twin VALUES (2000001, 2, 1, 5)", "DELETE FROM twin WHERE id = 2000001"),
    ],
)
def test_of_a_part_what_is_too_much_and_what_is_missing_is_seen(
    share: str, statement: str, back: str, tmp_path: Path
) -> None:
    with lived(tmp_path, share) as town:
        told = read_told(town.told)
        assert judged(town, told) == {}
        side = town.secondary / "regions" / "side.db"
        town.do("spoil", lambda: spoil(side, statement))
        assert judged(town, told)["rows that are not wanted"] == 1
        town.do("put back", lambda: spoil(side, back))
        assert judged(town, told) == {}
        row = next(op for op in told.ok if op // NUMBERS == 1)
        main = town.secondary / "regions" / "main.db"
        town.do("drop", lambda: spoil(main, f"DELETE FROM op WHERE id = {row}"))
        found = judged(town, told)
        # Of some rows it has the one in the other region still.
        assert found.keys() >= (
            {"acknowledged but missing", "gaps"} if share == PARTITIONS else {"torn between regions"}
        )
        assert found["digests unequal"] == 1


def test_where_a_row_belongs_depends_on_client_and_value_alone() -> None:
    assert {where(3 * NUMBERS + 1, value) for value in range(8)} == {Where.MAIN}
    assert [where(NUMBERS + 1, value) for value in range(4)] == [Where.BOTH, Where.SIDE, Where.BOTH, Where.MAIN]
