"""What is in force at a place of the journal: it is what folding all frames before it gives, one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.errors import GapError, JournalDamagedError, JournalMissingError, ReplicateError
from replicate.journal.catalogue import catalogue_before, catalogue_with, with_frame
from replicate.journal.reader import ChainReader
from replicate.journal.record import Head, read_head
from replicate.journal.segment import SegmentFile
from replicate.journal.walk import walk
from replicate.model.transaction import Catalogue
from tests.harness.journals import ToyJournal, define_payload, flip, frame_places, insert_payload, make_definition


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    made = ToyJournal(tmp_path / "journal")
    yield made
    made.close()


def after(known: Catalogue, head: Head) -> Catalogue:
    """Where its origin stands after that frame."""
    chains = {**known.chains, head.origin: (head.origin_seqno, head.chain)}
    vector = known.vector.raised(head.origin, 0, head.origin_seqno) if head.origin_seqno else known.vector
    return known.at(vector, chains)


def drawn(journal: ToyJournal, seed: int) -> dict[int, Catalogue]:
    """A journal of some of everything; by seqno what was in force before it, folded frame by frame."""
    dice, maker = random.Random(seed), journal.maker
    known, found, version = Catalogue(), dict[int, Catalogue](), 0
    for _ in range(60):
        is_begun = journal.segment.header.first_seqno < maker.next_seqno
        kind = dice.randrange(12 if is_begun else 10)
        found[maker.next_seqno] = known
        if kind < 6:
            frames = maker.transactions(1, "x" * dice.randrange(300))
        elif kind < 8:
            version += 1
            changed = make_definition(dice.choice(["a", "b", "c"]), version)
            frames = maker.transaction(payload=define_payload(changed))
        elif kind < 9:
            frames = maker.null()
        elif kind < 10:
            frames = maker.history(maker.next_seqno + 1)
        elif kind < 11:
            version += 1
            changed = make_definition(dice.choice(["d", "e"]), version)
            stream = define_payload(changed)[0] + insert_payload([1, "x" * 2000], changed.table_id)[0]
            journal.catalogue = known
            frame = journal.adopt(stream)
            head = read_head(frame)
            known = after(known.with_definition(changed), head)
            journal.catalogue = known
            journal.switch()
            continue
        else:
            journal.catalogue = known
            journal.switch()
            continue
        journal.append(frames)
        for at, head in walk(memoryview(frames)):
            known = after(with_frame(known, frames[at : at + head.frame_bytes]), head)
    found[maker.next_seqno] = known
    return found


@pytest.mark.parametrize("seed", range(6))
def test_at_each_place_it_is_what_all_frames_before_it_say(journal: ToyJournal, seed: int) -> None:
    for seqno, known in drawn(journal, seed).items():
        seen: list[int] = []

        def note(_segment: SegmentFile, begins: int, _offset: int, seen: list[int] = seen) -> None:
            seen.append(begins)

        here = catalogue_before(journal.chain, seqno, note)
        assert here.definitions == known.definitions, seqno
        assert here.histories == known.histories, seqno
        assert {one: place for one, place in here.chains.items() if place[0]} == {
            one: place for one, place in known.chains.items() if place[0]
        }, seqno
        assert {one: last for (one, partition), last in here.vector.items() if partition == 0} == {
            one: last for one, (last, _) in known.chains.items() if last
        }, seqno
        assert all(begins <= seqno for begins in seen)
    with pytest.raises(GapError):
        catalogue_before(journal.chain, journal.maker.next_seqno + 1)
    with pytest.raises(JournalMissingError):
        catalogue_before(journal.chain, 0)


def test_a_frame_that_tells_something_is_found_damaged_and_one_that_does_not_is_passed_over(
    journal: ToyJournal,
) -> None:
    journal.write(3)  # 1 to 3
    journal.append(journal.maker.transaction(payload=define_payload(make_definition())))  # 4
    journal.write(2)  # 5, 6
    places = frame_places(journal.chain, 1)
    path = Path(journal.chain.path_of(1))
    whole = path.read_bytes()
    for seqno, is_found in ((2, False), (4, True)):
        end = places[seqno + 1]
        flip(path, end - 1)
        if is_found:
            with pytest.raises(ReplicateError) as caught:
                catalogue_before(journal.chain, 7)
            assert isinstance(caught.value, JournalDamagedError)
        else:
            assert len(catalogue_before(journal.chain, 7).definitions) == 1
        path.write_bytes(whole)


def test_the_catalogue_at_any_place(journal: ToyJournal) -> None:
    old, new = make_definition(), make_definition(version=2)
    first = journal.maker.origin
    journal.append(journal.maker.transaction(payload=define_payload(old)))  # 1
    journal.write(2)  # 2, 3
    journal.append(journal.maker.transaction(payload=define_payload(new)))  # 4
    journal.append(journal.maker.null())  # 5
    chain_at_5 = journal.maker.chain
    journal.append(journal.maker.history(2))  # 6
    journal.write(1)  # 7
    reader = ChainReader(journal.chain)
    assert dict(reader.catalogue_at(1).definitions) == {}
    assert list(reader.catalogue_at(2).definitions.values()) == [old]
    assert list(reader.catalogue_at(5).definitions.values()) == [old, new]
    at_6 = reader.catalogue_at(6)
    assert (at_6.histories, at_6.chains) == ((), {first: (5, chain_at_5)})
    assert dict(at_6.vector) == {(first, 0): 5, (first, 1): 5}  # the NULL record named its partition
    at_8 = reader.catalogue_at(8)
    assert [history.seqno for history in at_8.histories] == [6]
    assert at_8.chains[journal.maker.origin] == (1, journal.maker.chain)
    with pytest.raises(GapError):
        reader.catalogue_at(9)
    journal.switch()
    assert reader.catalogue_at(8).chains[journal.maker.origin] == (1, journal.maker.chain)
    known, _ = journal.segment.read_catalogue()
    with journal.chain.open(1) as segment:
        offsets = segment.scan().definition_frames
        before, _ = segment.read_catalogue()
        folded = catalogue_with(before, segment, offsets)
    assert folded.definitions == at_8.definitions
    assert folded.histories == at_8.histories
    assert known.chains == at_8.chains
