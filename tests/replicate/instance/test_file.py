"""The instance file: whatever may stand in it comes back, and any byte that is changed is noticed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicate.errors import (
    ConfigurationError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    PermissionRefusedError,
    UsageError,
)
from replicate.instance.file import (
    FORMATS,
    Frozen,
    InstanceFile,
    PeerEntry,
    RegionEntry,
    Successor,
    check_name,
    check_unique,
    decode,
    encode,
    read_file,
)
from replicate.limits import PARTITION_MAX
from replicate.model.elements import PLACED
from replicate.model.partitions import ONLY_DEFAULT, Partitions
from tests.harness.descriptors import open_descriptors

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
UUIDS = st.binary(min_size=16, max_size=16)
NUMBERS = st.integers(0, 2**63)
TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
"""Half a surrogate among them: that is how Python tells of a byte in a path that is no UTF-8."""
PATHS = TEXTS.map(lambda text: Path("/", text.replace("\0", "")))
SOME = st.lists(st.integers(1, PARTITION_MAX), max_size=4, unique=True).map(lambda found: tuple(sorted(found)))
TABLES = st.dictionaries(st.tuples(NAMES, TEXTS), st.one_of(TEXTS, st.just("(id, name)")), max_size=3)
PARTITIONS = st.one_of(
    st.just(ONLY_DEFAULT),
    st.builds(
        Partitions,
        SOME.map(lambda numbers: {1: "DEFAULT"} | {number: f"of {number}" for number in numbers if number > 1}),
        limit=st.integers(10, PARTITION_MAX),
        keeps_back=st.booleans(),
        elements=st.dictionaries(st.sampled_from(PLACED), st.just(1), max_size=2),
    ),
)
FILES = st.builds(
    InstanceFile,
    UUIDS,
    UUIDS,
    NAMES,
    st.integers(1, 2**40),
    st.sampled_from(["primary", "secondary"]),
    NUMBERS,
    TEXTS,
    regions=st.lists(st.builds(RegionEntry, st.integers(0, 63), NAMES, UUIDS, PATHS), max_size=3).map(tuple),
    peers=st.lists(
        st.builds(PeerEntry, NAMES, TEXTS, st.integers(0, 65535), TEXTS, st.booleans(), st.none() | SOME, TEXTS, TEXTS),
        max_size=3,
    ).map(tuple),
    next_region_id=st.integers(0, 64),
    home=TEXTS,
    waiting=st.lists(NAMES, max_size=2).map(tuple),
    successor=st.none()
    | st.builds(Successor, NAMES, NUMBERS, st.booleans())
    | st.builds(Successor, NAMES, NUMBERS, st.booleans(), st.integers(1, 2**32), NUMBERS),
    is_feed=st.booleans(),
    overruled=NUMBERS,
    is_restored=st.booleans(),
    frozen=st.none() | st.builds(Frozen, NUMBERS, TEXTS),
    partitions=PARTITIONS,
    subscription=st.none() | SOME,
    held=st.none() | SOME,
    streamed=st.dictionaries(st.integers(1, PARTITION_MAX), NUMBERS, max_size=3),
    removed=SOME,
    rows=TABLES,
    held_rows=TABLES,
)
PLAIN = InstanceFile(bytes(16), bytes(range(16)), "east", 1, "primary", 0, "1:2")


@settings(max_examples=40)
@given(content=FILES)
def test_whatever_stands_in_it_comes_back(content: InstanceFile) -> None:
    raw = encode(content)
    assert decode(raw, "x") == content
    assert encode(decode(raw, "x")) == raw
    assert json.loads(raw)["format"] in FORMATS


@settings(max_examples=40)
@given(content=FILES, data=st.data())
def test_a_changed_byte_is_refused_by_name_or_changes_nothing(content: InstanceFile, data: st.DataObject) -> None:
    raw = bytearray(encode(content))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(DamagedError, FormatUnknownError):
        assert decode(bytes(raw), "x") == content  # white space


JSON = st.recursive(st.none() | st.integers() | TEXTS, lambda more: st.lists(more) | st.dictionaries(TEXTS, more))


@settings(max_examples=40)
@given(raw=st.binary(max_size=60) | JSON.map(lambda one: json.dumps(one).encode()))
def test_anything_else_is_refused_by_name(raw: bytes) -> None:
    with pytest.raises(DamagedError, match="instance file") as caught:
        decode(raw, "x")
    assert caught.value.where == "x"
    assert "instance remove --force" in caught.value.do


@settings(max_examples=40)
@given(content=FILES, size=st.integers(0, 10_000))
def test_half_of_one_is_refused(content: InstanceFile, size: int) -> None:
    raw = encode(content).rstrip()
    with pytest.raises(DamagedError, match="not readable"):
        decode(raw[: min(size, len(raw) - 1)], "x")


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "x" * 64, "a\n", ".."])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match="is no region name"):
        check_name(name, "region")


def test_no_two_bear_one_name_and_no_two_regions_one_path() -> None:
    def with_regions(*entries: RegionEntry) -> InstanceFile:
        return InstanceFile(bytes(16), bytes(16), "east", 1, "primary", 0, "1:2", regions=entries)

    check_unique(PLAIN)
    one = RegionEntry(0, "main", bytes(16), Path("/a.db"))
    check_unique(with_regions(one, RegionEntry(1, "two", bytes(16), Path("/b.db"))))
    with pytest.raises(ConfigurationError, match="region name: main"):
        check_unique(with_regions(one, RegionEntry(1, "main", bytes(16), Path("/b.db"))))
    with pytest.raises(ConfigurationError, match=r"region path: /a\.db"):
        check_unique(with_regions(one, RegionEntry(1, "two", bytes(16), Path("/a.db"))))


def test_a_link_is_not_followed_and_what_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_bytes(encode(PLAIN))
    assert read_file(tmp_path / "real.json") == PLAIN
    (tmp_path / "link.json").symlink_to("real.json")
    with pytest.raises(PermissionRefusedError, match="cannot be read"):
        read_file(tmp_path / "link.json")
    with pytest.raises(NotFoundError, match="no instance here"):
        read_file(tmp_path / "none.json")


def test_what_is_no_file_is_refused_at_once_and_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = open_descriptors()
    with pytest.raises(PermissionRefusedError, match="cannot be read: Is a directory") as caught:
        read_file(tmp_path / "directory")
    assert caught.value.where == str(tmp_path / "directory")
    with pytest.raises(DamagedError, match="not readable"):
        read_file(tmp_path / "pipe")
    assert open_descriptors() == before
