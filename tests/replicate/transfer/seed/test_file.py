"""Seed files: what is written is read back, whatever is wrong with one is named, and nothing half done stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from msgspec.structs import replace

from replicate.admin.regions import add_region
from replicate.compare.compare import digest
from replicate.door.recovery.opening import is_seeded
from replicate.errors import (
    AlreadyExistsError,
    DamagedError,
    DiskFullError,
    FormatUnknownError,
    NotFoundError,
    PermissionRefusedError,
    UsageError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.instance.consumers import Consumer, read_consumer, read_hold, remove_consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.limits import KIB
from replicate.lost.peers_lack import Owner, look
from replicate.status.collect import collect
from replicate.system import failpoint
from replicate.transfer.container import SEED, RecordType, SeedHeader
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES
from replicate.transfer.seed.file import SeedReader, good_bytes_of, read_header
from replicate.transfer.seed.install import install_file
from replicate.transfer.seed.make import forget_seed, kept_seed, make_seed
from tests.harness.pair import Pair, work_all
from tests.harness.street import make_database


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    yield Pair.create(tmp_path)
    failpoint.disarm()


def write(pair: Pair, count: int = 5, first: int = 1, size: int = 0) -> None:
    connection = pair.connect()
    for number in range(first, first + count):
        connection.execute("INSERT INTO account VALUES (?, 'o', 0, ?)", (number, os.urandom(size)))
        connection.commit()
    connection.close()


def make(pair: Pair, **options: bool) -> Path:
    path = pair.directory / "west.seed"
    make_seed(pair.primary, "west", path, **options)
    return path


def records(path: Path) -> list[tuple[int, RecordType, int]]:
    """(offset, type, bytes in all) of every record."""
    data, found, at = path.read_bytes(), [], PREFIX_BYTES
    while at < len(data):
        head = SEED.read_head(data[at : at + HEAD_BYTES], at, "")
        found.append((at, head.kind, HEAD_BYTES + head.length))
        at += HEAD_BYTES + head.length
    return found


def assert_catches_up(pair: Pair) -> None:
    pair.secondary.reload()
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)
            assert applier.applied_seqno == pair.last_seqno()
    assert digest(pair.primary, timeout_s=5).regions == digest(pair.secondary, timeout_s=5).regions


def test_a_file_carries_every_region_and_the_stream_goes_on_after_it(pair: Pair) -> None:
    make_database(pair.directory / "big.db", "PRAGMA page_size = 65536; CREATE TABLE big (a PRIMARY KEY, b);")
    make_database(pair.directory / "small.db", "PRAGMA page_size = 512; CREATE TABLE small (a);")
    add_region(pair.primary, pair.directory / "big.db", name="big")
    add_region(pair.primary, pair.directory / "small.db", name="small")
    pair.primary.reload()
    write(pair, 30, size=20_000)
    told: list[tuple[str, int, int]] = []
    made = make_seed(pair.primary, "west", pair.directory / "f", progress=lambda *facts: told.append(facts))
    assert (made.seqno, made.regions) == (pair.last_seqno(), ("main", "big", "small"))
    assert made.bytes == os.stat(made.path).st_size
    assert told[-1] == ("small", made.pages, made.pages)
    assert os.stat(made.path).st_mode & 0o777 == 0o600
    assert [entry.name for entry in pair.directory.iterdir() if entry.name.startswith(".")] == []
    write(pair, 5, first=100)
    seen: list[tuple[str, int, int]] = []
    seeded = install_file(pair.secondary, made.path, progress=lambda *facts: seen.append(facts))
    assert (seeded.seqno, seeded.regions, seeded.pages) == (made.seqno, made.regions, made.pages)
    assert seen[-1] == ("small", made.pages, made.pages)
    assert_catches_up(pair)


def test_memory_is_bounded_by_the_records(pair: Pair) -> None:
    write(pair, 40, size=100_000)
    path = make(pair)
    assert max(size for _, kind, size in records(path) if kind is RecordType.PAGES) <= 256 * KIB + 32
    with SeedReader(path) as reader:
        assert reader.file_bytes == path.stat().st_size
        assert sum(len(piece.data) for piece in reader.pages()) == sum(r.bytes for r in reader.header.regions)


def test_the_journal_after_a_file_is_kept_whatever_the_consumer_says(pair: Pair) -> None:
    write(pair)
    make(pair)
    held = pair.last_seqno()
    directory = pair.primary.consumers_directory
    assert read_hold(directory, "west") == held
    write_consumer(directory, Consumer("west", held + 1000))
    assert read_hold(directory, "west") == held
    write_consumer(directory, Consumer("west", held + 1000, needs_seed=True))
    assert read_hold(directory, "west") == held
    pair.seed()  # by another way: nobody waits for that file any more
    assert read_hold(directory, "west") is None


def test_a_seed_that_nobody_fetches_is_said_and_can_be_given_up(pair: Pair) -> None:
    write(pair)
    made = make_seed(pair.primary, "west", pair.directory / "f")
    (found,) = [finding for finding in collect(pair.primary).findings if finding.code == "SEED_WAITING"]
    assert f"after transaction {made.seqno} is kept" in found.text
    assert f"replicate -i {pair.primary.path} seed --forget west" in found.do
    kept = kept_seed(pair.primary, "west")
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(b"sent over the connection")
    (kept.parent / f".{kept.name}.part").write_bytes(b"left by a killed Source Server")
    assert forget_seed(pair.primary, "west") == made.seqno
    assert forget_seed(pair.primary, "west") is None
    assert list(kept.parent.iterdir()) == []
    assert all(finding.code != "SEED_WAITING" for finding in collect(pair.primary).findings)
    with pytest.raises(NotFoundError):
        forget_seed(pair.primary, "north")


def test_a_failed_file_leaves_nothing_and_holds_nothing(pair: Pair) -> None:
    write(pair, 10, size=50_000)
    failpoint.arm("seed.write:5:errno=ENOSPC")
    with pytest.raises(DiskFullError, match=r"was removed: no space left .*west\.seed"):
        make(pair)
    failpoint.arm("seed.before_rename:1:errno=EIO")
    with pytest.raises(Exception, match="could not be finished"):
        make(pair)
    assert not list(pair.directory.glob("*west.seed*")) + list(pair.directory.glob(".*"))
    assert read_hold(pair.primary.consumers_directory, "west") is None
    assert read_consumer(pair.primary.consumers_directory, "west") is not None


def test_a_seed_on_its_way_is_no_word_of_the_peer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only we have is lost with us, whatever was made for others."""
    directory = pair.primary.consumers_directory
    write(pair)
    last = pair.last_seqno()

    def lacking() -> tuple[int, int]:
        (peer,) = look(Owner.of(pair.primary)).peers
        (report,) = collect(pair.primary).peers
        return peer.acknowledged_seqno, report.last_durable_seqno

    def known() -> Consumer:
        found = read_consumer(directory, "west")
        assert found is not None
        return found

    assert lacking() == (0, 0)
    make(pair)
    assert known().acknowledged_seqno == last, "from there on the journal is kept"
    assert lacking() == (0, 0)
    forget_seed(pair.primary, "west")
    assert (known().acknowledged_seqno, lacking()) == (0, (0, 0)), "nobody will ever load it"
    remove_consumer(directory, "west")
    with monkeypatch.context() as patched:
        patched.setattr("replicate.transfer.seed.make._write", broken)
        with pytest.raises(DiskFullError):
            make(pair, replace=True)
    assert (known().acknowledged_seqno, lacking()) == (0, (0, 0)), "it failed: nobody has got it"
    make(pair, replace=True)
    install_file(pair.secondary, pair.directory / "west.seed")
    assert_catches_up(pair)


