"""Which transactions a peer has not got, and what an operator is told of them: numbers alone."""

from __future__ import annotations

import pytest

from replicate.lost.undelivered import PeerPosition, Undelivered


def facts(*peers: tuple[str, int], last: int = 483, received: int = 0, oldest: int = 1) -> Undelivered:
    return Undelivered(oldest, last, last, max(last, received), tuple(PeerPosition(*peer) for peer in peers))


@pytest.mark.parametrize(
    ("found", "lost", "told"),
    [
        (facts(), None, ""),
        (facts(("b", 483)), None, ""),
        (facts(("b", 483), ("c", 500)), None, ""),
        (facts(("b", 100)), (101, 483), "383 transactions (101 to 483) are on no peer; b has those up to 100"),
        (facts(("b", 482)), (483, 483), "1 transaction (483) is on no peer; b has those up to 482"),
        (facts(("b", 0)), (1, 483), "483 transactions (1 to 483) are on no peer; b has none yet"),
        (facts(("b", 0), oldest=400), (400, 483), "84 transactions (400 to 483) are on no peer; b has none yet"),
        (
            facts(("b", 100), ("c", 480)),
            (481, 483),
            "3 transactions (481 to 483) are on no peer; b has those up to 100; c has those up to 480",
        ),
        (facts(("b", 100), ("c", 483)), None, "b has not got 101 to 483; c has those up to 483"),
        (facts(received=490), (484, 490), "7 transactions (484 to 490) received and not yet applied"),
        (
            facts(("b", 480), received=490),
            (481, 490),
            "3 transactions (481 to 483) are on no peer; 7 transactions (484 to 490) received and not yet applied; "
            "b has those up to 480",
        ),
    ],
)
def test_what_is_lost_and_what_is_told(found: Undelivered, lost: tuple[int, int] | None, told: str) -> None:
    assert ((found.first_lost_seqno, found.end_seqno) if found.is_lost else None) == lost
    assert found.told() == told


def test_a_journal_that_cannot_be_read_to_its_end() -> None:
    known = Undelivered(1, 50, 60, 60, (PeerPosition("b", 55),), "a flip")
    assert (known.is_lost, known.first_lost_seqno, known.end_seqno) == (True, 56, 60)
    assert known.told().startswith(
        "5 transactions (56 to 60) are on no peer; the journal can be read up to 50 (a flip)"
    )
    assert not Undelivered(1, 50, 60, 60, (PeerPosition("b", 60),), "a flip").is_lost
    opened = Undelivered(1, 50, 50, 50, (PeerPosition("b", 60),), "a flip", is_open=True)
    assert opened.is_lost
    assert opened.told() == (
        "the journal can be read up to 50, and nothing tells how much stands after that (a flip); b has those up to 60"
    )
    assert not Undelivered(1, 50, 50, 50, (), "a flip", is_open=True).is_lost
