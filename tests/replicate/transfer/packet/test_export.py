"""What an export holds: just what the target lacks, durable, in order; and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.door.recovery.opening import make_chain
from replicate.errors import DiskFullError, DivergedError, JournalMissingError, NotFoundError, UsageError
from replicate.instance.consumers import Consumer, read_consumer, write_consumer, write_hold
from replicate.instance.instance import Instance
from replicate.limits import MIB
from replicate.system import failpoint
from replicate.transfer.packet.epochs import EpochRow
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.export import PACKET_BYTES_MIN, ExportRun
from replicate.transfer.packet.read import PacketReader
from tests.harness.packets import export, now_ns, position, take
from tests.harness.pair import Pair, assert_equal
from tests.update_process.replay.test_run_killed import killed


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    yield made
    failpoint.disarm()


def ranges(pair: Pair) -> list[tuple[int, int]]:
    return [(one.base.seqno + 1, one.last_seqno) for one in read_epochs(pair.primary.consumers_directory).exports]


def test_each_export_goes_on_where_the_last_one_ended(pair: Pair) -> None:
    seeded = pair.last_seqno()
    first = pair.write(5)
    (one,) = export(pair.primary, pair.directory / "out", "west")
    assert (one.first_seqno, one.last_seqno, one.number) == (seeded + 1, first, 1)
    assert export(pair.primary, pair.directory / "out", "west") == []
    second = pair.write(3)
    (two,) = export(pair.primary, pair.directory / "out", "west")
    assert (two.first_seqno, two.last_seqno, two.number) == (first + 1, second, 2)
    with PacketReader(two.path) as reader:
        summary = reader.summary
    assert (summary.before, summary.targets, summary.sender_name) == (1, ("west",), "east")
    assert summary.own.last_seqno == summary.end.last_seqno == second
    assert [one.instance for one in summary.origins] == ["east"]
    assert two.path.name == "east.west.000002.packet"


def test_what_a_line_has_brought_is_not_exported(pair: Pair) -> None:
    pair.write(5)
    export(pair.primary, pair.directory / "out", "west")
    middle = pair.write(2)
    write_consumer(pair.primary.consumers_directory, Consumer("west", middle, "ab", now_ns()))
    last = pair.write(2)
    (one,) = export(pair.primary, pair.directory / "out", "west")
    assert (one.first_seqno, one.last_seqno) == (middle + 1, last)


def test_a_seed_that_is_on_its_way_counts(pair: Pair) -> None:
    last = pair.write(4)
    write_hold(pair.primary.consumers_directory, "west", last)
    assert export(pair.primary, pair.directory / "out", "west") == []


def test_killed_before_the_epochs_moved_it_is_exported_again(pair: Pair) -> None:
    pair.write(4)
    failpoint.arm("packet.before_epochs:1:raise")
    with pytest.raises(failpoint.FailpointError):
        export(pair.primary, pair.directory / "out", "west")
    assert ranges(pair) == []
    (lost,) = (pair.directory / "out").iterdir()
    (one,) = export(pair.primary, pair.directory / "out", "west")
    assert (lost.name, one.path.name) == ("east.west.000001.packet", "east.west.000002.packet")
    assert one.first_seqno == pair.last_seqno(pair.secondary) + 1
    take(pair.secondary, lost, one.path)
    assert take(pair.secondary, lost, one.path).known == 2


KILLED = [
    ("packet.write", 1),  # nothing of it is there
    ("packet.write", 3),  # all but the end is
    ("packet.before_rename", 1),  # it is whole, and has no name
    ("packet.before_epochs", 1),  # it has its name, and the row has not moved
    ("packet.before_epochs", 2),  # so is the second of two
    ("replace.before_rename", 1),  # the row is being moved
    ("replace.renamed", 1),  # and has moved
]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "number"), KILLED)
def test_killed_at_any_step_of_an_export_nothing_is_lost(pair: Pair, point: str, number: int) -> None:
    """Whatever it has left, what is whole may be carried, and the next export goes on."""
    with pair.connect() as connection:
        for _ in range(40):
            connection.execute("INSERT INTO entry VALUES ('t', 1.0, ?)", (os.urandom(300_000),))
            connection.commit()
    assert killed(point, number, lambda: export(pair.primary, pair.directory / "out", "west"))
    moved, left = ranges(pair), sorted((pair.directory / "out").glob("*.packet"))
    assert len(left) == (0 if point in ("packet.write", "packet.before_rename") else number)
    assert len(moved) == (len(left) if point == "replace.renamed" else max(0, len(left) - 1))
    made = [one.path for one in export(pair.primary, pair.directory / "out", "west")]
    assert not set(left) & set(made), "no packet is replaced by another one"
    take(pair.secondary, *made, *left)
    assert_equal(pair)


def test_a_full_disk_moves_nothing(pair: Pair) -> None:
    pair.write(4)
    failpoint.arm("packet.write:2:errno=ENOSPC")
    with pytest.raises(DiskFullError):
        export(pair.primary, pair.directory / "out", "west")
    assert ranges(pair) == []
    assert os.listdir(pair.directory / "out") == []
    assert len(export(pair.primary, pair.directory / "out", "west")) == 1


def test_packets_have_their_size_and_transactions_are_whole(pair: Pair) -> None:
    connection = pair.connect()
    for _ in range(60):
        connection.execute("INSERT INTO entry VALUES ('t', 1.0, ?)", (os.urandom(300_000),))
        connection.commit()
    connection.close()
    made = export(pair.primary, pair.directory / "out", "west")
    assert len(made) >= 3
    assert all(one.bytes <= PACKET_BYTES_MIN for one in made)
    assert [one.first_seqno for one in made[1:]] == [one.last_seqno + 1 for one in made[:-1]]
    assert min(one.bytes for one in made[:-1]) > PACKET_BYTES_MIN - 3 * MIB
    take(pair.secondary, *(one.path for one in reversed(made)))
    assert pair.last_seqno(pair.secondary) == pair.last_seqno()


def test_one_file_takes_all_or_says_so(pair: Pair) -> None:
    connection = pair.connect()
    for _ in range(40):
        connection.execute("INSERT INTO entry VALUES ('t', 1.0, ?)", (os.urandom(300_000),))
        connection.commit()
    connection.close()
    path = pair.directory / "one.packet"
    with ExportRun(pair.primary, release="test", now_ns=now_ns) as run, pytest.raises(UsageError, match="takes up to"):
        list(run.increments(["west"], lambda _name: path, max_bytes=PACKET_BYTES_MIN, is_one=True))
    take(pair.secondary, path)
    assert len(ranges(pair)) == 1


def test_for_several_it_begins_where_the_one_after_is(pair: Pair) -> None:
    pair.primary.register_peer("off", "", 0)
    pair.primary.reload()
    first = pair.write(3)
    change_epochs(pair.primary.consumers_directory, lambda e: e.estimate("off", EpochRow(_at(pair, first), 1)))
    pair.write(3)
    seeded = pair.secondary and _seeded(pair)
    (one,) = export(pair.primary, pair.directory / "out", "west", "off")
    assert one.first_seqno == seeded + 1
    epochs = read_epochs(pair.primary.consumers_directory)
    known = [epochs.of(name).known for name in ("west", "off")]
    assert [row.seqno for row in known if row] == [one.last_seqno] * 2
    assert export(pair.primary, pair.directory / "out", "off", "west") == []


def _seeded(pair: Pair) -> int:
    return pair.last_seqno(pair.secondary)


def _at(pair: Pair, seqno: int) -> object:
    with ExportRun(pair.primary, release="test", now_ns=now_ns) as run:
        return run.position_at(seqno)


def test_a_receipt_says_how_far_one_is(pair: Pair) -> None:
    (one,) = export(pair.secondary, pair.directory / "out", "east", receipt=True)
    with PacketReader(one.path) as reader:
        assert reader.summary.is_receipt
        assert reader.summary.own.last_seqno == pair.last_seqno(pair.secondary)
        assert list(reader.segments()) == []


def test_a_receipt_to_a_secondary_leaves_no_gap(pair: Pair) -> None:
    last = pair.write(4)
    export(pair.primary, pair.directory / "out", "west", receipt=True)
    (made,) = export(pair.primary, pair.directory / "out", "west")
    assert (made.first_seqno, made.last_seqno) == (pair.last_seqno(pair.secondary) + 1, last)


def test_of_whom_nothing_is_known_nothing_is_guessed(pair: Pair) -> None:
    pair.primary.register_peer("off", "", 0)
    pair.primary.reload()
    with pytest.raises(NotFoundError, match="nothing is known of what off has") as caught:
        export(pair.primary, pair.directory / "out", "off")
    assert "--for off" in caught.value.do
    with pytest.raises(NotFoundError):
        export(pair.primary, pair.directory / "out", "nobody")


def test_a_peer_that_was_given_up_is_seeded_first(pair: Pair) -> None:
    known = read_consumer(pair.primary.consumers_directory, "west")
    assert known is not None
    write_consumer(pair.primary.consumers_directory, Consumer("west", known.acknowledged_seqno, needs_seed=True))
    pair.write(1)
    with pytest.raises(NotFoundError, match="was given up"):
        export(pair.primary, pair.directory / "out", "west")
    write_hold(pair.primary.consumers_directory, "west", known.acknowledged_seqno)
    assert len(export(pair.primary, pair.directory / "out", "west")) == 1


def test_what_was_pruned_is_named(pair: Pair) -> None:
    (pair.primary.path / "replicate.toml").write_text("[journal]\npool_bytes = 1048576\nsegment_bytes = 1048576\n")
    pair.primary.reload()
    connection = pair.connect()
    for _ in range(12):
        connection.execute("INSERT INTO entry VALUES ('t', 1.0, ?)", (os.urandom(300_000),))
        connection.commit()
    connection.close()
    chain = make_chain(pair.primary)
    chain.prune(chain.first_seqnos()[2])
    with pytest.raises(JournalMissingError, match="has lost some") as caught:
        export(pair.primary, pair.directory / "out", "west")
    assert "seed --to-file" in caught.value.do


def test_a_journal_with_another_past_is_refused(pair: Pair) -> None:
    last = pair.write(3)
    directory = pair.primary.consumers_directory
    change_epochs(directory, lambda known: known.heard("west", EpochRow(position(last), now_ns())))
    pair.write(1)
    with pytest.raises(DivergedError, match="another past"):
        export(pair.primary, pair.directory / "out", "west")
    change_epochs(directory, lambda known: known.heard("west", EpochRow(position(last + 99), now_ns())))
    with pytest.raises(DivergedError, match="the journal here ends with"):
        export(pair.primary, pair.directory / "out", "west")


def test_a_filter_that_would_have_to_tell_it_is_refused(pair: Pair) -> None:
    pair.write(1)
    (pair.primary.path / "replicate.toml").write_text('[source]\nfilter = "cat"\n')
    opened = Instance.open(pair.primary.path)
    with pytest.raises(UsageError, match=r"source\.filter"):
        export(opened, pair.directory / "out", "west")
    assert ranges(pair) == []
    assert os.listdir(pair.directory / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize("before", range(0, 16, 3))
def test_wherever_a_large_transaction_meets_the_end_of_a_packet(pair: Pair, before: int) -> None:
    connection = pair.connect()
    for _ in range(before):
        connection.execute("INSERT INTO entry VALUES ('t', 1.0, ?)", (os.urandom(100_000),))
        connection.commit()
    connection.executemany("INSERT INTO entry VALUES ('t', 1.0, ?)", ((os.urandom(20_000),) for _ in range(200)))
    connection.commit()
    connection.close()
    made = export(pair.primary, pair.directory / "out", "west", max_bytes=2_500_000)
    assert len(made) > 1
    take(pair.secondary, *(one.path for one in made))
    assert_equal(pair)