def broken(*_: object) -> None:
    raise DiskFullError("full", where="there", do="free space")


def test_what_is_made_for_one_that_lives_does_not_take_its_word_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pair)
    directory = pair.primary.consumers_directory
    said = Consumer("west", 3, "ab" * 16, 77)
    for word in (said, replace(said, needs_seed=True)):
        write_consumer(directory, word)
        with monkeypatch.context() as patched:
            patched.setattr("replicate.transfer.seed.make._write", broken)
            with pytest.raises(DiskFullError):
                make(pair)
        assert read_consumer(directory, "west") == word, "a peer that was dropped is one still"
    write_consumer(directory, said)
    make(pair)
    assert read_consumer(directory, "west") == said
    (peer,) = look(Owner.of(pair.primary)).peers
    assert peer.acknowledged_seqno == 3


def test_a_full_disk_is_seen_before_anything_is_written(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = list(os.statvfs(pair.directory))
    facts[4] = 1
    path = make(pair)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(facts))
    with pytest.raises(DiskFullError, match="the seed file needs"):
        make(pair, replace=True)
    with pytest.raises(DiskFullError, match="the copy of the regions needs"):
        install_file(pair.secondary, path)
    assert not is_seeded(pair.secondary)


def test_what_is_refused_when_a_file_is_made(pair: Pair, tmp_path: Path) -> None:
    path = make(pair)
    first = read_header(path)
    with pytest.raises(AlreadyExistsError, match="--restart") as caught:
        make(pair)
    assert caught.value.exit_code == 73
    assert read_header(make(pair, replace=True)).seed != first.seed
    with pytest.raises(NotFoundError, match="no peer 'north'"):
        make_seed(pair.primary, "north", tmp_path / "n")
    with pytest.raises(NotFoundError, match="no such directory"):
        make_seed(pair.primary, "west", tmp_path / "no" / "n")
    with pytest.raises(UsageError, match="no plain file"):
        make_seed(pair.primary, "west", tmp_path, replace=True)
    with pytest.raises(UsageError, match="a region of the instance"):
        make_seed(pair.primary, "west", pair.primary.region("main").path, replace=True)


