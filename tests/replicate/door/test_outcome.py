"""What a failed commit is called: as it came only where nothing can have happened."""

from __future__ import annotations

from array import array

import pytest

from replicate.door.outcome import DISK_ERRORS, outcome_of
from replicate.errors import DiskFullError, JournalIOError, OutcomeUnknownError, ReplicateError
from replicate.pool import control as word

SEQNO = 7


def words(*, last: int, intent: int) -> memoryview:
    made = array("Q", bytes(8 * 1024))
    made[word.LAST_SEQNO], made[word.INTENT_SEQNO] = last, intent
    return memoryview(made)


@pytest.mark.parametrize("kind", [*DISK_ERRORS, DiskFullError])
def test_before_anything_is_intended_it_is_told_as_it_came(kind: type[ReplicateError]) -> None:
    error = kind("no", where="/journal")
    for intent in (0, SEQNO - 1, SEQNO + 1):
        assert outcome_of(words(last=SEQNO - 1, intent=intent), SEQNO, error) is error


@pytest.mark.parametrize("kind", DISK_ERRORS)
def test_while_it_is_written_nobody_knows(kind: type[ReplicateError]) -> None:
    found = outcome_of(words(last=SEQNO - 1, intent=SEQNO), SEQNO, kind("no", where="/journal", errno=5))
    assert isinstance(found, OutcomeUnknownError)
    assert (found.where, found.facts) == ("/journal", {"errno": 5})
    assert found.what == "transaction 7 was being written into the journal when it failed: no"
    assert "recovery decides" in found.do


def test_a_disk_that_is_full_has_taken_nothing() -> None:
    error = DiskFullError("no room")
    assert outcome_of(words(last=SEQNO - 1, intent=SEQNO), SEQNO, error) is error


@pytest.mark.parametrize("kind", [*DISK_ERRORS, DiskFullError])
@pytest.mark.parametrize("last", [SEQNO, SEQNO + 3])
def test_what_stands_in_the_journal_is_committed_whatever_failed_then(kind: type[ReplicateError], last: int) -> None:
    found = outcome_of(words(last=last, intent=SEQNO), SEQNO, kind("no", where="/journal"))
    assert isinstance(found, OutcomeUnknownError)
    assert found.what == "transaction 7 is committed, but what has to follow failed: no"


def test_what_is_unknown_already_is_not_told_twice() -> None:
    error = OutcomeUnknownError("nobody knows")
    assert outcome_of(words(last=SEQNO, intent=SEQNO), SEQNO, error) is error
    assert outcome_of(words(last=0, intent=0), SEQNO, JournalIOError("no")).what == "no"
