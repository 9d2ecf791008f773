"""Scanning: the fast way through plain frames finds what looking at each frame alone does, whatever the bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.errors import ReplicateError
from replicate.journal import scan as module
from replicate.journal.segment import scan
from replicate.journal.tail import ScanResult
from tests.harness.journals import ToyJournal, define_payload, flip, make_definition


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    toy = ToyJournal(tmp_path / "journal")
    for number in range(30):
        if number % 7 == 3:
            toy.append(toy.maker.transaction(payload=define_payload(make_definition(f"t{number}"))))
        elif number % 11 == 5:
            toy.append(toy.maker.null())
        else:
            toy.append(toy.maker.transaction("x" * (number * 3)))
    yield toy
    toy.close()


def _found(journal: ToyJournal, begin: int, monkeypatch: pytest.MonkeyPatch, *, fast: bool) -> ScanResult | str:
    with monkeypatch.context() as patch:
        if not fast:
            nothing = module._Run(0, 0, -1, (0, 0), 0, 0, [])
            patch.setattr(module, "_plain_run", lambda *_: nothing)
        try:
            return scan(journal.segment.fd, begin, 1, chains={}, path="p")
        except ReplicateError as error:
            return str(error)


def test_both_ways_agree_on_every_flipped_byte(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = journal.segment.read_catalogue()[1]
    whole = _found(journal, begin, monkeypatch, fast=True)
    assert isinstance(whole, ScanResult)
    assert whole.damaged is None
    assert whole.last_seqno == 30
    assert whole == _found(journal, begin, monkeypatch, fast=False)
    dice = random.Random(4)
    path = Path(journal.segment.path)
    for _ in range(150):
        at, mask = dice.randrange(begin, journal.end_offset), 1 << dice.randrange(8)
        flip(path, at, mask)
        assert _found(journal, begin, monkeypatch, fast=True) == _found(journal, begin, monkeypatch, fast=False)
        flip(path, at, mask)
