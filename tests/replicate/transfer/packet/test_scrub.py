"""What is removed: what all have confirmed; of peers by packets also what was exported long enough ago, never more."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.errors import JournalMissingError
from replicate.instance.consumers import Consumer, needed_seqno, read_aged, read_consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.transfer.packet.epochs import Epochs
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.scrub import DAY_NS, age, aged_by, scrub
from tests.harness.packets import export, now_ns, take
from tests.harness.pair import Pair

SETTINGS = "[journal]\npool_bytes = 1048576\nsegment_bytes = 1048576\n"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Its secondary gets packets."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, settings=SETTINGS)
    made.seed()
    made.primary.register_peer("west", "", 0, replace_address=True)
    made.primary.reload()
    return made


def write(pair: Pair, count: int) -> int:
    connection = pair.connect()
    for _ in range(count):
        connection.execute("INSERT INTO entry VALUES ('t', 1.0, ?)", (os.urandom(300_000),))
        connection.commit()
    connection.close()
    return pair.last_seqno()


def segments(pair: Pair) -> int:
    return len(list(pair.primary.journal_directory.glob("*.journal")))


def test_what_is_not_confirmed_is_kept(pair: Pair) -> None:
    write(pair, 12)
    export(pair.primary, pair.directory / "out", "west")
    assert scrub(pair.primary, before_ns=None, upto=None, dry_run=False).removed == []
    (kept,) = scrub(pair.primary, before_ns=None, upto=None, dry_run=True).kept_for
    assert (kept.peer, kept.aged) == ("west", False)


def test_what_was_exported_before_a_time_goes_and_nothing_after_it(pair: Pair) -> None:
    middle = write(pair, 8)
    paths = [one.path for one in export(pair.primary, pair.directory / "out", "west")]
    write(pair, 8)
    count = segments(pair)
    would = scrub(pair.primary, before_ns=now_ns() + DAY_NS, upto=None, dry_run=True)
    assert segments(pair) == count
    assert read_aged(pair.primary.consumers_directory, "west") == 0
    done = scrub(pair.primary, before_ns=now_ns() + DAY_NS, upto=None, dry_run=False)
    assert done == would
    assert 0 < len(done.removed) == count - segments(pair)
    (kept,) = done.kept_for
    assert (kept.seqno, kept.aged) == (middle, True)
    later = export(pair.primary, pair.directory / "out", "west")
    take(pair.secondary, *paths, *(one.path for one in later))  # nothing after the packets was removed
    assert pair.last_seqno(pair.secondary) == pair.last_seqno()


def test_an_upper_bound_is_kept(pair: Pair) -> None:
    first = pair.last_seqno()
    write(pair, 12)
    export(pair.primary, pair.directory / "out", "west")
    assert scrub(pair.primary, before_ns=now_ns() + DAY_NS, upto=first, dry_run=False).removed == []
    all_of_it = scrub(pair.primary, before_ns=None, upto=None, dry_run=True).removed
    some = scrub(pair.primary, before_ns=None, upto=all_of_it[1], dry_run=False).removed
    assert some == all_of_it[: len(some)]
    assert 0 < len(some) < len(all_of_it)


def test_on_a_line_only_what_is_confirmed_counts(pair: Pair) -> None:
    write(pair, 12)
    export(pair.primary, pair.directory / "out", "west")
    pair.primary.register_peer("west", "127.0.0.1", 7430, replace_address=True)
    pair.primary.reload()
    assert scrub(pair.primary, before_ns=now_ns() + DAY_NS, upto=None, dry_run=False).removed == []


def test_a_lost_packet_is_gone_with_its_content_and_says_so(pair: Pair) -> None:
    write(pair, 8)
    export(pair.primary, pair.directory / "out", "west")
    write(pair, 8)
    assert scrub(pair.primary, before_ns=now_ns() + DAY_NS, upto=None, dry_run=False).removed
    change_epochs(pair.primary.consumers_directory, lambda known: known.recovered("west", 1))
    with pytest.raises(JournalMissingError, match="has lost some"):
        export(pair.primary, pair.directory / "out", "west")
    assert aged_by(pair.primary, read_epochs(pair.primary.consumers_directory), now_ns() + DAY_NS)["west"] < 8


@pytest.mark.slow
def test_a_hundred_one_way_rounds(pair: Pair) -> None:
    """Nothing ever comes back; the journal keeps keep_days, and the other side has all."""
    (pair.primary.path / "replicate.toml").write_text(SETTINGS + "[packets]\nkeep_days = 2\n")
    pair.primary = Instance.open(pair.primary.path)
    now = now_ns()
    for day in range(100):
        write(pair, 1)
        for one in export(pair.primary, pair.directory / "out", "west"):
            take(pair.secondary, one.path, remove=True)
        change_epochs(pair.primary.consumers_directory, partial(_moved, day=day, now=now))
        age(pair.primary, now + day * DAY_NS)
        scrub(pair.primary, before_ns=None, upto=None, dry_run=False)
        assert segments(pair) <= 5
    consumer = read_consumer(pair.primary.consumers_directory, "west")
    assert consumer is not None
    assert consumer.acknowledged_seqno < 5
    assert needed_seqno(pair.primary.consumers_directory, consumer) == pair.last_seqno() - 3
    assert pair.last_seqno(pair.secondary) == pair.last_seqno()


def _moved(known: Epochs, *, day: int, now: int) -> Epochs:
    """The newest packet was made on that day."""
    *older, newest = known.exports
    return replace(known, exports=(*older, replace(newest, wall_ns=now + day * DAY_NS)))


def test_a_word_from_before_keeps_again(pair: Pair) -> None:
    write(pair, 3)
    export(pair.primary, pair.directory / "out", "west")
    scrub(pair.primary, before_ns=now_ns() + DAY_NS, upto=None, dry_run=False)
    directory = pair.primary.consumers_directory
    assert read_aged(directory, "west") == pair.last_seqno()
    (back,) = export(pair.secondary, pair.directory / "back", "east", receipt=True)
    write_consumer(directory, Consumer("west", 1))
    take(pair.primary, back.path)
    assert read_aged(directory, "west") == 0
