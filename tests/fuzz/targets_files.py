"""Fuzzing targets of the small files: instance, settings, consumers, what daemons say, conflicts, digests.

Guarantees: a target is a function of its bytes alone. Where a file has a check over its content, the first byte says
whether it is made right again.
Leaves to others: who calls it; what may be raised (oracle.py).
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from receiver_server.seed import read_request
from replicate.compare.digest import compare_digests, parse_digest
from replicate.daemon.control import ready_word
from replicate.daemon.files import DaemonFiles
from replicate.daemon.http import PATHS, Answer, render
from replicate.daemon.http import read_request as read_request_of_metrics
from replicate.instance.consumers import read_consumer, read_hold, write_hold
from replicate.instance.file import check_unique, decode, encode
from replicate.limits import KIB, NAME_PATTERN
from replicate.region.sqlite.forensics.pages import NotOurPage, children, rows
from replicate.settings.load import load, shown, toml_value
from replicate.transfer.packet.epochs_file import NAME as EPOCHS_NAME
from replicate.transfer.packet.epochs_file import read_epochs
from replicate.transfer.packet.format import PacketSummary
from replicate.transfer.packet.read import PacketReader
from replicate.transfer.packet.sealed import SealedPacket, plain_bytes_within
from replicate.transfer.seed.file import SeedReader, good_bytes_of
from replicate.transfer.seed.request import SeedFailedError, read_answer
from tests.fuzz import repair
from tests.fuzz.targets_journal import directory
from update_process.conflict_file import conflict_path, read_conflict
from update_process.replay.archive.files import LocalFiles
from update_process.replay.archive.manifest import FOLDER, read_ranges, write_range
from update_process.replay.backlog import ArchiveRanges


def instance_file(data: bytes) -> None:
    """What decodes can be encoded, and is the same then."""
    if not data:
        return
    raw = data[1:]
    if not data[0] & 1:
        try:
            facts = json.loads(raw)
            facts.pop("check", None)
            facts["check"] = xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())
            raw = json.dumps(facts).encode()
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            pass  # then it is decoded as it is
    content = decode(raw, "here")
    assert decode(encode(content), "there") == content
    check_unique(content)


def config(data: bytes) -> None:
    """The settings file. Every value of what was taken can be shown."""
    path = directory("config") / "replicate.toml"
    path.write_bytes(data)
    for setting, value in load(path).values():
        assert shown(setting, value)
        assert toml_value(value)


def consumer(data: bytes) -> None:
    """The stored position of a consumer."""
    home = directory("consumers")
    (home / "oslo.json").write_bytes(data)
    found = read_consumer(home, "oslo")
    assert found is not None
    assert found.acknowledged_seqno >= 0


def consumer_hold(data: bytes) -> None:
    """Where the seed that is on its way to a consumer stands."""
    home = directory("holds")
    write_hold(home, "oslo", 7)
    (path,) = home.iterdir()
    path.write_bytes(data)
    assert (read_hold(home, "oslo") or 0) >= 0


def region_page(data: bytes) -> None:
    """A page of an SQLite database, read raw. The first byte says how many columns are wanted, and whether it is page
    1, which begins with the database's own header."""
    if not data:
        return
    columns, is_first, page = data[0] & 7, bool(data[0] & 8), data[1:]
    with suppress(NotOurPage):
        for _, child in children(page, is_first=is_first):
            assert 0 <= child < 1 << 32
    with suppress(NotOurPage):
        for _, values in rows(page, columns, is_first=is_first):
            assert len(values) == columns
            assert all(len(value) <= len(page) for value in values if isinstance(value, bytes))


def metrics_request(data: bytes) -> None:
    """A request to the port of the metrics. Nothing of it comes back."""
    asked = read_request_of_metrics(data)
    if isinstance(asked, Answer):
        assert render(asked).startswith(b"HTTP/1.1 4")
    assert not isinstance(asked, str) or asked in PATHS


