"""The epochs' file: what was stored comes back, and what does not verify is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.errors import DamagedError, FormatUnknownError, UsageError
from replicate.transfer.packet.epochs import EpochRow, Epochs, LackingPacket
from replicate.transfer.packet.epochs_file import NAME, change_epochs, read_epochs
from replicate.transfer.packet.format import OriginName
from tests.harness.packets import ORIGIN, position, summary


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "locks").mkdir()
    consumers = tmp_path / "consumers"
    consumers.mkdir(mode=0o700)
    return consumers


def full(epochs: Epochs) -> Epochs:
    epochs = epochs.heard("west", EpochRow(position(5), 3)).exported(summary(5, 9, number=1), "f.packet", 77)
    named = epochs.named([OriginName(ORIGIN, "east", 4)])
    return Epochs(named.replicas, named.exports, named.last_number, named.origins, (("packet 3 of east", 12),))


def test_without_packets_there_is_none(directory: Path) -> None:
    assert read_epochs(directory) == Epochs()
    assert change_epochs(directory, lambda known: known) == Epochs()
    assert not (directory / NAME).exists()


def test_it_comes_back(directory: Path) -> None:
    after = change_epochs(directory, full)
    assert read_epochs(directory) == after
    assert (directory / NAME).stat().st_mode & 0o777 == 0o600


def test_who_was_level_comes_back_and_costs_nothing_where_nobody_was(directory: Path) -> None:
    change_epochs(directory, full)
    assert "level" not in json.loads((directory / NAME).read_text())
    after = change_epochs(directory, lambda known: replace(known, level={"a": 3, "b": 2}))
    assert read_epochs(directory) == after
    assert (after.were_level(3), after.were_level(4)) == ({"a"}, set())


def test_what_is_lacking_comes_back_and_costs_nothing_where_nothing_is(directory: Path) -> None:
    change_epochs(directory, full)
    assert "lacking" not in json.loads((directory / NAME).read_text())
    lacking = LackingPacket("packet 3 of east needs 6 to 9", "there: packet recover", 9)
    after = change_epochs(directory, lambda known: replace(known, lacking=lacking))
    assert read_epochs(directory) == after
    assert after.lacking == lacking
    assert "lacking_needs" not in json.loads((directory / NAME).read_text())
    between = replace(lacking, needs=((ORIGIN, 9), (2**63, 1)))
    change_epochs(directory, lambda known: replace(known, lacking=between))
    assert read_epochs(directory).lacking == between


def test_a_change_that_fails_changes_nothing(directory: Path) -> None:
    before = change_epochs(directory, full)

    def fails(_known: Epochs) -> Epochs:
        raise UsageError("no")

    with pytest.raises(UsageError):
        change_epochs(directory, fails)
    assert read_epochs(directory) == before


def test_damage_is_refused_and_says_what_to_do(directory: Path) -> None:
    change_epochs(directory, full)
    path = directory / NAME
    whole = path.read_text()
    for wrong in ("", "[]", "{}", whole.replace('"seqno": 9', '"seqno": 8'), whole[:-9], whole.replace("west", "we")):
        path.write_text(wrong)
        with pytest.raises(DamagedError) as caught:
            read_epochs(directory)
        assert "receipt" in caught.value.do
        assert caught.value.where == str(path)


def test_a_later_format_is_refused_by_name(directory: Path) -> None:
    change_epochs(directory, full)
    path = directory / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(FormatUnknownError, match="format 2, this release knows 1"):
        read_epochs(directory)
