"""admin/partitions.py: assignments beside writers, what moves along, what keeps its partition, and what is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

import replicate
from replicate.admin import partitions
from replicate.admin.region_create import add_created_region
from replicate.admin.regions import add_region
from replicate.audit.changes import records_of
from replicate.audit.count import Counts
from replicate.audit.query import Query
from replicate.audit.sources import find_in_instance
from replicate.errors import BusyError, DamagedError, NotFoundError, NotPrimaryError, UsageError
from replicate.instance.file import decode, encode
from replicate.journal.chain import Chain
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import decode_batch
from replicate.journal.sections import partitions_of
from replicate.journal.walk import walk
from replicate.limits import PARTITION_NONE
from replicate.model.partitions import ONLY_DEFAULT
from replicate.model.subscription import Subscription
from replicate.model.transaction import Kind
from replicate.transfer.seed.rows import tables_by_partition
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path)
    partitions.create(made.primary, "sales")
    partitions.create(made.primary, "stock", 9)
    return made


def where(pair: Pair) -> dict[str, int]:
    return {table: number for number, tables in tables_by_partition(pair.primary).items() for _, table in tables}


def frames(pair: Pair, last: int) -> list[bytes]:
    """Of the last transactions."""
    found: list[bytes] = []
    with closing(ChainReader(Chain(pair.primary.journal_directory), 1)) as reader:
        while (piece := reader.read(1 << 20, pair.last_seqno())) is not None:
            if isinstance(piece, LargeTransaction):
                found.append(piece.commit_frame)
            else:
                found += [piece.data[begin : begin + head.frame_bytes] for begin, head in walk(piece.data)]
    return found[-last:]


def kind_of(frame: bytes) -> Kind:
    return Kind(decode_batch(frame)[2][0])


def last_frame(pair: Pair) -> tuple[Kind, tuple[int, ...]]:
    """The kind of the last transaction, and its sections where it has several."""
    (frame,) = frames(pair, 1)
    kind = kind_of(frame)
    return kind, partitions_of(frame[FRAME_HEAD_BYTES:]) if kind == Kind.MIXED else ()


def test_an_open_writer_goes_on_under_the_new_partition(pair: Pair) -> None:
    with closing(pair.connect()) as early, closing(pair.connect()) as late:
        for connection in (early, late):
            connection.execute("INSERT INTO account (owner) VALUES ('a')")
            connection.execute("INSERT INTO entry (at) VALUES ('b')")
            connection.commit()
            assert last_frame(pair) == (Kind.TRANSACTION, ())
        (move,) = partitions.assign(pair.primary, "sales", ["account"])
        assert (move.table, move.before, move.after, move.has_rows) == ("account", "DEFAULT", "sales", True)
        assert move.seqno == late.last_seqno + 1  # type: ignore[operator]
        for connection in (early, late):
            connection.execute("INSERT INTO account (owner) VALUES ('c')")
            connection.execute("INSERT INTO entry (at) VALUES ('d')")
            connection.commit()
            assert last_frame(pair) == (Kind.MIXED, (1, 2))
            connection.execute("UPDATE account SET owner = 'e'")
            connection.commit()
            assert last_frame(pair) == (Kind.TRANSACTION, ())
        assert partitions.assign(pair.primary, "sales", ["main.ACCOUNT"]) == []
        early.execute("ALTER TABLE account ADD COLUMN more")
        early.execute("INSERT INTO entry (at) VALUES ('f')")
        early.commit()
        assert where(pair) == {"account": 2, "entry": 1}
    assert pair.seed() == pair.last_seqno()


def test_a_writer_in_the_middle_of_a_transaction_is_waited_for(pair: Pair) -> None:
    """The region's lock is the border: what it holds is in the old partition, as a whole."""
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO account (owner) VALUES ('a')")
        connection.commit()
        partitions.assign(pair.primary, "sales", ["account"])
        connection.execute("INSERT INTO account (owner) VALUES ('b')")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partitions, "LOCK_TIMEOUT_S", 0.05)
            with pytest.raises(BusyError, match="region main"):
                partitions.assign(pair.primary, "stock", ["account"])
        connection.commit()
        assert where(pair)["account"] == 2
        partitions.assign(pair.primary, "stock", ["account"])
        assert where(pair)["account"] == 9


def test_what_is_new_and_what_is_renamed(pair: Pair) -> None:
    partitions.assign(pair.primary, "sales", ["account"])
    partitions.change(pair.primary, lambda known: known.with_default("stock"))
    with closing(pair.connect()) as connection:
        for text, now in (
            ("CREATE TABLE fresh (a)", {"account": 2, "entry": 1, "fresh": 9}),
            ("ALTER TABLE account RENAME TO client", {"client": 2, "entry": 1, "fresh": 9}),
            ("ALTER TABLE client RENAME TO account", {"account": 2, "entry": 1, "fresh": 9}),
            ("DROP TABLE fresh", {"account": 2, "entry": 1}),
            ("CREATE TABLE fresh (b)", {"account": 2, "entry": 1, "fresh": 9}),
        ):
            connection.execute(text)
            connection.commit()
            assert where(pair) == now, text


