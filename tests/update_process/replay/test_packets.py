"""Packets as they arrive: in any order, twice, late, damaged, beside a live line. Each transaction is applied once."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replicate.admin.freezing import freeze
from replicate.audit.verify import verify_journal
from replicate.daemon.files import DaemonFiles
from replicate.errors import (
    AlreadyRunningError,
    DamagedError,
    DiskFullError,
    FrozenError,
    NotFoundError,
    PacketGapError,
    PermissionRefusedError,
    ReplicateError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.instance.consumers import read_consumer, write_hold
from replicate.instance.instance import Instance
from replicate.model.findings import Finding
from replicate.status.collect import collect
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.export import packets_lock
from replicate.transfer.packet.judge_packets import Inbox, look
from replicate.transfer.packet.matrix import set_estimate
from tests.harness.packets import export, take
from tests.harness.pair import Pair, work_all
from tests.harness.replaying import assert_equal
from tests.update_process.replay.test_run_killed import killed
from update_process.replay.packets import import_packets


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, "CREATE TABLE p (id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    made.seed()
    return made


def some(pair: Pair, count: int, *, seed: int = 1) -> int:
    """Transactions that insert, change and remove, one of them with a new table; the last number."""
    noise, connection = random.Random(seed), pair.connect()
    for number in range(count):
        connection.execute("INSERT INTO p(v) VALUES (?)", (noise.random(),))
        connection.execute("UPDATE p SET v = ? WHERE id % 7 = ?", (noise.random(), noise.randrange(7)))
        connection.execute("DELETE FROM p WHERE id % 11 = ?", (noise.randrange(40),))
        connection.commit()
        if number == count // 2:
            connection.execute(f"CREATE TABLE made{seed} (id INTEGER PRIMARY KEY, x)")
            connection.commit()
    connection.close()
    return pair.last_seqno()


def several(pair: Pair, count: int, first: int = 0) -> list[Path]:
    made = []
    for number in range(first, first + count):
        some(pair, 9, seed=number)
        made += export(pair.primary, pair.directory / "out", "west")
    return [one.path for one in made]


def large(pair: Pair) -> list[Path]:
    """A large transaction over several packets, something before it and something after it."""
    some(pair, 3)
    connection = pair.connect()
    connection.executemany("INSERT INTO p(v) VALUES (?)", ((os.urandom(600).hex(),) for _ in range(30_000)))
    connection.commit()
    connection.close()
    some(pair, 3, seed=2)
    return [one.path for one in export(pair.primary, pair.directory / "out", "west")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_and_twice(pair: Pair, seed: int) -> None:
    paths = several(pair, 5)
    noise = random.Random(seed)
    arriving = [*paths, *paths]
    noise.shuffle(arriving)
    here: list[Path] = []
    for path in arriving:
        here.append(path)
        before = pair.last_seqno(pair.secondary)
        done = import_packets(pair.secondary, here, now_s=time.time())
        stands = pair.last_seqno(pair.secondary)
        assert [error.facts["first_seqno"] for error in done.errors] == [stands + 1] * bool(done.waiting)
        assert len(read_epochs(pair.secondary.consumers_directory).waiting) == len(done.waiting)
        assert pair.last_seqno(pair.secondary) >= before
    assert_equal(pair)
    assert read_epochs(pair.secondary.consumers_directory).waiting == ()
    assert take(pair.secondary, *paths).known == 5


def test_a_gap_says_what_is_missing_and_how_to_get_it(pair: Pair) -> None:
    first, second, third = several(pair, 3)
    stands = pair.last_seqno(pair.secondary)
    with pytest.raises(PacketGapError) as caught:
        take(pair.secondary, second, third)
    assert pair.last_seqno(pair.secondary) == stands
    exports = read_epochs(pair.primary.consumers_directory).exports
    last = exports[0].last_seqno
    vector = exports[1].base.position.vector
    (origin,) = vector.origins()
    epochs = f"{vector.last(origin) - (last - stands) + 1} to {vector.last(origin)} of east"
    said = f"packet 2 of east needs transactions {stands + 1} to {last} ({epochs}), not here yet"
    assert caught.value.what == said
    assert caught.value.do.endswith("packet recover --to west --number 1")
    (finding,) = [one for one in collect(pair.secondary).findings if one.code == "PACKET_WAITS"]
    assert "2 packets" in finding.text
    (gap,) = gaps(pair)
    assert (gap.severity, gap.text) == ("warning", said)
    assert gap.do.endswith("there: replicate -i east packet recover --to west --number 1")
    with pytest.raises(PacketGapError):
        take(pair.secondary, first, third)
    (gap,) = gaps(pair)
    assert gap.text.startswith(f"packet 3 of east needs transactions {last + 1} to")
    assert gap.do.endswith("--number 2")
    take(pair.secondary, first, second, third)
    assert_equal(pair)
    assert not [one for one in collect(pair.secondary).findings if one.code in ("PACKET_WAITS", "PACKET_GAP")]


def test_packets_that_are_lost_apart_are_all_named(pair: Pair) -> None:
    first, _, third, _, fifth = several(pair, 5)
    with pytest.raises(PacketGapError) as caught:
        take(pair.secondary, first, third, fifth)
    assert caught.value.what.startswith("packet 3 of east needs transaction")
    assert caught.value.do.startswith("Import packets 2 and 4, and any before from transaction ")
    assert caught.value.do.endswith("--number 2")


def test_of_several_lost_packets_the_gap_has_the_command_for_all(pair: Pair) -> None:
    stands = pair.last_seqno(pair.secondary)
    *_, third = several(pair, 3)  # the first two are lost
    with pytest.raises(PacketGapError) as caught:
        take(pair.secondary, third)
    assert f"Import packet 2, and any before from transaction {stands + 1} on" in caught.value.do
    # One of both is made again. The packet before that one is the first, not the last that was made.
    change_epochs(pair.primary.consumers_directory, lambda known: known.recovered("west", 2))
    (again,) = export(pair.primary, pair.directory / "out", "west")
    with pytest.raises(PacketGapError) as caught:
        take(pair.secondary, again.path, third)
    assert f"packet {again.number} of east needs" in caught.value.what
    assert caught.value.do.startswith("Import packet 1, ")
    command = f"there: replicate -i east epochs set west {stands}"
    assert command in caught.value.do
    set_estimate(pair.primary, "west", stands, time.time_ns())
    (all_of_it,) = export(pair.primary, pair.directory / "out", "west")
    take(pair.secondary, all_of_it.path)
    assert_equal(pair)


def test_what_waits_is_a_finding_until_the_gap_is_closed(pair: Pair) -> None:
    first, second, third = several(pair, 3)
    with pytest.raises(PacketGapError):
        take(pair.secondary, second)
    assert gaps(pair)
    with pytest.raises(PacketGapError):
        take(pair.secondary, third)  # and the second lies elsewhere
    assert len(read_epochs(pair.secondary.consumers_directory).waiting) == 2
    empty = pair.directory / "empty"
    empty.mkdir()
    take(pair.secondary, empty)
    (receipt,) = export(pair.primary, pair.directory / "out", "west", receipt=True)
    take(pair.secondary, receipt.path)
    assert gaps(pair), "nothing has come that closes it"
    assert [one.code for one in collect(pair.secondary).findings if one.code == "PACKET_WAITS"]
    take(pair.secondary, first)
    assert gaps(pair) == [], "what was lacking is here"
    assert [one.code for one in collect(pair.secondary).findings if one.code == "PACKET_WAITS"]
    take(pair.secondary, second, third)
    assert read_epochs(pair.secondary.consumers_directory).waiting == ()


def test_a_look_says_what_is_missing_after_what_it_would_apply(pair: Pair) -> None:
    first, _, third = several(pair, 3)
    (looked,) = import_packets(pair.secondary, [first, third], now_s=time.time(), dry_run=True).errors
    (done,) = import_packets(pair.secondary, [first, third], now_s=time.time()).errors
    assert str(looked) == str(done)


def gaps(pair: Pair) -> list[Finding]:
    return [one for one in collect(pair.secondary).findings if one.code == "PACKET_GAP"]


@pytest.mark.slow
def test_a_large_transaction_over_several_packets(pair: Pair) -> None:
    paths = large(pair)
    assert len(paths) >= 3
    with pytest.raises(PacketGapError, match="the next packet is not here"):
        take(pair.secondary, paths[0])
    begun = pair.last_seqno(pair.secondary)
    assert [one.code for one in collect(pair.secondary).findings if one.code.startswith("PACKET")] == ["PACKET_WAITS"]
    with pytest.raises(PacketGapError, match="needs the beginning of the large transaction"):
        take(pair.secondary, *paths[2:])
    assert pair.last_seqno(pair.secondary) == begun
    done = take(pair.secondary, *reversed(paths))
    assert len(done.applied) == len(paths)
    assert_equal(pair)


@pytest.mark.slow
def test_what_is_applied_is_removed_when_that_was_asked_for(pair: Pair) -> None:
    paths = large(pair)
    with pytest.raises(PacketGapError):
        take(pair.secondary, *paths[:2], paths[-1], remove=True)
    assert all(path.exists() for path in paths)  # the first one is wanted again
    assert take(pair.secondary, *paths, remove=True).removed == len(paths)
    assert not any(path.exists() for path in paths)
    assert_equal(pair)


def test_what_cannot_be_removed_is_said_beside_what_was_done(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is mounted read-only: all is applied, and what is lacking is told all the same."""
    first, _, third = several(pair, 3)

    def refused(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        done = import_packets(pair.secondary, [first, third], now_s=time.time(), remove=True)
    assert [one.code for one in done.errors] == ["PERMISSION", "PACKET_GAP"]
    assert str(first) in done.errors[0].where
    assert (done.applied, done.removed) == ((str(first),), 0)


def test_a_dry_run_changes_nothing(pair: Pair) -> None:
    paths, stands = several(pair, 2), pair.last_seqno(pair.secondary)
    done = take(pair.secondary, *paths, dry_run=True, remove=True)
    assert done.replayed is not None
    assert done.replayed.transactions == pair.last_seqno() - stands
    assert pair.last_seqno(pair.secondary) == stands
    assert all(path.exists() for path in paths)
    assert read_epochs(pair.secondary.consumers_directory).replicas == {}


def test_a_frozen_one_says_so_at_once(pair: Pair) -> None:
    """It waited without a word for somebody to thaw it, and the daemons had stood aside."""
    paths = several(pair, 1)
    stands = freeze(pair.secondary, on=True)
    with pytest.raises(FrozenError, match="west is frozen by"):
        take(pair.secondary, *paths)
    assert take(pair.secondary, *paths, dry_run=True).replayed is not None
    assert pair.last_seqno(pair.secondary) == stands
    freeze(pair.secondary, on=False)
    take(pair.secondary, *paths)
    assert_equal(pair)


def test_live_lines_and_packets_mix(pair: Pair) -> None:
    (one,) = several(pair, 1)
    some(pair, 4, seed=7)
    middle = pair.last_seqno()
    some(pair, 4, seed=8)
    with pair.receive_pool() as pool:
        pair.deliver(pool, upto=middle)
        with pair.applier(pool) as applier:
            work_all(applier)
    assert pair.last_seqno(pair.secondary) == middle
    assert take(pair.secondary, one).known == 1
    (two,) = export(pair.primary, pair.directory / "out", "west")
    assert two.first_seqno < middle  # it overlaps what came by the line
    take(pair.secondary, two.path)
    assert_equal(pair)


def test_a_line_that_is_quicker_leaves_nothing_to_do(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = several(pair, 2)

    @contextmanager
    def applied_meanwhile(_instance: Instance) -> Iterator[None]:
        with pair.receive_pool() as pool:
            pair.deliver(pool)
            with pair.applier(pool) as applier:
                work_all(applier)
        yield

    monkeypatch.setattr("update_process.replay.unpacking._aside", applied_meanwhile)
    done = take(pair.secondary, *paths)
    assert (done.applied, done.replayed, done.seqno) == ((), None, pair.last_seqno())
    assert_equal(pair)


def test_a_receipt_settles_what_the_sender_keeps(pair: Pair) -> None:
    write_hold(pair.primary.consumers_directory, "west", pair.last_seqno())
    paths = several(pair, 2)
    take(pair.secondary, *paths)
    (receipt,) = export(pair.secondary, pair.directory / "back", "east", receipt=True)
    done = take(pair.primary, receipt.path)
    assert done.heard == ("west",)
    consumer = read_consumer(pair.primary.consumers_directory, "west")
    assert consumer is not None
    assert consumer.acknowledged_seqno == pair.last_seqno()
    assert consumer.uuid == pair.secondary.content.uuid.hex()
    known = read_epochs(pair.primary.consumers_directory).of("west")
    assert known.estimated is None
    assert known.heard is not None
    assert known.heard.seqno == pair.last_seqno()
    assert not (pair.primary.consumers_directory / "west.hold").exists()


def test_a_restored_secondary_says_so_and_gets_it_again(pair: Pair) -> None:
    first = several(pair, 1)
    take(pair.secondary, *first)
    shutil.copytree(pair.secondary.path, pair.directory / "backup", symlinks=True)
    second = several(pair, 2, first=1)
    take(pair.secondary, *second)
    (receipt,) = export(pair.secondary, pair.directory / "back", "east", receipt=True)
    take(pair.primary, receipt.path)
    restored = (pair.directory / "backup", pair.secondary)
    shutil.rmtree(pair.secondary.path)
    shutil.move(*map(str, (restored[0], pair.secondary.path)))
    pair.secondary = Instance.open(pair.secondary.path)
    assert pair.last_seqno(pair.secondary) < pair.last_seqno()
    (again,) = export(pair.secondary, pair.directory / "back2", "east", receipt=True)
    take(pair.primary, again.path)
    (made,) = export(pair.primary, pair.directory / "out", "west")
    assert made.first_seqno == pair.last_seqno(pair.secondary) + 1
    take(pair.secondary, made.path)
    assert_equal(pair)


def test_a_lost_packet_and_then_both_arrive(pair: Pair) -> None:
    lost, later = several(pair, 2)
    change_epochs(pair.primary.consumers_directory, lambda known: known.recovered("west", 1))
    (again,) = export(pair.primary, pair.directory / "again", "west")
    take(pair.secondary, again.path)
    assert_equal(pair)
    assert take(pair.secondary, lost, later).known == 2


def test_a_third_site_by_way_of_the_second(pair: Pair) -> None:
    """What it has from the second and what it has from the first go together."""
    off = Instance.create(pair.directory / "off", role="secondary", name="off", network=pair.primary.content.network)
    shutil.copy(pair.primary.path / "replicate.toml", off.path)
    off = Instance.open(off.path)
    third = Pair(pair.directory, pair.primary, off)
    pair.primary.register_peer("off", "", 0)
    pair.primary.reload()
    third.seed()
    some(pair, 5)
    take(pair.secondary, export(pair.primary, pair.directory / "out", "west")[0].path)
    pair.secondary.register_peer("off", "", 0)
    pair.secondary.reload()
    (receipt,) = export(off, pair.directory / "back", "west", receipt=True)
    take(pair.secondary, receipt.path)
    (by_second,) = export(pair.secondary, pair.directory / "indirect", "off")
    some(pair, 5, seed=3)
    (by_first,) = export(pair.primary, pair.directory / "direct", "off")
    take(off, by_second.path)
    assert off.name in read_epochs(pair.secondary.consumers_directory).replicas
    assert {"east", "west"} >= set(read_epochs(off.consumers_directory).replicas)
    take(off, by_first.path)
    assert_equal(third)
    assert {origin.instance for origin in read_epochs(off.consumers_directory).origins.values()} == {"east"}


POINTS = (
    "packet.unpacked",
    "packet.applied",
    "take.before_rename",
    "take.renamed",
    "apply.after_commit",
    "replay.large",
)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_step_the_same_command_finishes(pair: Pair, point: str) -> None:
    paths = large(pair)
    assert killed(point, 1, lambda: take(pair.secondary, *paths))
    stands = pair.last_seqno(pair.secondary)
    assert stands <= pair.last_seqno()
    take(pair.secondary, *paths)
    assert_equal(pair)
    assert not (pair.secondary.path / "replay").exists()


def test_damage_is_found_before_anything_is_applied(pair: Pair) -> None:
    paths, stands = several(pair, 3), pair.last_seqno(pair.secondary)
    raw = bytearray(paths[2].read_bytes())
    raw[len(raw) // 3] ^= 1
    paths[2].write_bytes(raw)
    with pytest.raises(DamagedError, match="does not fit its content") as caught:
        take(pair.secondary, *paths)
    assert str(paths[2]) in caught.value.where
    assert pair.last_seqno(pair.secondary) == stands
    take(pair.secondary, *paths[:2])


def test_a_packet_that_is_replaced_after_it_was_judged_is_not_taken(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = several(pair, 2)
    stands = pair.last_seqno(pair.secondary)

    def judged_then_replaced(*arguments: Any) -> Inbox:
        inbox = look(*arguments)
        shutil.copy(two, one)
        return inbox

    monkeypatch.setattr("update_process.replay.packets.look", judged_then_replaced)
    with pytest.raises(DamagedError, match="replaced meanwhile"):
        take(pair.secondary, one)
    assert pair.last_seqno(pair.secondary) == stands


def test_a_cut_packet_is_named_and_the_others_go_in(pair: Pair) -> None:
    paths = several(pair, 3)
    paths[2].write_bytes(paths[2].read_bytes()[:-7])
    with pytest.raises(DamagedError, match="was cut"):
        take(pair.secondary, paths[0].parent)
    assert pair.last_seqno(pair.secondary) > 2
    assert take(pair.secondary, *paths[:2]).known == 2


def test_a_packet_that_still_arrives_is_taken_when_it_is_whole(pair: Pair) -> None:
    """A copy that grows while the directory is imported again and again."""
    (path,) = several(pair, 1)
    whole, stands = path.read_bytes(), pair.last_seqno(pair.secondary)
    path.write_bytes(b"")
    for part in range(5):
        with pytest.raises(DamagedError) as caught:
            take(pair.secondary, path.parent)
        assert caught.value.where.startswith(str(path))
        assert pair.last_seqno(pair.secondary) == stands
        with open(path, "ab") as file:
            file.write(whole[part * len(whole) // 5 : (part + 1) * len(whole) // 5])
    take(pair.secondary, path.parent)
    assert_equal(pair)


def test_a_full_disk_applies_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, stands = several(pair, 2), pair.last_seqno(pair.secondary)

    def full(*_args: object, **_options: object) -> None:
        raise DiskFullError("full")

    monkeypatch.setattr("update_process.replay.unpacking.require_free", full)
    with pytest.raises(DiskFullError):
        take(pair.secondary, *paths)
    assert pair.last_seqno(pair.secondary) == stands
    assert not (pair.secondary.path / "replay").exists()


def _of_another_network(pair: Pair, path: Path) -> None:
    other = Instance.create(pair.directory / "x", role="primary", name="west")
    take(other, path)


def _its_own(pair: Pair, path: Path) -> None:
    take(pair.primary, path)


def _for_another(pair: Pair, path: Path) -> None:
    other = Instance.create(pair.directory / "y", role="secondary", name="y", network=pair.primary.content.network)
    take(other, path)


def _not_seeded(pair: Pair, path: Path) -> None:
    (pair.directory / "again").mkdir()
    network = pair.primary.content.network
    take(Instance.create(pair.directory / "again" / "west", role="secondary", name="west", network=network), path)


def _into_a_primary(pair: Pair, path: Path) -> None:
    (pair.directory / "again").mkdir()
    network = pair.primary.content.network
    take(Instance.create(pair.directory / "again" / "west", role="primary", name="west", network=network), path)


def _beside_a_daemon_that_does_not_stand_aside(pair: Pair, path: Path) -> None:
    (pair.secondary.path / "replicate.toml").write_text("[daemon]\nstop_timeout_s = 0.5\n")
    pair.secondary = Instance.open(pair.secondary.path)
    fd = DaemonFiles(pair.secondary.path, "update").lock.acquire()
    try:
        take(pair.secondary, path)
    finally:
        os.close(fd)


def _beside_another_import(pair: Pair, path: Path) -> None:
    lock = packets_lock(pair.secondary)
    assert lock.try_acquire()
    try:
        take(pair.secondary, path)
    finally:
        lock.close()


def _not_there(pair: Pair, path: Path) -> None:
    take(pair.secondary, path.with_name("none.packet"))


REFUSED: list[tuple[Callable[[Pair, Path], None], type[ReplicateError]]] = [
    (_of_another_network, WrongNetworkError),
    (_its_own, WrongInstanceError),
    (_for_another, WrongInstanceError),
    (_not_seeded, NotFoundError),
    (_into_a_primary, (NotFoundError, PermissionRefusedError)),  # type: ignore[list-item]
    (_beside_a_daemon_that_does_not_stand_aside, AlreadyRunningError),
    (_beside_another_import, ReplicateError),
    (_not_there, NotFoundError),
]


@pytest.mark.turns(4)
@pytest.mark.parametrize(("attempt", "error"), REFUSED, ids=[one.__name__[1:] for one, _ in REFUSED])
def test_refused(
    pair: Pair, attempt: Callable[[Pair, Path], None], error: type[ReplicateError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("update_process.replay.packets.LOCK_TIMEOUT_S", 0.0)
    (path,) = several(pair, 1)
    stands = pair.last_seqno(pair.secondary)
    with pytest.raises(error) as caught:
        attempt(pair, path)
    assert caught.value.do
    assert pair.last_seqno(pair.secondary) == stands


def test_in_a_directory_packets_for_others_are_passed_over(pair: Pair) -> None:
    several(pair, 2)
    done = take(pair.primary, pair.directory / "out")
    assert (done.for_others, done.known) == (2, 0)


@pytest.mark.slow
def test_our_journal_is_theirs_byte_for_byte(pair: Pair) -> None:
    take(pair.secondary, *large(pair))
    assert not verify_journal(pair.secondary).findings
    assert_equal(pair)