def test_what_is_refused_when_a_file_is_loaded(pair: Pair, tmp_path: Path) -> None:
    path = make(pair)
    network = pair.primary.content.network
    stranger = Instance.create(tmp_path / "stranger", role="secondary", name="west", network=bytes(16))
    with pytest.raises(WrongNetworkError, match="instance create --network"):
        install_file(stranger, path)
    north = Instance.create(tmp_path / "north", role="secondary", name="north", network=network)
    with pytest.raises(WrongInstanceError, match="made for west"):
        install_file(north, path)
    with pytest.raises(PermissionRefusedError):
        install_file(pair.primary, path)
    with pytest.raises(NotFoundError, match="no such file"):
        install_file(pair.secondary, tmp_path / "nothing")
    write_consumer(pair.primary.consumers_directory, Consumer("west", 0, "ab" * 16))
    with pytest.raises(WrongInstanceError, match="another instance named west"):
        install_file(pair.secondary, make(pair, replace=True))
    assert not is_seeded(pair.secondary)


def test_a_file_of_a_later_format(pair: Pair) -> None:
    path = make(pair)
    data = path.read_bytes()
    path.write_bytes(SEED.pack_prefix(5) + data[PREFIX_BYTES:])
    with pytest.raises(FormatUnknownError, match=r"format 5, this release knows up to 4 .*Upgrade"):
        install_file(pair.secondary, path)


