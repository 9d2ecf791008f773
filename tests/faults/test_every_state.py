"""All states of a small disk, and WALs that no reader can tell apart: SQLite itself is asked."""

from __future__ import annotations

import random
from pathlib import Path

import apsw

from tests.faults.disk import File, Op, TracedDisk
from tests.faults.every_state import Every, key_of, subsets, variants, what_counts

WAL_HEADER, FRAME_HEADER, PAGE = 32, 24, 4096


def two_wals(path: Path) -> list[tuple[bytes, bytes, bytes]]:
    """Of one database: what is in the file, what the WAL was before, and what it is with three further commits."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode=wal; PRAGMA wal_autocheckpoint=0")
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    found, number, before = [], 0, b""
    for _ in range(2):
        connection.execute("PRAGMA wal_checkpoint(FULL)")  # so that the next commit begins the WAL again
        database = path.read_bytes()
        for _ in range(3):
            number += 1
            connection.execute("INSERT INTO t VALUES (?, ?)", (number, f"{number}" * 9000))
        wal = Path(f"{path}-wal").read_bytes()
        found.append((database, before, wal))
        before = wal
    connection.close()
    return found


def writes_of(wal: bytes) -> list[Op]:
    """The header, then of each frame its header and its page, as SQLite writes them."""
    found = [Op("write", "", 0, wal[:WAL_HEADER])]
    for at in range(WAL_HEADER, len(wal), FRAME_HEADER + PAGE):
        for start, size in ((at, FRAME_HEADER), (at + FRAME_HEADER, PAGE)):
            found.append(Op("write", "", start, wal[start : start + size]))
    return found


def read(path: Path, database: bytes, wal: bytes) -> list[int]:
    """What a new reader finds."""
    path.write_bytes(database)
    Path(f"{path}-wal").write_bytes(wal)
    Path(f"{path}-shm").unlink(missing_ok=True)
    connection = apsw.Connection(str(path))
    try:
        there = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 't'").fetchall()[0][0]
        return [row[0] for row in connection.execute("SELECT id FROM t").fetchall()] if there else [-1]
    finally:
        connection.close()


def test_wals_that_count_the_same_are_read_the_same(tmp_path: Path) -> None:
    """On an empty file, and over an older WAL with other salts; each write there or not."""
    for database, synced, wal in two_wals(tmp_path / "one"):
        file = File(synced, writes_of(wal))
        whole = file.content(lambda _place, _op: None)
        dice = random.Random(4)
        chosen = subsets(len(file.pending))
        chosen += [frozenset(dice.sample(range(len(file.pending)), 9)) for _ in range(20)]
        rows_by: dict[int, list[int]] = {}
        for kept in chosen:
            content = file.content(lambda place, _op, kept=kept: None if place in kept else b"")  # type: ignore[misc]
            rows = read(tmp_path / "reader", database, content)
            assert rows_by.setdefault(what_counts("a-wal", content, (whole, synced)), rows) == rows
        # Before the first of three commits, and after each; besides, what is left of an older WAL.
        assert len({tuple(rows) for rows in rows_by.values()}) >= 4
        assert len(rows_by) < len(chosen) / 2
        found = variants("a-wal", file)
        last = rows_by[found.last]
        assert read(tmp_path / "reader", database, found.cuts[found.last]) == last == [*range(1, last[-1] + 1)]


def test_every_subset_of_a_small_disk_is_there(tmp_path: Path) -> None:
    known, new = tmp_path / "known", str(tmp_path / "new")
    known.write_bytes(b"a" * 1024)
    disk = TracedDisk(tmp_path)
    for op in (
        Op("write", str(known), 0, b"b" * 512),
        Op("write", str(known), 512, b"c" * 512),
        Op("create", new),
        Op("write", new, 0, b"n" * 1024),
    ):
        disk.take(op)
    count, found, keys = 0, [], set()
    for enumerated, states in Every(disk).at():
        count += enumerated
        for key, make in states:
            found.append((make()[str(known)], make().get(new)))
            assert key_of(disk, make()) == key
            keys.add(key)
    assert len(set(found)) == len(keys) == count
    contents = {one * 512 + other * 512 for one in (b"a", b"b") for other in (b"a", b"c")}
    whole, torn = b"n" * 1024, (b"n" * 512, b"\0" * 512 + b"n" * 512)
    cuts = {b"a" * 1024, b"b" * 512 + b"a" * 512, b"b" * 512 + b"c" * 512}
    last_alone = b"a" * 512 + b"c" * 512
    assert set(found) == (
        {(one, None) for one in contents}
        | {(one, other) for one in cuts for other in (b"", whole)}
        | {(last_alone, other) for other in (b"", whole)}
        | {(one, other) for one in (b"a" * 1024, b"b" * 512 + b"c" * 512) for other in torn}
    )


def test_a_wal_that_is_not_the_known_one_counts_byte_by_byte() -> None:
    magic = b"\x37\x7f\x06\x82"
    one, other = magic + bytes(60), magic + bytes(59) + b"\1"
    assert what_counts("a-wal", one, (b"", b"")) != what_counts("a-wal", other, (b"", b""))
    assert what_counts("a-wal", bytes(40), (one,)) == what_counts("a-wal", b"", (one,))
    assert what_counts("a.db", one, (one,)) != what_counts("a.db", other, (one,))