def daemon_status(data: bytes) -> None:
    """The status file of a daemon that does not run: damaged means nothing is known, and is no error."""
    files = DaemonFiles(directory("daemon"), "update")
    files.lock.make_directories()
    files.status.path.write_bytes(data)
    files.read_status()


def daemon_word(data: bytes) -> None:
    """The line by which a daemon says that it serves, or has failed."""
    ready_word(data, "update")


def seed_answer(data: bytes) -> None:
    """A line by which the Receiver Server answers the seed command."""
    answer = read_answer(data)
    if "error" in answer:
        assert str(SeedFailedError(answer["error"]))


def seed_request(data: bytes) -> None:
    """The line by which the seed command asks the Receiver Server. What it names are names."""
    wanted, regions, _ = read_request(data)
    assert all(re.match(NAME_PATTERN, name) for name in (*regions, *(() if wanted is None else (wanted,))))


def archive_manifest(data: bytes) -> None:
    """A manifest of an archive, and the one before it. What was taken is whole, and can be written again."""
    home = directory("archive")
    folder = home / FOLDER
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    name = "first"
    try:
        made = json.loads(data)
        name = f"{int(made['first_seqno']):020d}-{int(made['last_seqno']):020d}"
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    (folder / f"{name}.json").write_bytes(data)
    files = LocalFiles(home)
    archive = ArchiveRanges(files, ranges := read_ranges(files))
    for one in ranges:
        write_range(files, one)
        assert archive.range_with(one.first_seqno) == archive.range_with(one.last_seqno) == one
        assert one.place.startswith(one.name)
        assert all(Path(one.packed_name(copy)).parts[:2] == ("segments", one.place) for copy in one.segments)
    assert read_ranges(files) == ranges


def seed_file(data: bytes) -> None:
    """A seed file, read to its end; and how much of it is good, when it is still arriving."""
    if not data:
        return
    path = directory("seed") / "seed"
    path.write_bytes(data[1:] if data[0] & 1 else repair.seed_records(data[1:]))
    assert 0 <= good_bytes_of(path) <= len(data)
    with SeedReader(path) as reader:
        pages = sum(len(piece.data) for piece in reader.pages())
        assert pages == sum(region.bytes for region in reader.header.regions)


def packet_file(data: bytes) -> None:
    """A packet, read to its end."""
    if not data:
        return
    path = directory("packets") / "a.packet"
    path.write_bytes(data[1:] if data[0] & 1 else repair.seed_records(data[1:]))
    with PacketReader(path) as reader:
        assert PacketSummary.unpack(reader.summary.pack()) == reader.summary
        for part in reader.verify():
            assert part.first_seqno > 0


def sealed_packet(data: bytes) -> None:
    """A packet that is sealed for somebody."""
    if not data:
        return
    raw = data[1:] if data[0] & 1 else repair.seed_records(data[1:])
    sealed = SealedPacket(lambda at, count: raw[at : at + count], len(raw), "here")
    sealed.open(lambda key, _target, _where: key)
    plain = b""
    while piece := sealed.read(len(plain), 100):
        plain += piece
    assert len(plain) == sealed.bytes > 0
    assert plain_bytes_within(len(raw) + KIB) >= sealed.bytes


def epochs_file(data: bytes) -> None:
    """What is known of other replicas."""
    home = directory("epochs")
    (home / EPOCHS_NAME).write_bytes(data)
    found = read_epochs(home)
    for name in found.replicas:
        assert found.confirmed(name).of(name).estimated is None


def digest(data: bytes) -> None:
    """A digest of another host. What was taken can be shown, and compared."""
    found = parse_digest(data.decode("utf-8", "replace"), where="here")
    assert repr(found).encode()
    compare_digests(found, replace(found, instance=f"{found.instance}'s twin"))


def conflict(data: bytes) -> None:
    """A conflict file."""
    home = directory("conflicts")
    conflict_path(home, 7).parent.mkdir(exist_ok=True)
    conflict_path(home, 7).write_bytes(data)
    assert isinstance(read_conflict(home, 7), dict)
