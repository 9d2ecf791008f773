"""A reader whose segments are pruned under it: nothing is damaged, and nobody is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import JournalMissingError
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader
from tests.harness.journals import ToyJournal


def test_pruned_under_a_reader(tmp_path: Path) -> None:
    """Its own segment and the next one: what comes after is not there any more, which is no gap."""
    journal = ToyJournal(tmp_path / "journal")
    for _ in range(2):
        journal.write(10)
        journal.switch()
    journal.write(10)
    reader = ChainReader(journal.chain, 3)
    try:
        batch = reader.read(10**6, 10)
        assert batch is not None
        Chain(journal.directory).prune(25)
        with pytest.raises(JournalMissingError, match="seqno 11 is not in the journal any more; the oldest is 21"):
            reader.read(10**6, 30)
    finally:
        reader.close()
        journal.close()
