"""What can still be read of a damaged segment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.journal.record import pack_elements
from replicate.journal.salvage import BadPlace, Salvaged, last_standing, salvaged
from tests.harness.journals import ToyJournal, define_payload, flip, frame_places, make_definition


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    """A definition (1) and five transactions (2 to 6)."""
    made = ToyJournal(tmp_path / "journal")
    made.append(made.maker.transaction(payload=define_payload(make_definition())))
    made.write(5)
    yield made
    made.close()


def read(journal: ToyJournal) -> list[int]:
    """The seqnos that are read, those of bad places below zero."""
    return [-one.seqno if isinstance(one, BadPlace) else one.seqno for one in salvaged(journal.segment)]


def test_of_a_whole_segment_all(journal: ToyJournal) -> None:
    found = [one for one in salvaged(journal.segment) if isinstance(one, Salvaged)]
    assert [one.seqno for one in found] == [1, 2, 3, 4, 5, 6]
    assert all(make_definition().table_id in one.catalogue.definitions for one in found)
    assert last_standing(journal.segment) == 6


def test_between_and_after_bad_places(journal: ToyJournal) -> None:
    places = frame_places(journal.chain, 1)
    for seqno in (2, 5):
        flip(Path(journal.segment.path), places[seqno] + 60)
    assert read(journal) == [1, -2, 3, 4, -5, 6]
    assert last_standing(journal.segment) == 6
    reasons = [one.why for one in salvaged(journal.segment) if isinstance(one, BadPlace)]
    for seqno, why in zip((2, 5), reasons, strict=True):
        assert f"[{journal.segment.path}, offset {places[seqno]}]" in why


def test_after_a_bad_catalogue(journal: ToyJournal) -> None:
    flip(Path(journal.segment.path), journal.segment.header.catalogue_offset + 60)
    assert read(journal) == [-1, 1, 2, 3, 4, 5, 6]
    assert last_standing(journal.segment) == 6


def test_content_that_makes_no_sense_is_a_bad_place(journal: ToyJournal) -> None:
    journal.append(journal.maker.transaction(payload=pack_elements(1, 2, 3)))
    journal.write(1)
    assert read(journal) == [1, 2, 3, 4, 5, 6, -7, 8]
