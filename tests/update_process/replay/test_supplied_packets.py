"""Packets between suppliers that all write: each transaction comes to each of them once, whatever way it came."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from replicate.admin.freezing import freeze
from replicate.dbapi import OperationalError
from replicate.door.recovery.opening import make_chain
from replicate.errors import (
    BusyError,
    ConflictError,
    DamagedError,
    DivergedError,
    FrozenError,
    NotAuthenticatedError,
    NotSupportedError,
    PacketGapError,
    PeerRefusedError,
    TryAgainError,
    TurnedBackError,
    UsageError,
)
from replicate.instance.consumers import read_consumer
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import as_written, read_head
from replicate.journal.walk import walk
from replicate.roles.partition_writers import give
from replicate.roles.retiring import retire, writers_of
from replicate.security.certificate import issue, make_ca
from replicate.status.collect import collect
from replicate.system import failpoint
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.export import PACKET_BYTES_MIN, ExportRun, sealer_of, signer_of
from replicate.transfer.packet.matrix import matrix_of
from replicate.transfer.packet.read import PacketReader
from replicate.transfer.packet.scrub import scrub
from tests.harness.instances import lose_pool
from tests.harness.packets import bring, export, frames_in, get_packets, level_by_packets, now_ns, said, sent, take
from tests.harness.pair import Pair
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, run, shared
from update_process.replay.packets import import_packets


@pytest.fixture(autouse=True)
def _own_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    yield
    failpoint.disarm()


@pytest.fixture
def two(tmp_path: Path) -> Suppliers:
    """Each writes its own table."""
    return get_packets(Suppliers.create(tmp_path))


@pytest.fixture
def both(tmp_path: Path) -> Suppliers:
    """Both write `ta`."""
    return get_packets(shared(tmp_path))


@pytest.fixture
def three(tmp_path: Path) -> Suppliers:
    """All write `ta`."""
    return get_packets(shared(tmp_path, 3))


def test_each_brings_what_the_other_lacks_and_no_more(two: Suppliers) -> None:
    two.write("a", 3)
    two.write("b", 2)
    (path,) = sent(two, "a", "b")
    assert len(frames_in(two, "b", path)) == 3
    done = take(two.by["b"], path)
    assert (done.transactions, done.merged, done.heard) == (3, 0, ("a",))
    (back,) = sent(two, "b", "a")
    assert len(frames_in(two, "a", back)) == 2, "its own three stay where they are"
    take(two.by["a"], back)
    two.assert_converged()
    assert sent(two, "a", "b") == sent(two, "b", "a") == []


@pytest.mark.slow
def test_one_that_is_gone_for_good_is_retired_by_packets(three: Suppliers) -> None:
    """What c had of it comes to a; what it sends later is refused, and the others go on."""
    run(three, "b", "INSERT INTO ta VALUES (1, 'x', 0)")
    (path,) = sent(three, "b", "c")
    take(three.by["c"], path)
    run(three, "b", "INSERT INTO ta VALUES (2, 'late', 0)")
    (late,) = sent(three, "b", "a")
    retire(three.by["a"], "b", timeout_s=0)
    for source, target in (("a", "c"), ("c", "a"), ("a", "c")):
        for path in sent(three, source, target):
            take(three.by[target], path)
    for name in ("a", "c"):
        assert writers_of(three.by[name]).retired == {three.by["b"].content.uuid}
        assert three.rows(name)["ta"] == [(1, "x", 0)]
    with pytest.raises(PeerRefusedError, match="is of b, which is gone for good"):
        import_packets(three.by["a"], [late], now_s=time.time())
    run(three, "c", "INSERT INTO ta VALUES (3, 'goes on', 0)")
    (path,) = sent(three, "c", "a")
    take(three.by["a"], path)
    assert three.rows("a")["ta"] == three.rows("c")["ta"]


@pytest.mark.slow
def test_three_in_a_ring_of_packets(three: Suppliers) -> None:
    """What a writes comes to c by way of b, and what all write in one table is merged on the way."""
    run(three, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    level_by_packets(three)
    run(three, "a", "UPDATE ta SET v = 'of a' WHERE id = 1")
    run(three, "b", "UPDATE ta SET v = 'of b' WHERE id = 1")
    run(three, "c", "UPDATE ta SET n = 7 WHERE id = 1")
    merged = 0
    for _ in range(2):
        for sender, target in (("a", "b"), ("b", "c"), ("c", "a")):
            merged += bring(three, sender, target).merged
    for _ in range(2):  # what they have told of that
        for sender, target in (("a", "b"), ("b", "c"), ("c", "a")):
            bring(three, sender, target)
    assert merged
    three.assert_converged()
    assert three.rows("c")["ta"] == [(1, "of b", 7)]


@pytest.mark.slow
def test_what_was_merged_goes_on_as_it_was_written(three: Suppliers) -> None:
    run(three, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    level_by_packets(three)
    run(three, "a", "UPDATE ta SET v = 'of a' WHERE id = 1")
    run(three, "b", "UPDATE ta SET v = 'of b' WHERE id = 1")
    written = {read_head(one).chain: one for one in _journal(three, "a")}
    bring(three, "a", "b")
    merged = [as_written(one) for one in _journal(three, "b")]
    assert any(merged)
    (path,) = sent(three, "b", "c")
    of_a = [one for one in frames_in(three, "c", path) if read_head(one).chain in written]
    assert of_a
    for frame in of_a:
        other = written[read_head(frame).chain]
        assert frame[read_head(frame).frame_bytes - 20 :] == other[-20:]
        assert read_head(frame)[2:4] == read_head(other)[2:4], "of the kind that its writer gave it"


def _journal(made: Suppliers, name: str) -> list[bytes]:
    chain, last, found = make_chain(made.by[name]), made.last_seqno(name), list[bytes]()
    reader = ChainReader(chain, chain.oldest_seqno())
    while (batch := reader.read(2**20, last)) is not None:
        assert not isinstance(batch, LargeTransaction)
        found += [batch.data[at : at + head.frame_bytes] for at, head in walk(batch.data)]
    reader.close()
    return found


def test_in_any_order_and_twice(both: Suppliers) -> None:
    paths = []
    for number in range(5):
        run(both, "a", f"INSERT INTO ta VALUES ({number}, 'a', 0)", f"UPDATE ta SET n = {number} WHERE id < {number}")
        paths += sent(both, "a", "b")
    run(both, "b", "INSERT INTO ta VALUES (100, 'b', 0)")
    arriving = [*paths, *paths]
    random.Random(3).shuffle(arriving)
    here: list[Path] = []
    for path in arriving:
        here.append(path)
        done = import_packets(both.by["b"], here, now_s=time.time())
        assert bool(done.errors) == bool(done.waiting)
        assert len(read_epochs(both.by["b"].consumers_directory).waiting) == len(done.waiting)
    before = both.last_seqno("b")
    again = take(both.by["b"], *paths)
    assert (again.known, again.applied, both.last_seqno("b")) == (5, (), before)
    level_by_packets(both)
    both.assert_converged()


@pytest.mark.slow
def test_what_a_line_has_brought_is_passed_over_and_the_other_way_round(three: Suppliers) -> None:
    """a and b by a line, c by packets alone."""
    for number, name in enumerate(itertools.islice(itertools.cycle("abc"), 9)):
        run(three, name, f"INSERT OR REPLACE INTO ta VALUES ({number % 4}, '{name}', {number})")
        three.carry("a", "b", most=2)
        (*_, path) = [*sent(three, "b", "c"), Path()]
        three.carry("b", "a")
        if path != Path():
            take(three.by["c"], path)
            assert take(three.by["c"], path).transactions == 0
        bring(three, "c", "a")
    three.carry("a", "b")
    level_by_packets(three)
    three.carry("a", "b")
    three.assert_converged()


@pytest.mark.slow
def test_a_packet_of_several_origins_of_which_some_are_here(three: Suppliers) -> None:
    three.write("a", 2, table="ta", size=5)
    three.write("b", 2, table="tb")
    three.carry("a", "b")
    (path,) = sent(three, "b", "c")
    three.carry("a", "c")  # a's come by a line first
    done = take(three.by["c"], path)
    assert done.transactions == 2
    level_by_packets(three)
    three.assert_converged()


@pytest.mark.slow
def test_one_packet_for_two_holds_what_either_lacks(three: Suppliers) -> None:
    three.write("a", 2)
    bring(three, "a", "b")
    three.write("a", 1)
    three.write("b", 1)
    three.carry("b", "a")
    (path,) = sent(three, "a", "b", "c")
    assert take(three.by["b"], path).transactions == 1, "and none of its own"
    assert take(three.by["c"], path).transactions == 5, "what b has told of the first two is one"
    level_by_packets(three)
    three.assert_converged()


@pytest.mark.slow
def test_a_lost_packet_is_named_by_epochs_and_recovered(three: Suppliers) -> None:
    three.write("a", 2)
    (lost,) = sent(three, "a", "b")
    three.write("a", 1)
    (path,) = sent(three, "a", "b")
    number = dict(three.vector("a"))[three.by["a"].content.origin.key][0]
    with pytest.raises(PacketGapError) as caught:
        take(three.by["b"], path)
    first, second = read_epochs(three.by["a"].consumers_directory).exports[-2:]
    assert (
        f"packet {second.number} of a needs transactions {number - 2} to {number - 1} of a, not here yet"
        in caught.value.what
    )
    do = f"Import packet {first.number}, and any before that is not here. If one is lost, there: replicate -i a packet "
    assert do + f"recover --to b --number {first.number}" in caught.value.do
    (finding,) = [one for one in collect(three.by["b"]).findings if one.code == "PACKET_WAITS"]
    assert f"packet {second.number} of a" in finding.text
    (gap,) = [one for one in collect(three.by["b"]).findings if one.code == "PACKET_GAP"]
    assert gap.text == caught.value.what
    assert f"packet recover --to b --number {first.number}" in gap.do
    bring(three, "c", "b")
    take(three.by["b"], said(three, "a", "b"))
    assert {one.code for one in collect(three.by["b"]).findings} >= {"PACKET_WAITS", "PACKET_GAP"}, "nor does it close"
    change_epochs(three.by["a"].consumers_directory, lambda known: known.recovered("b", first.number))
    (again,) = sent(three, "a", "b")
    take(three.by["b"], again, path)
    before = three.last_seqno("b")
    take(three.by["b"], lost, path)
    assert three.last_seqno("b") == before, "it does no harm when it turns up later"
    assert not [one for one in collect(three.by["b"]).findings if one.code in ("PACKET_WAITS", "PACKET_GAP")]
    level_by_packets(three)
    three.assert_converged()


def test_nobody_knows_which_was_lost_and_a_receipt_does(two: Suppliers) -> None:
    two.write("a", 3)
    sent(two, "a", "b")
    two.write("a", 1)
    sent(two, "a", "b")
    take(two.by["a"], said(two, "b", "a"))
    assert sent(two, "a", "b") == [], "a receipt alone voids no estimate: the packets may be on their way"
    change_epochs(two.by["a"].consumers_directory, lambda known: known.confirmed("b"))
    assert bring(two, "a", "b").transactions == 4
    level_by_packets(two)
    two.assert_converged()


@pytest.mark.slow
def test_a_large_transaction_goes_on_in_several_packets(two: Suppliers) -> None:
    two.write("a", 1)
    connection = two.connect("a")
    connection.executemany(
        "INSERT INTO ta (v) VALUES (?)", ((random.Random(n).randbytes(600).hex(),) for n in range(30_000))
    )
    connection.commit()
    connection.close()
    two.write("a", 2)
    paths = sent(two, "a", "b")
    assert len(paths) > 2
    with pytest.raises(PacketGapError, match=r"needs .*, not here yet"):
        take(two.by["b"], *paths[1:])
    with pytest.raises(PacketGapError, match="ends inside a large transaction, and the next packet is not here"):
        take(two.by["b"], *paths[:-1])
    done = take(two.by["b"], *reversed(paths))
    assert not done.waiting
    assert not done.in_part
    level_by_packets(two)
    two.assert_converged()
    assert take(two.by["b"], *paths).known == len(paths)


@pytest.mark.slow
def test_a_large_transaction_that_came_another_way(two: Suppliers) -> None:
    connection = two.connect("a")
    connection.executemany(
        "INSERT INTO ta (v) VALUES (?)", ((random.Random(n).randbytes(600).hex(),) for n in range(20_000))
    )
    connection.commit()
    connection.close()
    whole = sent(two, "a", "b", max_bytes=64 * PACKET_BYTES_MIN)
    two.write("a", 2)
    change_epochs(two.by["a"].consumers_directory, lambda known: known.confirmed("b"))
    paths = sent(two, "a", "b")
    assert (len(whole), len(paths) > 1) == (1, True)
    take(two.by["b"], *whole)
    done = take(two.by["b"], paths[-1])
    assert done.transactions == 2, "the part that it begins with is of a transaction that is here"
    level_by_packets(two)
    two.assert_converged()


def test_damage_anywhere_applies_nothing(two: Suppliers) -> None:
    two.write("a", 2)
    (well,) = sent(two, "a", "b")
    two.write("a", 2)
    (bad,) = sent(two, "a", "b")
    raw = bytearray(bad.read_bytes())
    raw[200] ^= 4
    bad.write_bytes(raw)
    before = two.last_seqno("b")
    with pytest.raises(DamagedError):
        take(two.by["b"], well, bad)
    assert two.last_seqno("b") == before
    assert take(two.by["b"], well, dry_run=True).applied == (str(well),)
    assert two.last_seqno("b") == before
    assert take(two.by["b"], well).transactions == 2


PLACES = ("packet.unpacked", "append.after_write", "apply.after_commit", "packet.applied", "replay.stage")


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize("place", PLACES)
def test_killed_anywhere_the_same_command_goes_on(both: Suppliers, place: str) -> None:
    for number in range(4):
        run(both, "a", f"INSERT INTO ta VALUES ({number}, 'a', 0)")
        run(both, "b", f"INSERT INTO ta VALUES ({number}, 'b', 1)")
    paths = sent(both, "a", "b")
    code = kill_at(f"{place}:1", "tests.harness.packets:take_at", both.by["b"].path, *paths)
    assert code == -signal.SIGKILL
    take(both.by["b"], *paths)
    level_by_packets(both)
    both.assert_converged()


def test_killed_before_the_epochs_moved_it_is_exported_again(two: Suppliers) -> None:
    two.write("a", 2)
    failpoint.arm("packet.before_epochs:1:raise")
    with pytest.raises(failpoint.FailpointError):
        sent(two, "a", "b")
    failpoint.disarm()
    (path,) = sent(two, "a", "b")
    assert len(frames_in(two, "b", path)) == 2
    assert take(two.by["b"], *(two.directory / "stick").glob("a.b.*")).transactions == 2


def test_a_row_that_somebody_has_changed_stops_it_by_name(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (2, 'x', 0)")
    level_by_packets(two)
    region = apsw.Connection(str(two.by["b"].regions[0].path))
    for trigger in [name for (name,) in region.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]:
        region.execute(f'DROP TRIGGER "{trigger}"')
    region.execute("UPDATE ta SET v = 'other' WHERE id = 2")
    region.execute(
        "UPDATE _replicate_state SET value = (SELECT * FROM pragma_schema_version) WHERE key = 'schema_version'"
    )
    region.close()
    lose_pool(two.by["b"])
    run(two, "a", "INSERT INTO ta VALUES (3, 'before', 0)")
    run(two, "a", "UPDATE ta SET v = 'new' WHERE id = 2")
    paths = sent(two, "a", "b")
    with pytest.raises(ConflictError, match="the row differs"):
        take(two.by["b"], *paths)
    assert (3, "before", 0) in two.rows("b")["ta"], "what came before it is committed"


def test_a_region_in_an_applications_hands_is_waited_for_and_then_named(
    two: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("update_process.replay.local_applier.PATIENCE_S", 0.0)
    two.write("a", 1)
    (path,) = sent(two, "a", "b")
    settings = two.by["b"].path / "replicate.toml"
    settings.write_text(settings.read_text() + "\n[update]\nlock_timeout_s = 0.1\n")
    two.by["b"].reload()
    connection = two.connect("b")
    connection.execute("INSERT INTO tb (v) VALUES ('held')")
    with pytest.raises(BusyError):
        take(two.by["b"], path)
    connection.commit()
    connection.close()
    assert take(two.by["b"], path).transactions == 1
    level_by_packets(two)
    two.assert_converged()


def test_a_frozen_one_takes_nothing_and_says_so(two: Suppliers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("update_process.replay.local_applier.PATIENCE_S", 0.0)
    two.write("a", 1)
    (path,) = sent(two, "a", "b")
    before = freeze(two.by["b"], on=True)
    with pytest.raises(FrozenError, match="nothing is applied"):
        take(two.by["b"], path)
    with monkeypatch.context() as patched:
        patched.setattr(
            "update_process.replay.supplied_packets.refuse_frozen", lambda _: None
        )  # it was frozen a moment later
        with pytest.raises(TryAgainError, match="held by a barrier"):
            take(two.by["b"], path)
    assert two.last_seqno("b") == before
    freeze(two.by["b"], on=False)
    assert take(two.by["b"], path).transactions == 1


def test_who_writes_what_and_the_schema_come_by_packets(two: Suppliers) -> None:
    give(two.by["b"], "2", "a", timeout_s=30)
    bring(two, "b", "a")
    connection = two.connect("a")
    connection.execute("ALTER TABLE tb ADD COLUMN late TEXT")
    connection.execute("CREATE TABLE more (id INTEGER PRIMARY KEY, x)")
    connection.execute("INSERT INTO more (x) VALUES (1)")
    connection.commit()
    connection.close()
    give(two.by["a"], "2", "b", timeout_s=30)
    bring(two, "a", "b")
    run(two, "b", "INSERT INTO tb (v, late) VALUES ('x', 'y')")
    level_by_packets(two)
    two.assert_converged()
    assert two.rows("a")["tb"][-1][-1] == "y"


def test_what_was_seen_is_told_at_once_and_then_all_fall_silent(both: Suppliers) -> None:
    """Where no daemon runs nobody else would tell it, and others would remember for ever."""
    run(both, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    bring(both, "a", "b")
    assert bring(both, "b", "a").transactions == 1, "that it has seen it"
    level_by_packets(both)
    stand = [both.last_seqno(name) for name in both.names]
    level_by_packets(both)
    assert [both.last_seqno(name) for name in both.names] == stand


@pytest.mark.slow
def test_an_older_state_is_found_out_and_comes_back(two: Suppliers) -> None:
    """With its machine: nothing here says so. It takes no writes until all its peers have sent what they had."""
    site = two.by["b"].path
    two.write("b", 2)
    level_by_packets(two)
    copy = two.directory / "copy"
    for one in ("journal", "regions", "consumers"):
        shutil.copytree(site / one, copy / one)
    two.write("b", 3)
    two.write("a", 1)
    level_by_packets(two)
    lose_pool(two.by["b"])
    for one in ("journal", "regions", "consumers"):
        for file in (site / one).iterdir():
            file.unlink()
        for file in (copy / one).iterdir():
            shutil.copy2(file, site / one / file.name)
    two.by["b"] = Instance.open(site)
    two.write("a", 1)
    (path,) = sent(two, "a", "b")
    with pytest.raises(TurnedBackError):
        take(two.by["b"], path, dry_run=True)
    assert not two.by["b"].content.is_restoring
    with pytest.raises(TurnedBackError, match="a has more of what b writes itself than b has") as caught:
        take(two.by["b"], path)
    assert "packet export --to a --receipt" in caught.value.do
    with pytest.raises(OperationalError, match="was restored from an older state"):
        two.write("b")
    with pytest.raises(PacketGapError, match="transactions 3 to 5 of b"):
        take(two.by["b"], path)
    take(two.by["a"], said(two, "b", "a"))
    (back,) = sent(two, "a", "b")
    take(two.by["b"], back, path)
    assert "RESTORING" not in {one.code for one in collect(two.by["b"]).findings}
    two.write("b", 2)
    level_by_packets(two)
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 7


@pytest.mark.slow
def test_a_backup_of_files_gets_back_what_it_had(three: Suppliers) -> None:
    """It knows of it by itself; each of its peers has to have sent."""
    site = three.by["b"].path
    copy = three.directory / "copy"
    three.write("b", 1, table="tb")
    level_by_packets(three)
    shutil.copytree(site, copy)
    three.write("b", 3, table="tb")
    level_by_packets(three)
    lose_pool(three.by["b"])
    shutil.copytree(copy, three.directory / "again")  # while the other is there: so no file has the inode of its like
    site.rename(three.directory / "before")
    (three.directory / "again").rename(site)
    three.by["b"] = Instance.open(site)
    take(three.by["a"], said(three, "b", "a"))
    bring(three, "a", "b")
    (finding,) = [one for one in collect(three.by["b"]).findings if one.code == "RESTORING"]
    assert "waiting for c" in finding.text
    take(three.by["c"], said(three, "b", "c"))
    take(three.by["b"], said(three, "c", "b"))
    assert "RESTORING" not in {one.code for one in collect(three.by["b"]).findings}
    three.write("b", 1, table="tb")
    level_by_packets(three)
    three.assert_converged()
    assert len(three.rows("a")["tb"]) == 5


def test_one_that_is_used_twice_is_found(two: Suppliers) -> None:
    site = two.by["b"].path
    level_by_packets(two)
    copy = two.directory / "copy"
    for one in ("journal", "regions", "consumers"):
        shutil.copytree(site / one, copy / one)
    two.write("b", 1)
    bring(two, "b", "a")
    lose_pool(two.by["b"])
    for one in ("journal", "regions", "consumers"):
        for file in (site / one).iterdir():
            file.unlink()
        for file in (copy / one).iterdir():
            shutil.copy2(file, site / one / file.name)
    two.by["b"] = Instance.open(site)
    two.write("b", 1, size=11)
    two.write("a", 1)
    with pytest.raises(DivergedError, match="has another transaction than b under number"):
        bring(two, "a", "b")
    before = two.last_seqno("a")
    with pytest.raises(DivergedError):
        take(two.by["a"], said(two, "b", "a"))
    assert two.last_seqno("a") == before


def test_who_is_no_supplier_gets_none_and_sends_none(two: Suppliers, tmp_path: Path) -> None:
    two.write("a", 1)
    (path,) = sent(two, "a", "b")
    place = tmp_path / "other"
    place.mkdir()
    pair = Pair.create(place)
    pair.seed()
    (old,) = export(pair.primary, tmp_path / "old", "west") if pair.write(1) else [None]
    assert old is not None
    with PacketReader(path) as reader, PacketReader(old.path) as other:
        assert (reader.summary.version, other.summary.version) == (2, 1)
    b = two.by["b"]
    convert_back(b)
    with pytest.raises(NotSupportedError, match="a is a supplier, and its packets are for suppliers"):
        take(b, path)


def convert_back(instance: Instance) -> None:
    from replicate.roles.supplier import convert

    convert(instance, "secondary", timeout_s=30)
    instance.reload()


def test_each_signs_for_the_other_and_seals(two: Suppliers) -> None:
    """Both may send to each other; a packet of one who may not is refused."""
    make_ca(two.directory / "ca", name="ours", days=30, now_s=time.time())
    for name, other in (("a", "b"), ("b", "a")):
        site = two.by[name].path
        issue(name, ca=two.directory / "ca", out=site / "tls", hosts=[], days=9, now_s=time.time())
        settings = site / "replicate.toml"
        settings.write_text(settings.read_text() + f'\n[receiver]\nallow = "{other}"\n')
        two.by[name] = Instance.open(site)
    take(two.by["a"], said(two, "b", "a"))
    two.write("a", 3)
    a = two.by["a"]
    with ExportRun(
        a, sign=signer_of(a), sealer=lambda to: sealer_of(a, to, time.time()), release="test", now_ns=now_ns
    ) as run:
        (made,) = run.increments(["b"], lambda name: two.directory / "stick" / name, max_bytes=PACKET_BYTES_MIN)
    with pytest.raises(UsageError, match="sealed for b"):
        PacketReader(made.path)
    assert take(two.by["b"], made.path).transactions == 3
    settings = two.by["b"].path / "replicate.toml"
    settings.write_text(settings.read_text().replace('allow = "a"', 'allow = "c"'))
    two.by["b"] = Instance.open(two.by["b"].path)
    two.write("a", 1)
    with pytest.raises(NotAuthenticatedError):
        bring(two, "a", "b")
    take(two.by["b"], said(two, "a", "b"))  # of a peer a receipt is taken


def test_spark_finds_no_net_change_of_it(two: Suppliers) -> None:
    two.write("a", 1)
    (path,) = sent(two, "a", "b")
    with pytest.raises(UsageError, match="Spark finds the net change"):
        import_packets(two.by["b"], [path], now_s=time.time(), spark=lambda: None)  # type: ignore[arg-type,return-value]


def test_only_what_was_heard_lets_the_journal_go(both: Suppliers) -> None:
    a = both.by["a"]

    def kept() -> dict[str, int | None]:
        return {one.peer: one.seqno for one in scrub(a, before_ns=None, upto=None, dry_run=True).kept_for}

    before = kept()["b"]
    both.write("a", 3, table="ta")
    (path,) = sent(both, "a", "b")
    assert kept()["b"] == before, "an estimate is no reason"
    take(both.by["b"], path)
    assert kept()["b"] == before
    bring(both, "b", "a")  # what it told
    assert kept()["b"] == both.last_seqno("a")
    known = read_consumer(a.consumers_directory, "b")
    assert known is not None
    assert known.acknowledged_seqno == both.last_seqno("a")


@pytest.mark.slow
def test_the_matrix_has_a_row_of_each_and_marks_estimates(three: Suppliers) -> None:
    level_by_packets(three)
    now = time.time_ns()
    assert {one.kind for one in matrix_of(three.by["a"], now).rows[1:]} <= {"heard", "estimated"}
    three.write("a", 2)
    sent(three, "a", "b")
    matrix = matrix_of(three.by["a"], time.time_ns())
    rows = {one.name: one for one in matrix.rows}
    assert matrix.origins == ("a", "b", "c")
    assert rows["b"].kind == "estimated"
    assert rows["b"].epochs == rows["a"].epochs
    assert rows["c"].epochs[0] == rows["a"].epochs[0] - 2
    three.by["c"].unregister_peer("a")
    three.by["c"].reload()
    assert {one.name for one in matrix_of(three.by["c"], now).rows} == {"a", "b", "c"}, "also those that are no peers"
