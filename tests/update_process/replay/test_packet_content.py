"""What a packet brings, without an instance that takes it: all of it, in order, after all of it has verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import DamagedError
from replicate.instance.instance import Instance
from replicate.transfer.packet.export import PACKET_BYTES_MIN
from replicate.transfer.packet.judge_packets import Offered
from replicate.transfer.packet.read import PacketReader
from tests.harness.packets import export, take
from tests.harness.pair import Pair
from update_process.replay.packet_content import transactions_in, vector_here


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    made.seed()
    return made


def write(pair: Pair, count: int, rows: int = 1) -> int:
    connection = pair.connect()
    for _ in range(count):
        connection.executemany("INSERT INTO t (a) VALUES (?)", [("x" * 99,) for _ in range(rows)])
        connection.commit()
    connection.close()
    return pair.last_seqno()


def offered(path: Path) -> Offered:
    with PacketReader(path) as reader:
        return Offered(path, reader.summary, reader.bytes)


def shown(tmp_path: Path, path: Path) -> list[tuple[int, str, int]]:
    stage = tmp_path / f"stage-{path.name}"
    stage.mkdir()
    return [(one.seqno, one.kind, len(one.changes)) for one in transactions_in(offered(path), None, stage)]


def test_each_transaction_with_its_changes_and_the_rows_of_large_ones(pair: Pair, tmp_path: Path) -> None:
    first = pair.last_seqno() + 1
    write(pair, 2)
    last = write(pair, 1, rows=8_000)
    (made,) = export(pair.primary, tmp_path / "out", "west", max_bytes=2**40)
    found = shown(tmp_path, made.path)
    assert found[:2] == [(first, "TRANSACTION", 1), (first + 1, "TRANSACTION", 1)]
    assert {seqno for seqno, _, _ in found[2:]} == {last}
    assert sum(count for _, kind, count in found if kind == "PART") == 8_000
    write(pair, 1)
    (later,) = export(pair.primary, tmp_path / "out", "west")
    assert [seqno for seqno, _, _ in shown(tmp_path, later.path)] == [last + 1], "nothing of what was before it"


def test_of_a_large_one_that_goes_on_elsewhere_nothing_is_told(pair: Pair, tmp_path: Path) -> None:
    first = write(pair, 1)
    connection = pair.connect()
    connection.executemany("INSERT INTO t (a) VALUES (randomblob(?))", [(900_000,)] * 14)
    connection.commit()
    connection.close()
    packets = export(pair.primary, tmp_path / "out", "west", max_bytes=PACKET_BYTES_MIN)
    assert len(packets) > 1
    assert shown(tmp_path, packets[0].path) == [(first, "TRANSACTION", 1)]
    assert shown(tmp_path, packets[1].path) == []


def test_a_damaged_one_tells_nothing_and_a_receipt_brings_nothing(pair: Pair, tmp_path: Path) -> None:
    write(pair, 3)
    (made,) = export(pair.primary, tmp_path / "out", "west")
    data = bytearray(made.path.read_bytes())
    data[60] ^= 1
    made.path.write_bytes(data)
    with pytest.raises(DamagedError):
        shown(tmp_path, made.path)
    (receipt,) = export(pair.primary, tmp_path / "out", "west", receipt=True)
    assert shown(tmp_path, receipt.path) == []


def test_what_is_here_is_told_without_the_door(pair: Pair, tmp_path: Path) -> None:
    write(pair, 2)
    (made,) = export(pair.primary, tmp_path / "out", "west")
    origin = pair.primary.content.origin.key
    before = vector_here(Instance.open(pair.secondary.path)).last(origin)
    take(pair.secondary, made.path)
    assert vector_here(Instance.open(pair.secondary.path)).last(origin) == before + 2
