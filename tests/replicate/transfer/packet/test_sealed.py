"""A sealed packet says for whom it is, is opened chunk by chunk, and what was changed, moved or cut is found."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from replicate.errors import (
    AlreadyExistsError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    UsageError,
    WrongInstanceError,
)
from replicate.security.sealing import KEY_BYTES, TAG_BYTES, ChunkCipher
from replicate.transfer.packet.export import PACKET_BYTES_MIN, ExportRun, certificate_of, sealer_of, signer_of
from replicate.transfer.packet.judge_packets import unsealer_of
from replicate.transfer.packet.read import PacketReader
from replicate.transfer.packet.sealed import (
    CHUNK_BYTES,
    SEALED,
    PacketSealer,
    SealedPacket,
    SealedRecord,
    is_sealed,
    plain_bytes_within,
)
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES
from tests.harness.packets import export, now_ns, take
from tests.harness.pair import Pair
from tests.replicate.transfer.packet.test_judge_packets import certify

KEY = bytes(range(KEY_BYTES))


def file_of(plain: bytes, piece: int = CHUNK_BYTES) -> bytes:
    """Sealed for west, the key being its own seal."""
    sealer = PacketSealer("west", KEY, ChunkCipher(KEY))
    made = [sealer.begin()]
    for at in range(0, len(plain), piece):
        made += sealer.add(plain[at : at + piece])
    return b"".join([*made, sealer.end()])


def opened(raw: bytes) -> SealedPacket:
    made = SealedPacket(lambda position, count: raw[position : position + count], len(raw), "x")
    made.open(lambda sealed, _target, _where: sealed)
    return made


def unpacked(raw: bytes) -> bytes:
    """As a reader does it: the end first, then all of it."""
    made, data = opened(raw), b""
    while piece := made.read(len(data), 300_000):
        data += piece
    assert len(data) == made.bytes
    return data


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 2**22 - 5])
def test_it_comes_back(size: int) -> None:
    plain = os.urandom(size)
    for piece in (CHUNK_BYTES, 300_007, 2**23):
        raw = file_of(plain, piece)
        assert is_sealed(raw)
        assert unpacked(raw) == plain
        assert size <= plain_bytes_within(len(raw) + 1024)
    assert opened(raw).target == "west"


@pytest.mark.parametrize("bound", [2**20, 2**23, 2**30 + 1, 2**40])
def test_a_packet_keeps_within_its_bound(bound: int) -> None:
    plain = plain_bytes_within(bound)
    chunks = -(-plain // CHUNK_BYTES)
    longest = PREFIX_BYTES + HEAD_BYTES + 1024 + plain + chunks * (HEAD_BYTES + TAG_BYTES)
    assert longest <= bound < longest + 2048 + bound // 2**14


def test_every_changed_byte_and_every_cut_is_found() -> None:
    raw = file_of(b"a packet")
    for place in range(8, len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 0x21
        with pytest.raises((DamagedError, FormatUnknownError)):
            unpacked(bytes(changed))
    for end in range(8, len(raw)):
        with pytest.raises(DamagedError):
            unpacked(raw[:end])
    for more in (b"x", raw, raw[-(HEAD_BYTES + 8 + TAG_BYTES) :]):
        with pytest.raises(DamagedError):
            unpacked(raw + more)


def chunks_of(raw: bytes) -> tuple[bytes, list[bytes]]:
    """What says for whom it is, and the sealed chunks without their heads."""
    stride, begin = HEAD_BYTES + CHUNK_BYTES + TAG_BYTES, len(file_of(b"1")) - (HEAD_BYTES + 1 + TAG_BYTES)
    return raw[:begin], [raw[at + HEAD_BYTES : at + stride] for at in range(begin, len(raw), stride)]


def joined(front: bytes, chunks: list[bytes]) -> bytes:
    """A file whose records check, as one would make who wants to deceive."""
    made = front
    for chunk in chunks:
        made += b"".join(SEALED.pack_record(SealedRecord.CHUNK, len(made), chunk))
    return made


def test_chunks_are_not_moved_left_out_doubled_or_brought_from_another_file() -> None:
    raw = file_of(os.urandom(3 * CHUNK_BYTES))
    front, (first, second, last) = chunks_of(raw)
    assert joined(front, [first, second, last]) == raw
    other = ChunkCipher(bytes(KEY_BYTES)).seal(bytes(CHUNK_BYTES), 0, is_last=False)
    short = ChunkCipher(KEY).seal(b"short", 1, is_last=False)
    for chunks in (
        [second, first, last],
        [first, last],
        [first, second],  # cut between two chunks
        [first],
        [],
        [first, second, last, last],
        [first, second, second, last],
        [other, second, last],
        [first, short, last],
        [first, last[:TAG_BYTES], last],
    ):
        with pytest.raises(DamagedError):
            unpacked(joined(front, chunks))
    for chunks in ([first, second], []):  # at once, and not after the first two are read
        with pytest.raises(DamagedError, match="cut"):
            opened(joined(front, chunks))


def test_no_key_of_another_length_is_taken() -> None:
    sealer = PacketSealer("west", b"short", ChunkCipher(KEY))
    with pytest.raises(DamagedError, match="a key of 5 bytes"):
        opened(sealer.begin() + sealer.end())


def test_one_that_was_sealed_as_a_whole_is_refused_by_name() -> None:
    prefix = SEALED.pack_prefix(1)
    with pytest.raises(FormatUnknownError, match="as a whole") as caught:
        opened(prefix + bytes(100))
    assert "packet recover" in caught.value.do


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    return made


def sealed_export(pair: Pair, *targets: str) -> Path:
    (pair.directory / "sealed").mkdir(exist_ok=True)
    with ExportRun(
        pair.primary,
        sign=signer_of(pair.primary),
        sealer=lambda name: sealer_of(pair.primary, name, time.time()),
        release="test",
        now_ns=now_ns,
    ) as run:
        (made,) = run.increments(targets, lambda name: pair.directory / "sealed" / name, max_bytes=2**24)
    return made.path


def test_from_site_to_site(pair: Pair) -> None:
    pair.primary.register_peer("off", "", 0)
    pair.primary.reload()
    pair.write(3)
    with pytest.raises(NotFoundError, match="has no certificate"):
        sealed_export(pair, "west")
    certify(pair)
    with pytest.raises(NotFoundError, match="the certificate of west is not here") as caught:
        sealed_export(pair, "west")
    assert str(certificate_of(pair.primary, "west")) in caught.value.where
    (receipt,) = export(pair.secondary, pair.directory / "back", "east", receipt=True)
    take(pair.primary, receipt.path)
    assert (
        certificate_of(pair.primary, "west").read_bytes() == (pair.secondary.path / "tls/certificate.pem").read_bytes()
    )
    path = sealed_export(pair, "west")
    with pytest.raises(UsageError, match="sealed for west"):
        PacketReader(path)
    with pytest.raises(WrongInstanceError, match="sealed for west, and this instance is east"):
        take(pair.primary, path)
    assert take(pair.primary, path.parent).for_others == 1
    take(pair.secondary, path)
    assert pair.last_seqno(pair.secondary) == pair.last_seqno()
    assert os.listdir(path.parent) == [path.name]


def test_a_large_one_is_opened_by_chunks_and_its_bound_is_that_of_the_file(pair: Pair) -> None:
    """Several chunks, whose pieces do not fit their borders; nothing of it is on the disk in plain."""
    certify(pair)
    (receipt,) = export(pair.secondary, pair.directory / "back", "east", receipt=True)
    take(pair.primary, receipt.path)
    with pair.connect() as connection:
        connection.execute("CREATE TABLE filling (id INTEGER PRIMARY KEY, content BLOB)")
        for _ in range(40):
            connection.execute("INSERT INTO filling (content) VALUES (?)", (os.urandom(300_000),))
            connection.commit()
    outbox = pair.directory / "sealed"
    outbox.mkdir()
    with ExportRun(
        pair.primary,
        sign=signer_of(pair.primary),
        sealer=lambda name: sealer_of(pair.primary, name, time.time()),
        release="test",
        now_ns=now_ns,
    ) as run:
        made = list(run.increments(["west"], lambda name: outbox / name, max_bytes=PACKET_BYTES_MIN))
    assert len(made) > 1
    for one in made:
        assert one.bytes == one.path.stat().st_size <= PACKET_BYTES_MIN
        with PacketReader(one.path, unsealer_of(pair.secondary)) as reader:
            assert reader.is_sealed
            assert reader.bytes > 2 * CHUNK_BYTES or one is made[-1]
            reader.verify()
    damaged = bytearray(made[0].path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    whole = made[0].path.read_bytes()
    made[0].path.write_bytes(damaged)
    with pytest.raises(DamagedError, match="check of a record CHUNK"):
        take(pair.secondary, outbox)
    made[0].path.write_bytes(whole)
    take(pair.secondary, outbox)
    assert pair.last_seqno(pair.secondary) == pair.last_seqno()


def test_a_sealed_packet_is_for_one(pair: Pair) -> None:
    certify(pair)
    pair.write(1)
    with (
        ExportRun(
            pair.primary, sealer=lambda name: sealer_of(pair.primary, name, 0.0), release="test", now_ns=now_ns
        ) as run,
        pytest.raises(UsageError, match="for one target"),
    ):
        run.receipt(["west", "off"], lambda name: pair.directory / name)
    (pair.directory / "there.packet").write_bytes(b"")
    certificate_of(pair.primary, "west").parent.mkdir()
    certificate_of(pair.primary, "west").write_bytes((pair.secondary.path / "tls/certificate.pem").read_bytes())
    with (
        ExportRun(
            pair.primary, sealer=lambda name: sealer_of(pair.primary, name, time.time()), release="test", now_ns=now_ns
        ) as run,
        pytest.raises(AlreadyExistsError),
    ):
        run.receipt(["west"], lambda _name: pair.directory / "there.packet")
