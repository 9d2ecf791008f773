"""Packets of some partitions, or in a filter's words: what is wanted comes, once, in order, and nothing passes for more
than it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from replicate.admin.partitions import assign
from replicate.admin.partitions import create as create_partition
from replicate.admin.subscriptions import set_ as set_subscription
from replicate.audit.show import show_journal
from replicate.audit.verify import verify_journal
from replicate.errors import PacketGapError, PeerRefusedError, UsageError
from replicate.filters.whose_words import Content, note_content, read_content
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.system import failpoint
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.export import Exported
from replicate.transfer.packet.format import AN_EXCERPT, Excerpt
from replicate.transfer.packet.read import PacketReader
from replicate.transfer.seed.direct import seed
from replicate.transfer.seed.make import make_seed
from replicate.transfer.seed.partition import load_from_file
from tests.harness.packets import export, take
from tests.harness.pair import Pair
from tests.update_process.replay.test_run_killed import killed
from update_process.replay.packets import import_packets

SALES, STOCK = 2, 3
TABLES = ("account", "entry", "plain")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """account is in sales, entry in stock, plain in DEFAULT; west has sales only."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    with closing(made.connect()) as connection:
        connection.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, v)")
        connection.commit()
    for number, name in ((SALES, "sales"), (STOCK, "stock")):
        create_partition(made.primary, name, number)
    assign(made.primary, "sales", ["account"])
    assign(made.primary, "stock", ["entry"])
    subscribe(made.secondary, SALES)
    made.seed()
    yield made
    failpoint.disarm()


def subscribe(instance: Instance, *numbers: int) -> None:
    set_subscription(instance, tuple(map(str, numbers)))
    instance.reload()


def third(pair: Pair, *numbers: int, source: Instance | None = None) -> Instance:
    """A further site, of which the source knows, with these partitions (none: all)."""
    made = Instance.create(pair.directory / "off", role="secondary", name="off", network=pair.primary.content.network)
    if numbers:
        subscribe(made, *numbers)
    of = source or pair.primary
    of.register_peer("off", "", 0)
    of.reload()
    seed(of, made)
    made.reload()
    return made


def write_all_ways(pair: Pair, count: int = 6) -> None:
    """Transactions of one partition and of several, small and large, and of tables that are made and moved."""
    with closing(pair.connect()) as connection:
        for number in range(count):
            connection.execute("INSERT INTO account(owner, note) VALUES ('o', ?)", (number,))
            connection.commit()
            connection.execute("INSERT INTO entry VALUES ('t', ?, x'00')", (number,))
            connection.commit()
            connection.execute("INSERT INTO account(owner, note) VALUES ('both', ?)", (number,))
            connection.execute("INSERT INTO entry VALUES ('both', ?, x'01')", (number,))
            connection.execute("INSERT INTO plain(v) VALUES (?)", (number,))
            connection.commit()
        connection.execute("UPDATE account SET note = note + 1 WHERE id % 2")
        connection.execute("DELETE FROM entry WHERE rowid % 3 = 0")
        connection.commit()
        connection.execute("CREATE TABLE later (id INTEGER PRIMARY KEY, v)")
        connection.execute("INSERT INTO later(v) VALUES (1)")
        connection.commit()


def write_large(pair: Pair, *tables: str) -> None:
    with closing(pair.connect()) as connection:
        for table in tables:
            columns = {"account": "(owner, note)", "entry": "(at, data)"}[table]
            rows = ((str(number), os.urandom(900)) for number in range(3000))
            connection.executemany(f"INSERT INTO {table} {columns} VALUES (?, ?)", rows)
        connection.commit()


