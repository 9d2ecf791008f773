"""What is kept for a consumer: by its position, by a seed on its way, by age; and files that make no sense say so."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from replicate.errors import DamagedError, FormatUnknownError, ReplicateError
from replicate.instance.consumers import (
    Consumer,
    needed_seqno,
    read_aged,
    read_consumer,
    read_hold,
    remove_consumer,
    told_seqno,
    write_aged,
    write_consumer,
    write_hold,
)

WEST = Consumer("west", 120, "ab" * 16, 1_700_000_000_000_000_000)


def test_a_position_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert (read_consumer(tmp_path, "west"), read_hold(tmp_path, "west"), read_aged(tmp_path, "west")) == (
        None,
        None,
        0,
    )
    for consumer in (WEST, Consumer("west"), Consumer("west", 2**63, "", 0, True)):
        write_consumer(tmp_path, consumer)
        assert read_consumer(tmp_path, "west") == consumer
    assert read_consumer(tmp_path, "east") is None


@pytest.mark.parametrize(
    ("acknowledged", "held", "aged", "needs_seed"),
    [*itertools.product((0, 50, 120), (None, 0, 60, 200), (None, 55, 300), (False, True))],
)
def test_what_is_kept(tmp_path: Path, acknowledged: int, held: int | None, aged: int | None, needs_seed: bool) -> None:
    consumer = Consumer("west", acknowledged, needs_seed=needs_seed)
    write_hold(tmp_path, "west", held)
    write_aged(tmp_path, "west", aged)
    if needs_seed:  # it begins with its next seed: of what it had nothing is kept
        expected = held
    else:
        expected = acknowledged if held is None else min(held, acknowledged)
        expected = max(expected, aged or 0)
    assert needed_seqno(tmp_path, consumer) == expected


def test_the_position_of_a_seed_on_its_way_is_no_word_of_the_consumer(tmp_path: Path) -> None:
    silent = Consumer("west", 120)
    assert told_seqno(tmp_path, silent) == 120
    write_hold(tmp_path, "west", 120)
    assert told_seqno(tmp_path, silent) == 0
    assert told_seqno(tmp_path, WEST) == 120
    write_hold(tmp_path, "west", None)
    assert told_seqno(tmp_path, silent) == 120


def test_of_one_that_is_removed_nothing_is_left(tmp_path: Path) -> None:
    write_consumer(tmp_path, WEST)
    write_hold(tmp_path, "west", 1)
    write_aged(tmp_path, "west", 2)
    write_consumer(tmp_path, Consumer("east"))
    remove_consumer(tmp_path, "west")
    assert [path.name for path in tmp_path.iterdir()] == ["east.json"]
    remove_consumer(tmp_path, "west")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", '{"seqno": "x"}', '{"seqno": null}', '{"seqno": 1e999}', "{}", "[" * 100_000, "\x00"],
)
def test_what_makes_no_sense_is_damage_with_something_to_do(tmp_path: Path, text: str) -> None:
    for name in ("west.json", "west.hold", "west.aged"):
        (tmp_path / name).write_text(text)
    for read in (read_consumer, read_hold, read_aged):
        with pytest.raises(DamagedError) as caught:
            read(tmp_path, "west")
        assert caught.value.do.startswith("Remove the file")
        assert caught.value.where.startswith(str(tmp_path))
    with pytest.raises(DamagedError):
        needed_seqno(tmp_path, WEST)


def test_a_format_of_a_later_release_is_named(tmp_path: Path) -> None:
    for name in ("west.json", "west.hold", "west.aged"):
        (tmp_path / name).write_text('{"format": 2, "seqno": 7}')
    for read in (read_consumer, read_hold, read_aged):
        with pytest.raises(FormatUnknownError, match="format 2, this release knows 1"):
            read(tmp_path, "west")


def test_files_of_the_first_releases_name_no_format(tmp_path: Path) -> None:
    (tmp_path / "west.hold").write_text('{"seqno": 7}')
    assert read_hold(tmp_path, "west") == 7


@pytest.mark.parametrize("name", ["", "../west", "_archive", "a/b", "x" * 200])
def test_a_name_cannot_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    for call in (read_consumer, read_hold, read_aged, remove_consumer):
        with pytest.raises(ReplicateError):
            call(tmp_path, name)
