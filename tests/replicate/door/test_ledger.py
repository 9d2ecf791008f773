"""The ledger's words: the intent in its order, and what moves together when the journal's end does."""

from __future__ import annotations

import errno
from array import array
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from replicate.door.ledger import ADOPTS, APPENDS, Ledger
from replicate.journal.record import Head, pack_frame, read_head
from replicate.model.transaction import Kind
from replicate.pool import control as word

OWN, OTHER = 5, 6


class Words:
    """Control words that note the order in which they are written."""

    def __init__(self) -> None:
        self.values = array("Q", bytes(8 * 4096))
        self.written: list[int] = []

    def __getitem__(self, at: int) -> int:
        return self.values[at]

    def __setitem__(self, at: int, value: int) -> None:
        self.written.append(at)
        self.values[at] = value


@dataclass
class Pool:
    """What is told of what has become visible."""

    words: Words = field(default_factory=Words)
    told: list[object] = field(default_factory=list)

    def publish_in_files(self, first_seqno: int, last_seqno: int) -> None:
        assert self.words[word.INTENT_SEQNO], "the intent must stand until all is done"
        self.told.append((first_seqno, last_seqno))

    def note_durable(self, seqno: int) -> None:
        assert self.words[word.LAST_SEQNO] == seqno
        self.told.append(seqno)


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def ledger(pool: Pool) -> Ledger:
    made = Ledger(cast("Any", pool), cast("Any", pool), lambda: pool.told.append("ring"))
    made.words[word.OWN_ORIGIN] = OWN
    pool.words.written.clear()
    return made


def head(seqno: int, origin: int) -> Head:
    frame, _ = pack_frame(Kind.NULL, seqno, 0, 77, origin, seqno + 100, 1 << 30, b"\xa0\x90", 2)
    return read_head(frame)


@pytest.mark.parametrize(("kind", "offset"), [(APPENDS, 64), (ADOPTS, None)])
def test_the_number_of_an_intent_is_written_last(ledger: Ledger, pool: Pool, kind: int, offset: int | None) -> None:
    ledger.words[word.INTENT_OFFSET] = 9
    pool.words.written.clear()
    ledger.intend(kind, 7, 0b101, offset=offset, size=30)
    assert pool.words.written[-1] == word.INTENT_SEQNO
    assert [pool.words[at] for at in (word.INTENT_KIND, word.INTENT_REGIONS, word.INTENT_SEQNO)] == [kind, 0b101, 7]
    assert pool.words[word.INTENT_OFFSET] == (9 if offset is None else offset)
    ledger.done()
    assert not pool.words[word.INTENT_SEQNO]


@pytest.mark.parametrize("origin", [OWN, OTHER])
@pytest.mark.parametrize("done", [False, True])
def test_the_end_moves_with_its_regions_and_the_last_number_comes_last(
    ledger: Ledger, pool: Pool, origin: int, done: bool
) -> None:
    last = head(4, origin)
    ledger.advance(512, last, 0b110, done=done)
    words = pool.words
    assert (words[word.END_OFFSET], words[word.LAST_SEQNO], words[word.LAST_CSN]) == (512, 4, last.csn)
    assert words.written[-1] == word.LAST_SEQNO
    own = (words[word.OWN_ORIGIN_SEQNO], words[word.OWN_CHAIN])
    assert own == ((104, last.chain) if origin == OWN else (0, 0))
    assert [words[word.REGION_APPENDED + at] for at in range(3)] == [0, 4, 4]
    assert [words[word.REGION_DONE + at] for at in range(3)] == ([0, 4, 4] if done else [0, 0, 0])


def test_a_definition_is_noted_once(ledger: Ledger, pool: Pool) -> None:
    for offset in (64, 64, 128):
        ledger.note_definition(offset)
    words = pool.words
    assert words[word.DEFINITION_COUNT] == words[word.CATALOGUE_GENERATION] == 2
    assert [words[word.DEFINITION_OFFSET + at] for at in range(2)] == [64, 128]


def test_a_segment_that_entered_by_its_name_is_visible_before_the_intent_goes(ledger: Ledger, pool: Pool) -> None:
    ledger.intend(ADOPTS, 3, 1)
    ledger.note_definition(64)
    ledger.enter_segment(3, head(4, OTHER), 99, 1, done=True)
    words = pool.words
    assert pool.told == [4, (3, 4), "ring"]
    assert not words[word.INTENT_SEQNO]
    assert (words[word.SEGMENT_FIRST_SEQNO], words[word.SEGMENT_SEALED], words[word.DEFINITION_COUNT]) == (3, 1, 0)


@pytest.mark.parametrize(
    ("error", "number"), [(28, 28), (OSError(errno.ENOSPC, ""), errno.ENOSPC), (ValueError(), errno.EIO)]
)
def test_what_the_journal_failed_of_is_kept_for_all(ledger: Ledger, pool: Pool, error: Any, number: int) -> None:
    ledger.poison(error)
    assert pool.words[word.FATAL] == number