def test_a_header_says_of_which_tables_it_has_some_rows(pair: Pair) -> None:
    with SeedReader(make(pair)) as reader:
        plain = reader.header
    rows = {("main", "account"): "id > 3", ("side", "t"): "a = 'é'"}
    both = replace(plain, rows=rows, partitions=(1, 9), is_part=True)
    for header in (replace(plain, rows=rows), both, replace(plain, partitions=(1,))):
        assert SeedHeader.unpack(header.pack(), header.version) == header
    assert (replace(plain, rows=rows).version, replace(plain, partitions=(1,)).version, plain.version) == (4, 3, 1)
    *fields, is_part, numbers, listed = msgpack.unpackb(replace(plain, rows=rows).pack())
    for nonsense in ([], 7, [["main", "t"]], [["main", "t", 5]], [[["main"], "t", "a = 1"]]):
        with pytest.raises(DamagedError, match="header of the seed makes no sense"):
            SeedHeader.unpack(msgpack.packb([*fields, is_part, numbers, nonsense]), 4)
    with pytest.raises(DamagedError):
        SeedHeader.unpack(msgpack.packb([*fields, 5, numbers, listed]), 4)


def test_every_flip_and_every_cut_is_found_before_anything_is_replaced(pair: Pair) -> None:
    pair.seed()
    write(pair, 20, size=30_000)
    path = make(pair)
    data = path.read_bytes()
    places = [0, 9, *(at + delta for at, _, size in records(path) for delta in (0, 4, 9, 20, size // 2, size - 1))]
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(DamagedError) as caught:
            install_file(pair.secondary, path, restart=True)
        assert str(path) in str(caught.value), place
        assert caught.value.do
        assert good_bytes_of(path) <= place
    for place in places:
        path.write_bytes(data[:place])
        with pytest.raises(DamagedError):
            install_file(pair.secondary, path, restart=True)
    path.write_bytes(data[:-1])
    with pytest.raises(DamagedError, match=rf"was cut: it ends after {len(data) - 1} bytes, of {len(data)}"):
        install_file(pair.secondary, path, restart=True)
    path.write_bytes(data + b"x")
    with pytest.raises(DamagedError, match="after the end"):
        install_file(pair.secondary, path, restart=True)
    pair.secondary.reload()
    assert is_seeded(pair.secondary)
    assert pair.rows("account") == []
    path.write_bytes(data)
    install_file(pair.secondary, path, restart=True)
    assert_catches_up(pair)


def test_a_file_put_together_from_two_is_found(pair: Pair) -> None:
    """Every record verifies; the digest over all does not."""
    write(pair, 3)
    one = make(pair).read_bytes()
    write(pair, 1, first=50)
    path = make(pair, replace=True)
    other = path.read_bytes()
    cut = next(at for at, kind, _ in records(path) if kind is RecordType.PAGES)
    assert len(one) == len(other)
    path.write_bytes(one[:cut] + other[cut:])
    with pytest.raises(DamagedError, match="its digest differs"):
        install_file(pair.secondary, path)


def test_records_out_of_order_are_refused(pair: Pair) -> None:
    path = make(pair)
    data = path.read_bytes()
    for at, kind, size in records(path):
        for other in RecordType:
            if other is not kind:
                body = data[at + HEAD_BYTES : at + size]
                path.write_bytes(data[:at] + b"".join(SEED.pack_record(other, at, body[:4096])) + data[at + size :])
                with pytest.raises(DamagedError, match=r"out of its order|makes no sense"):
                    install_file(pair.secondary, path)


def test_the_good_part_of_a_file_that_is_arriving(pair: Pair) -> None:
    write(pair, 20, size=30_000)
    path = make(pair)
    data = path.read_bytes()
    ends = [PREFIX_BYTES, *(at + size for at, _, size in records(path))]
    header_end = ends[2]
    for end in ends:
        for extra in (0, 1, HEAD_BYTES):
            path.write_bytes(data[: end + extra])
            assert good_bytes_of(path) == (min(end, len(data)) if end >= header_end else 0)
    path.unlink()
    assert good_bytes_of(path) == 0


def test_a_seed_that_was_interrupted_in_its_last_steps_is_done_again(pair: Pair) -> None:
    write(pair)
    path = make(pair)
    failpoint.arm("seed.journal_begun:1:raise")
    with pytest.raises(failpoint.FailpointError):
        install_file(pair.secondary, path)
    pair.secondary.reload()
    assert not is_seeded(pair.secondary)
    install_file(pair.secondary, path)
    assert_catches_up(pair)