@pytest.mark.parametrize("stand_in", ["new__account", "_alembic_tmp_account"])
def test_a_table_that_an_orm_makes_again_keeps_its_partition(pair: Pair, stand_in: str) -> None:
    """Its rows travel as those of the stand-in, so that must be in the table's partition from its birth."""
    partitions.assign(pair.primary, "sales", ["account"])
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO account (owner) VALUES ('a')")
        connection.execute(f"CREATE TABLE {stand_in} (id INTEGER PRIMARY KEY, owner TEXT)")
        connection.execute(f"INSERT INTO {stand_in} SELECT id, owner FROM account")
        connection.execute("DROP TABLE account")
        connection.execute(f"ALTER TABLE {stand_in} RENAME TO account")
        connection.commit()
    assert where(pair) == {"account": 2, "entry": 1}
    assert last_frame(pair) == (Kind.MIXED, (0, 2))


def test_tables_that_only_make_sense_together_move_together(pair: Pair) -> None:
    with closing(pair.connect()) as connection:
        connection.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, body TEXT)")
        connection.execute("CREATE VIRTUAL TABLE found USING fts5(body, content='note', content_rowid='id')")
        connection.execute("CREATE VIRTUAL TABLE place USING rtree(id, x0, x1)")
        connection.commit()
        moved = partitions.assign(pair.primary, "sales", ["note"])
        together = {"note", "found_data", "found_idx", "found_docsize", "found_config"}
        assert {one.table for one in moved} == together
        assert {table for table, number in where(pair).items() if number == 2} == together
        assert {one.table for one in partitions.assign(pair.primary, "stock", ["FOUND"])} == together
        moved = partitions.assign(pair.primary, "sales", ["place_node"])
        assert {one.table for one in moved} == {"place_node", "place_parent", "place_rowid"}
        connection.execute("INSERT INTO place VALUES (1, 0, 1)")
        connection.execute("INSERT INTO found (rowid, body) VALUES (1, 'x')")
        connection.commit()
        assert last_frame(pair) == (Kind.MIXED, (2, 9))
    pair.seed()


def test_several_regions(pair: Pair, tmp_path: Path) -> None:
    add_created_region(pair.primary, tmp_path / "side.db", name="side")
    with closing(replicate.connect(pair.primary.path, "side")) as connection:
        connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY)")
        connection.commit()
        moved = partitions.assign(pair.primary, "sales", ["side.account", "entry"])
        assert [(one.region, one.table) for one in moved] == [("side", "account"), ("main", "entry")]
        assert tables_by_partition(pair.primary) == {
            1: [("main", "account")], 2: [("main", "entry"), ("side", "account")],
        }  # fmt: skip
        connection.execute("ATTACH ? AS main_too", (str(pair.primary.region("main").path),))
        connection.execute("INSERT INTO account VALUES (1)")
        connection.execute("INSERT INTO main_too.account (owner) VALUES ('a')")
        connection.commit()
        assert last_frame(pair) == (Kind.MIXED, (1, 2))


def test_comments(pair: Pair) -> None:
    partitions.assign(pair.primary, "sales", ["account"])
    with closing(pair.connect()) as connection:
        for name, section in (("ALL", 0), ("stock", 9), ("NONE", PARTITION_NONE)):
            partitions.change(pair.primary, lambda known, name=name: known.with_comments(name))  # type: ignore[misc]
            connection.execute("INSERT INTO account (owner) VALUES ('a')")
            connection.log_comment("nightly")
            connection.commit()
            assert last_frame(pair) == (Kind.MIXED, tuple(sorted((2, section))))
            connection.log_comment("alone")
            connection.commit()
    texts = [one.text for match in find_in_instance(pair.primary, Query(ops=("comment",))) for one in records_of(match)]
    assert texts == ["table account: partition DEFAULT to sales", *(["nightly", "alone"] * 3)]
    by = Counts(["op", "partition"])
    by.add(find_in_instance(pair.primary, Query(first_seqno=2)).frames())
    assert ("comment", "", 7, 7) in list(by.rows())
    assert ("insert", "2", 3, 3) in list(by.rows())
    found = find_in_instance(pair.primary, Query(partitions=(2,), ops=("insert", "comment")))
    assert [one.op for match in found for one in records_of(match)] == ["insert"] * 3


def test_a_transaction_that_its_sections_make_too_large_for_a_frame(pair: Pair) -> None:
    partitions.assign(pair.primary, "sales", ["account"])
    with closing(pair.connect()) as connection:
        for rows in (14_999, 4_550):
            for _ in range(rows - 1):
                connection.execute("INSERT INTO entry (data) VALUES (?)", (b"x" * (1 if rows > 10_000 else 100),))
            connection.execute("INSERT INTO account (owner) VALUES ('a')")
            connection.commit()
    assert [kind_of(frame) for frame in frames(pair, 2)] == [Kind.MIXED, Kind.LARGE]
    pair.seed()


