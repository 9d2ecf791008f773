"""The reader of people against a plain decode of everything: random journals, random questions, both directions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from replicate.audit.query import Matches, Query, find
from replicate.audit.read import Match, chosen_backwards, chosen_changes
from replicate.audit.selection import Selection
from replicate.errors import JournalDamagedError
from replicate.model.transaction import Kind, decode_change
from tests.harness.journals import flip, frame_places
from tests.harness.random_journal import Plain, RandomJournal, plain_decode, questions

SEEDS = range(8)


def told(match: Match) -> tuple[int, list[Any]]:
    return match.seqno, [decode_change(*change) for change in chosen_changes(match)]


def wanted_of(one: Plain, selection: Selection) -> tuple[int, list[Any]] | None:
    chosen = one.chosen(selection)
    if chosen is None:
        return None
    return one.seqno, chosen if one.kind in (Kind.TRANSACTION, Kind.LARGE) else []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_asked_for_is_what_a_plain_decode_picks(seed: int, tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", seed)
    plain = list(plain_decode(made.chain))
    assert [one.seqno for one in plain] == list(range(1, len(plain) + 1))
    dice = random.Random(seed)
    for selection in questions(plain, dice):
        first, last = sorted(dice.choice(plain).seqno for _ in range(2))
        wanted = [answer for one in plain[first - 1 : last] if (answer := wanted_of(one, selection)) is not None]
        found = Matches(made.chain, first, last, selection)
        assert [told(one) for one in found] == wanted, selection
        backwards = list(found.backwards())
        assert [one.seqno for one in backwards] == [seqno for seqno, _ in wanted][::-1], selection
        for one in backwards:
            changes = [decode_change(*change) for change in chosen_backwards(one)]
            assert changes[::-1] == dict(wanted)[one.seqno], selection


def test_the_last_ones_of_a_selection(tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", 5)
    every = [one.seqno for one in find(made.chain, Query(ops=("delete",)))]
    assert [one.seqno for one in find(made.chain, Query(ops=("delete",), last_count=3))] == every[-3:]


def test_what_stands_before_a_damaged_frame_is_given_in_any_question(tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", 3)
    begin = made.chain.first_seqnos()[0]
    places = frame_places(made.chain, begin)
    bad = sorted(places)[len(places) // 2]
    for selection in (Selection(), Selection(tables=frozenset({("main", "main", "plain")}))):
        wanted = [one.seqno for one in Matches(made.chain, 1, bad - 1, selection)]
        flip(Path(made.chain.path_of(begin)), places[bad] + 70)
        given: list[int] = []
        with pytest.raises(JournalDamagedError) as caught:
            given.extend(one.seqno for one in Matches(made.chain, 1, made.toy.last_seqno, selection))
        assert given == wanted
        assert f"up to transaction {bad - 1}" in caught.value.what
        with pytest.raises(JournalDamagedError):
            list(Matches(made.chain, 1, made.toy.last_seqno, selection).backwards())
        flip(Path(made.chain.path_of(begin)), places[bad] + 70)
