"""A sealed packet says for whom it is, and what was changed or cut is found before it is opened."""

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
from replicate.transfer.packet import sealed as module
from replicate.transfer.packet.export import ExportRun, certificate_of, sealer_of, signer_of
from replicate.transfer.packet.read import PacketReader
from replicate.transfer.packet.sealed import CHUNK_BYTES, in_memory, is_sealed, pack_sealed, unpack_sealed
from tests.harness.packets import export, now_ns, take
from tests.harness.pair import Pair
from tests.replicate.transfer.packet.test_offered import certify


def unpacked(raw: bytes) -> tuple[str, bytes]:
    return unpack_sealed(lambda position, count: raw[position : position + count], len(raw), "x")


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_it_comes_back(size: int) -> None:
    ciphertext = os.urandom(size)
    raw = b"".join(pack_sealed(ciphertext, "west"))
    assert is_sealed(raw)
    assert unpacked(raw) == ("west", ciphertext)


def test_every_changed_byte_and_every_cut_is_found() -> None:
    raw = b"".join(pack_sealed(b"ciphertext", "west"))
    for place in range(8, len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 0x21
        with pytest.raises((DamagedError, FormatUnknownError)):
            unpacked(bytes(changed))
    prefix = len(b"".join(list(pack_sealed(b"", "west"))[:1]))
    ends = [len(b"".join(list(pack_sealed(b"ciphertext", "west"))[:count])) for count in (1, 2, 3)]
    for end in (prefix, *ends):  # whole records, and no end
        with pytest.raises(DamagedError):
            unpacked(raw[:end])
    with pytest.raises(DamagedError):
        unpacked(raw + raw[ends[1] : ends[2]])


def test_one_that_no_memory_would_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="too large"):
        unpacked(b"".join(pack_sealed(bytes(2000), "west")))


def test_what_is_opened_is_on_no_disk() -> None:
    fd = in_memory(b"plain", "x")
    try:
        assert os.pread(fd, 9, 0) == b"plain"
        assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
    finally:
        os.close(fd)


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
        seal=lambda name: sealer_of(pair.primary, name, time.time()),
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


def test_a_sealed_packet_is_for_one(pair: Pair) -> None:
    certify(pair)
    pair.write(1)
    with (
        ExportRun(
            pair.primary, seal=lambda name: sealer_of(pair.primary, name, 0.0), release="test", now_ns=now_ns
        ) as run,
        pytest.raises(UsageError, match="for one target"),
    ):
        run.receipt(["west", "off"], lambda name: pair.directory / name)
    (pair.directory / "there.packet").write_bytes(b"")
    certificate_of(pair.primary, "west").parent.mkdir()
    certificate_of(pair.primary, "west").write_bytes((pair.secondary.path / "tls/certificate.pem").read_bytes())
    with (
        ExportRun(
            pair.primary, seal=lambda name: sealer_of(pair.primary, name, time.time()), release="test", now_ns=now_ns
        ) as run,
        pytest.raises(AlreadyExistsError),
    ):
        run.receipt(["west"], lambda _name: pair.directory / "there.packet")