def test_what_is_refused(pair: Pair) -> None:
    with closing(pair.connect()) as connection:
        connection.execute("CREATE TEMP TABLE passing (a)")
        for error, name, table in (
            (NotFoundError, "sales", "nothing"),
            (NotFoundError, "sales", "passing"),
            (NotFoundError, "sales", "_replicate_ring"),
            (NotFoundError, "sales", "other.account"),
            (NotFoundError, "hr", "account"),
            (NotFoundError, "64", "account"),
        ):
            with pytest.raises(error):
                partitions.assign(pair.primary, name, [table])
    with pytest.raises(NotPrimaryError):
        partitions.assign(pair.secondary, "DEFAULT", ["account"])
    partitions.assign(pair.primary, "9", ["account"])
    with pytest.raises(UsageError, match=r"has 1 tables, among them main\.account"):
        partitions.drop(pair.primary, "stock")
    assert partitions.drop(pair.primary, "sales") == 2
    partitions.assign(pair.primary, "DEFAULT", ["account"])
    assert partitions.drop(pair.primary, "stock") == 9
    assert pair.primary.content.partitions == ONLY_DEFAULT


def test_a_partition_that_a_peer_may_have_is_not_dropped(pair: Pair) -> None:
    """What gets its number next would go to that peer, which was never to have it."""
    pair.primary.register_peer("west", "127.0.0.1", 7430, partitions=(2, 9), replace_address=True)
    with pytest.raises(UsageError, match="peer west may have partition stock") as caught:
        partitions.drop(pair.primary, "stock")
    assert caught.value.do.endswith("peer add west 127.0.0.1:7430 --partitions sales --replace")
    assert pair.primary.partitions_now().number("stock") == 9
    pair.primary.register_peer("west", "127.0.0.1", 7430, partitions=(2,), replace_address=True)
    assert partitions.drop(pair.primary, "stock") == 9


def test_a_table_that_comes_while_its_partition_is_dropped(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    real, looked = tables_by_partition, list[int]()

    def tables_of(instance: object) -> object:
        found = real(pair.primary)
        if not looked:
            looked.append(1)
            monkeypatch.setattr(partitions, "tables_by_partition", real)
            partitions.assign(pair.primary, "stock", ["account"])
        return found

    monkeypatch.setattr(partitions, "tables_by_partition", tables_of)
    with pytest.raises(UsageError, match="has 1 tables"):
        partitions.drop(pair.primary, "stock")
    assert pair.primary.partitions_now().number("stock") == 9


def test_the_file_says_so_only_where_there_are_some(pair: Pair) -> None:
    raw = encode(pair.primary.partitions_now() and pair.primary.content)
    assert b'"format": 5' in raw
    assert decode(raw, "here") == pair.primary.content
    assert b"partition" not in encode(pair.secondary.content)
    pair.secondary.change_subscription(lambda _: Subscription((2, 9), (2,)))
    assert b'"format": 5' in encode(pair.secondary.content)
    assert decode(encode(pair.secondary.content), "here") == pair.secondary.content
    for change in (b'"held": [\n    2', b'"held": [\n    64'), (b'"limit": 16', b'"limit": 1'):
        with pytest.raises(DamagedError):
            decode(
                raw.replace(*change) if change[0] in raw else encode(pair.secondary.content).replace(*change), "here"
            )


def test_unused_partitions_change_no_byte(pair: Pair) -> None:
    """Tables that are all in DEFAULT: whatever a transaction does, it is one as ever."""
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO account (owner) VALUES ('a')")
        connection.execute("CREATE TABLE fresh (a)")
        connection.log_comment("x")
        connection.execute("INSERT INTO fresh VALUES (1)")
        connection.commit()
    assert last_frame(pair) == (Kind.TRANSACTION, ())


def added(pair: Pair, **options: str) -> set[int]:
    """The partitions of the tables of a further database."""
    path = pair.directory / f"more{len(pair.primary.regions)}.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE more (id INTEGER PRIMARY KEY); CREATE TABLE still (id INTEGER PRIMARY KEY)")
    connection.close()
    add_region(pair.primary, path, name=path.stem, **options)
    pair.primary.reload()
    tables = tables_by_partition(pair.primary)
    return {number for number, names in tables.items() if any(region == path.stem for region, _ in names)}


def test_a_database_comes_into_the_partition_of_new_tables_or_another(pair: Pair) -> None:
    assert added(pair) == {1}
    assert added(pair, partition="stock") == {9}
    partitions.change(pair.primary, lambda known: known.with_default("sales"))
    assert added(pair) == {2}
    assert not pair.primary.partitions_now().keeps_back
    assert added(pair, partition="none") == {PARTITION_NONE}
    assert pair.primary.partitions_now().keeps_back
    with pytest.raises(NotFoundError, match="no partition nowhere"):
        added(pair, partition="nowhere")
