"""Compression: equal again, bounded, and refused by name."""

from __future__ import annotations

import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import ProtocolViolationError
from replicate.limits import BATCH_BYTES_MAX, MIB
from replicate.wire.compression import Compressor, Decompressor


@given(st.binary(min_size=1, max_size=200), st.integers(2, 50))
def test_round_trip(data: bytes, times: int) -> None:
    packed = Compressor().compress(data * times)
    if packed is not None:
        assert len(packed) < len(data * times)
        assert Decompressor().decompress(packed, len(data * times)) == data * times


def test_what_does_not_shrink_is_left_alone() -> None:
    assert Compressor().compress(b"short") is None
    assert Compressor().compress(bytes(range(256)) * 2) is not None
    noise = zstandard.ZstdCompressor(level=19).compress(b"".join(i.to_bytes(4, "big") for i in range(50_000)))
    assert Compressor().compress(noise) is None


def refused(data: bytes, raw_bytes: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolationError):
            Decompressor().decompress(data, raw_bytes)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_bombs_are_refused_unopened() -> None:
    """Fault 69."""
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(256 * MIB))
    assert len(bomb) < 64 * 1024
    refused(bomb, 1000)
    refused(bomb, BATCH_BYTES_MAX)
    refused(bomb, 256 * MIB)
    stream = zstandard.ZstdCompressor().compressobj()
    refused(stream.compress(bytes(64 * MIB)) + stream.flush(), BATCH_BYTES_MAX)


def test_wrong_sizes_and_leftovers() -> None:
    packed = zstandard.ZstdCompressor().compress(bytes(1000))
    refused(packed, 999)
    refused(packed, 1001)
    refused(packed, 0)
    refused(packed + b"x", 1000)
    refused(packed + packed, 1000)
    refused(packed[:-1], 1000)
    refused(b"", 1000)
    dictionary = zstandard.ZstdCompressionDict(
        b"a dictionary of some words " * 40, dict_type=zstandard.DICT_TYPE_RAWCONTENT
    )
    assert dictionary.dict_id() == 0  # a raw dictionary leaves no trace: decompressing fails or gives other bytes
    wide = zstandard.ZstdCompressionParameters(window_log=24, write_content_size=False)
    refused(zstandard.ZstdCompressor(compression_params=wide).compress(bytes(1000)), 1000)


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1))
def test_random_bytes(data: bytes, raw_bytes: int) -> None:
    with pytest.raises(ProtocolViolationError):
        Decompressor().decompress(b"\xff" + data, raw_bytes)


@given(st.data())
def test_mutated_bytes(data: st.DataObject) -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(b"some words and some words again " * 20))
    index = data.draw(st.integers(0, len(packed) - 1))
    packed[index] = data.draw(st.integers(0, 255))
    try:
        assert len(Decompressor().decompress(bytes(packed), 640)) == 640
    except ProtocolViolationError:
        pass