def rows(instance: Instance, table: str) -> list[object]:
    connection = apsw.Connection(str(instance.regions[0].path), flags=apsw.SQLITE_OPEN_READONLY)
    with closing(connection):
        return list(connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2"))


def assert_has(pair: Pair, instance: Instance, *wanted: str) -> None:
    """Of the tables these, row by row, and nothing of the others; and every number."""
    instance.reload()
    for table in TABLES:
        there = rows(pair.primary, table)
        assert there
        assert rows(instance, table) == (there if table in wanted else []), table
    assert pair.last_seqno(instance) == pair.last_seqno()
    assert not verify_journal(instance).findings


def sent(pair: Pair, source: Instance, target: str, **options: int) -> list[Exported]:
    return export(source, pair.directory / f"out-{source.name}", target, **options)


def excerpt_of(made: Exported) -> Excerpt | None:
    with PacketReader(made.path) as reader:
        reader.verify()
        assert (reader.summary.version == AN_EXCERPT) == (reader.summary.excerpt is not None)
        return reader.summary.excerpt


def test_a_partial_site_takes_of_a_whole_packet_what_it_has(pair: Pair) -> None:
    write_all_ways(pair)
    (made,) = sent(pair, pair.primary, "west")
    assert excerpt_of(made) is None
    done = take(pair.secondary, made.path)
    assert done.applied == (str(made.path),)
    assert done.transactions > 6
    assert_has(pair, pair.secondary, "account")
    assert {"NULL", "MIXED"} <= {one.kind for one in show_journal(pair.secondary)}
    assert take(pair.secondary, made.path).known == 1


@pytest.mark.parametrize("tables", [("account",), ("entry",), ("account", "entry")])
def test_of_a_large_transaction_too(pair: Pair, tables: tuple[str, ...]) -> None:
    write_all_ways(pair, 2)
    write_large(pair, *tables)
    write_all_ways_again(pair)
    made = sent(pair, pair.primary, "west")
    take(pair.secondary, *(one.path for one in made))
    assert_has(pair, pair.secondary, "account")


def write_all_ways_again(pair: Pair) -> None:
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO account(owner) VALUES ('after')")
        connection.execute("INSERT INTO entry(at) VALUES ('after')")
        connection.commit()


def test_packets_in_any_order_twice_and_one_missing(pair: Pair) -> None:
    made = []
    for number in range(4):
        write_all_ways_again(pair)
        if not number:
            write_all_ways(pair, 1)
        made += sent(pair, pair.primary, "west")
    with pytest.raises(PacketGapError, match=r"packet 2 of east needs transaction"):
        take(pair.secondary, made[3].path, made[1].path)
    take(pair.secondary, made[0].path, made[0].path)
    with pytest.raises(PacketGapError, match="packet 4 of east"):
        take(pair.secondary, made[3].path, made[1].path)
    take(pair.secondary, *(one.path for one in reversed(made)))
    assert_has(pair, pair.secondary, "account")


def test_a_dry_run_changes_nothing(pair: Pair) -> None:
    write_all_ways(pair)
    (made,) = sent(pair, pair.primary, "west")
    stands = pair.last_seqno(pair.secondary)
    done = take(pair.secondary, made.path, dry_run=True)
    assert done.applied == (str(made.path),)
    assert pair.last_seqno(pair.secondary) == stands
    assert rows(pair.secondary, "account") == []


def test_a_partition_that_is_wanted_besides_comes_by_files(pair: Pair) -> None:
    """From the first packet on that is taken after it was asked for, the journal here has it; a copy from after that
    has its rows."""
    write_all_ways(pair)
    take(pair.secondary, *(one.path for one in sent(pair, pair.primary, "west")))
    pair.secondary.change_subscription(lambda now: replace(now, wanted=(SALES, STOCK)).begun((STOCK,)))
    write_all_ways_again(pair)
    begins = pair.last_seqno(pair.secondary) + 1
    take(pair.secondary, *(one.path for one in sent(pair, pair.primary, "west")))
    pair.secondary.reload()
    assert pair.secondary.content.streamed == {STOCK: begins}
    assert rows(pair.secondary, "entry") == [], "journalled, and not applied"
    path = pair.directory / "stock.seed"
    make_seed(pair.primary, "west", path, partitions=(STOCK,))
    write_all_ways_again(pair)
    take(pair.secondary, *(one.path for one in sent(pair, pair.primary, "west")))
    load_from_file(pair.secondary, path, (STOCK,))
    assert_has(pair, pair.secondary, "account", "entry")
    write_all_ways_again(pair)
    take(pair.secondary, *(one.path for one in sent(pair, pair.primary, "west")))
    assert_has(pair, pair.secondary, "account", "entry")


# Those that send less than all.


def test_a_partial_site_relays_to_one_with_what_it_has(pair: Pair) -> None:
    off = third(pair, SALES)
    pair.secondary.register_peer("off", "", 0)
    (receipt,) = export(off, pair.directory / "back", "west", receipt=True)
    take(pair.secondary, receipt.path)
    write_all_ways(pair)
    write_large(pair, "account", "entry")
    write_all_ways_again(pair)
    take(pair.secondary, *(one.path for one in sent(pair, pair.primary, "west")))
    made = sent(pair, pair.secondary, "off")
    assert {excerpt_of(one) for one in made} == {Excerpt((SALES,))}
    take(off, *(one.path for one in made))
    assert_has(pair, off, "account")


def test_one_that_has_more_refuses_it_by_name(pair: Pair) -> None:
    """Whole or not: it would pass for what it is not. Nothing is applied."""
    off = third(pair, SALES, STOCK)
    pair.secondary.register_peer("off", "", 0)
    (receipt,) = export(off, pair.directory / "back", "west", receipt=True)
    take(pair.secondary, receipt.path)
    write_all_ways(pair)
    take(pair.secondary, *(one.path for one in sent(pair, pair.primary, "west")))
    (made,) = sent(pair, pair.secondary, "off")
    with pytest.raises(PeerRefusedError, match="packet 1 of west has partition 2 only, and off lacks 3") as caught:
        take(off, made.path)
    assert "export to off" in caught.value.do
    assert rows(off, "account") == []
    (made,) = sent(pair, pair.primary, "off")  # what it needs is still to be had
    take(off, made.path)
    assert_has(pair, off, "account", "entry")


def test_what_is_here_already_is_no_misfit_when_more_is_wanted_later(pair: Pair) -> None:
    """It lies in the inbox until it is removed, as any other that is applied."""
    pair.primary.register_peer("west", "", 0, replace_address=True, partitions=(SALES,))
    pair.primary.reload()
    write_all_ways(pair)
    (old,) = sent(pair, pair.primary, "west")
    take(pair.secondary, old.path)
    pair.secondary.change_subscription(lambda now: replace(now, wanted=(SALES, STOCK)).begun((STOCK,)))
    pair.secondary.reload()
    write_all_ways_again(pair)
    (new,) = sent(pair, pair.primary, "west")
    with pytest.raises(PeerRefusedError, match="packet 2 of east has partition 2 only, and west lacks 3"):
        take(pair.secondary, old.path, new.path)
    assert take(pair.secondary, old.path, remove=True).removed == 1
    assert pair.last_seqno(pair.secondary) < pair.last_seqno()


def test_a_whole_site_refuses_it_by_name(pair: Pair) -> None:
    off = third(pair)
    pair.secondary.register_peer("off", "", 0)
    (receipt,) = export(off, pair.directory / "back", "west", receipt=True)
    take(pair.secondary, receipt.path)
    write_all_ways(pair)
    take(pair.secondary, *(one.path for one in sent(pair, pair.primary, "west")))
    (made,) = sent(pair, pair.secondary, "off")
    with pytest.raises(PeerRefusedError, match="partition 2 only, and off has all"):
        take(off, made.path)
    assert rows(off, "account") == []


def test_a_peer_gets_no_more_than_it_may_have(pair: Pair) -> None:
    pair.primary.register_peer("west", "", 0, replace_address=True, partitions=(1, SALES))
    pair.primary.reload()
    write_all_ways(pair)
    write_large(pair, "entry")  # nothing is left of it
    write_all_ways_again(pair)
    made = sent(pair, pair.primary, "west")
    assert {excerpt_of(one) for one in made} == {Excerpt((1, SALES))}
    held = b"".join(bytes(piece) for one in made for _, pieces in PacketReader(one.path).segments() for piece in pieces)
    assert b"\xa4both" in held  # of account
    assert b"\xc4\x01\x01" not in held  # the values of entry
    take(pair.secondary, *(one.path for one in made))
    assert_has(pair, pair.secondary, "account")


def write_very_large(pair: Pair, *tables: str) -> None:
    """Over three packets of each table, and more than one frame holds."""
    with closing(pair.connect()) as connection:
        for table in tables:
            columns = {"account": "(owner, note)", "entry": "(at, data)", "plain": "(id, v)"}[table]
            rows = ((number, os.urandom(9000)) for number in range(2500))
            connection.executemany(f"INSERT INTO {table} {columns} VALUES (?, ?)", rows)
        connection.commit()


@pytest.mark.slow
def test_a_large_one_is_told_again_over_several_packets(pair: Pair) -> None:
    """Of it too the packets have nothing but what may go; and they fit together, whichever export made them."""
    pair.primary.register_peer("west", "", 0, replace_address=True, partitions=(SALES,))
    pair.primary.reload()
    write_all_ways(pair, 1)
    write_very_large(pair, "entry", "account")
    write_all_ways_again(pair)
    base = read_epochs(pair.primary.consumers_directory)
    made = sent(pair, pair.primary, "west")
    assert len(made) >= 3
    with closing(PacketReader(made[1].path)) as reader:
        assert reader.summary.inside
        assert reader.summary.end_inside
    assert not (pair.primary.path / "replay").exists(), "nothing of it is left"
    # Once more from the same place: the same parts, so that what is lost of the one comes from the other.
    change_epochs(
        pair.primary.consumers_directory, lambda now: replace(base, last_number=now.last_number, exports=now.exports)
    )
    again = sent(pair, pair.primary, "west")
    assert len(again) == len(made)
    with pytest.raises(PacketGapError):
        take(pair.secondary, made[0].path, *(one.path for one in again[2:]))
    mixed = [made[0].path, again[1].path, *(one.path for one in made[2:])]
    take(pair.secondary, *reversed(mixed))
    assert_has(pair, pair.secondary, "account")
    assert "RESTATED_LARGE" in {one.kind for one in show_journal(pair.secondary)}


@pytest.mark.slow
def test_a_large_one_of_which_some_never_leaves_goes_to_a_whole_site(pair: Pair) -> None:
    """By a replay, as any packets. The table is put there after the site was filled: the packet says so, too."""
    off = third(pair)
    assign(pair.primary, "NONE", ["entry"])
    write_very_large(pair, "entry", "account")
    write_all_ways_again(pair)
    made = sent(pair, pair.primary, "off")
    assert len(made) >= 3
    assert {excerpt_of(one) for one in made} == {None}
    done = take(off, *(one.path for one in made))
    assert done.replayed is not None
    off.reload()
    assert pair.last_seqno(off) == pair.last_seqno()
    assert rows(off, "account") == rows(pair.primary, "account")
    assert rows(off, "entry") == []
    assert not verify_journal(off).findings


@pytest.mark.parametrize("point", ["packet.write", "packet.before_epochs"])
def test_an_export_that_is_killed_while_it_tells_one_again_leaves_nothing_behind(pair: Pair, point: str) -> None:
    pair.primary.register_peer("west", "", 0, replace_address=True, partitions=(SALES,))
    pair.primary.reload()
    write_all_ways(pair, 1)
    write_large(pair, "account", "entry")
    assert killed(point, 1, lambda: sent(pair, pair.primary, "west"))
    assert (pair.primary.path / "replay" / "export").exists() == (point == "packet.before_epochs")
    made = sent(pair, pair.primary, "west")
    assert not (pair.primary.path / "replay").exists()
    take(pair.secondary, *(one.path for one in made))
    assert_has(pair, pair.secondary, "account")


def test_peers_that_may_not_have_the_same_get_packets_of_their_own(pair: Pair) -> None:
    pair.primary.register_peer("off", "", 0, partitions=(SALES,))
    pair.primary.reload()
    seed_of_off(pair)
    write_all_ways(pair)
    with pytest.raises(UsageError, match="may not have the same partitions"):
        export(pair.primary, pair.directory / "out", "west", "off")
    (one,) = sent(pair, pair.primary, "west")
    (other,) = sent(pair, pair.primary, "off")
    assert (excerpt_of(one), excerpt_of(other)) == (None, Excerpt((SALES,)))


def seed_of_off(pair: Pair) -> None:
    made = Instance.create(pair.directory / "off", role="secondary", name="off", network=pair.primary.content.network)
    subscribe(made, SALES)
    seed(pair.primary, made)


def test_rows_of_none_are_in_no_packet(pair: Pair) -> None:
    assign(pair.primary, "NONE", ["plain"])
    off = third(pair)
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO plain(v) VALUES ('kept back')")
        connection.execute("INSERT INTO account(owner) VALUES ('goes')")
        connection.commit()
    (made,) = sent(pair, pair.primary, "off")
    assert excerpt_of(made) is None
    with PacketReader(made.path) as reader:
        held = b"".join(bytes(piece) for _, pieces in reader.segments() for piece in pieces)
    assert b"goes" in held
    assert b"kept back" not in held
    take(off, made.path)
    assert rows(off, "account") == rows(pair.primary, "account") != []
    assert rows(off, "plain") == []


def test_one_that_has_nothing_of_what_may_go_says_so(pair: Pair) -> None:
    pair.secondary.register_peer("off", "", 0, partitions=(STOCK,))
    pair.secondary.reload()
    off = Instance.create(pair.directory / "off", role="secondary", name="off", network=pair.primary.content.network)
    subscribe(off, STOCK)
    pair.primary.register_peer("off", "", 0)
    pair.primary.reload()
    seed(pair.primary, off)
    off.reload()
    (receipt,) = export(off, pair.directory / "back", "west", receipt=True)
    take(pair.secondary, receipt.path)
    write_all_ways(pair)
    take(pair.secondary, *(one.path for one in sent(pair, pair.primary, "west")))
    with pytest.raises(UsageError, match="off may have partition 3, and west has the rows of 2 only"):
        sent(pair, pair.secondary, "off")


# Filters.


def test_what_came_through_a_filter_goes_on_and_says_so(pair: Pair) -> None:
    """In the filter's words: to one that was filled from there, and to nobody else."""
    west, off = pair.secondary, third(pair, SALES)
    west.register_peer("off", "", 0)
    (receipt,) = export(off, pair.directory / "back", "west", receipt=True)
    take(west, receipt.path)
    write_all_ways(pair)
    take(west, *(one.path for one in sent(pair, pair.primary, "west")))
    note_content(west.run_directory, None, Content(pair.primary.content.uuid.hex(), "east", "mask"))
    (made,) = sent(pair, west, "off")
    assert excerpt_of(made) == Excerpt((SALES,), "mask")
    note_content(off.run_directory, None, Content(pair.primary.content.uuid.hex(), "east", "another"))
    with pytest.raises(PeerRefusedError, match="came from east through another; west sends it through mask"):
        take(off, made.path)
    assert rows(off, "account") == []
    note_content(off.run_directory, read_content(off.run_directory), Content(west.content.uuid.hex(), "west", "mask"))
    take(off, made.path)
    assert_has(pair, off, "account")
    assert read_content(off.run_directory) == Content(west.content.uuid.hex(), "west", "mask")


def test_a_whole_site_takes_what_came_through_a_filter(pair: Pair) -> None:
    """Transaction by transaction, as it would from a line; and it knows then in whose words it is."""
    off = third(pair)
    note_content(pair.primary.run_directory, None, Content("ab" * 16, "hub", "mask"))
    write_all_ways(pair)
    write_large(pair, "account", "entry")
    (made,) = sent(pair, pair.primary, "off")
    assert excerpt_of(made) == Excerpt((), "mask")
    assert take(off, made.path).transactions > 6
    assert_has(pair, off, *TABLES)
    assert read_content(off.run_directory) == Content(pair.primary.content.uuid.hex(), "east", "mask")
    assert Chain(off.journal_directory).is_partial()  # it says so wherever it is copied to


def test_a_filter_here_would_have_to_tell_it(pair: Pair) -> None:
    write_all_ways(pair)
    (made,) = sent(pair, pair.primary, "west")
    (pair.secondary.path / "replicate.toml").write_text('[receiver]\nfilter = "cat"\n')
    with pytest.raises(UsageError, match=r"a receiver\.filter is set"):
        take(Instance.open(pair.secondary.path), made.path)
    assert rows(pair.secondary, "account") == []


def test_spark_has_no_part_in_it(pair: Pair) -> None:
    write_all_ways(pair)
    (made,) = sent(pair, pair.primary, "west")
    with pytest.raises(UsageError, match="not whole"):
        import_packets(pair.secondary, [made.path], now_s=0.0, spark=lambda: None)  # type: ignore[arg-type,return-value]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "number"),
    [("packet.unpacked", 1), ("apply.after_commit", 1), ("apply.after_commit", 2), ("packet.applied", 1)],
)
def test_killed_it_goes_on(pair: Pair, point: str, number: int) -> None:
    write_all_ways(pair)
    write_large(pair, "account", "entry")
    write_all_ways_again(pair)
    paths = [one.path for one in sent(pair, pair.primary, "west")]
    assert killed(point, number, lambda: take(pair.secondary, *paths))
    take(pair.secondary, *paths)
    assert_has(pair, pair.secondary, "account")
