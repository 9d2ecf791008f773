"""filters/selection.py over audit elements: each kind of schema change, each placing, each wish."""

from __future__ import annotations

from contextlib import closing
from itertools import combinations, product
from pathlib import Path

import pytest

from replicate.admin import partitions
from replicate.filters.selection import PartitionSelection
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, changes_of, decode_batch
from replicate.model.elements import DEFINITION, PLACED, SECTION, STORAGE, place_of
from replicate.model.transaction import Op
from replicate.region.sqlite.sql.elements import element_of_text
from tests.harness.pair import Pair

NUMBERS = {DEFINITION: 2, STORAGE: 3, SECTION: 4}
TEXTS = (
    "CREATE TABLE fresh (a, b)",
    "CREATE INDEX fresh_a ON fresh (a)",
    "CREATE TRIGGER made AFTER INSERT ON fresh BEGIN DELETE FROM entry; END",
    "CREATE VIEW seen AS SELECT * FROM fresh",
    "CREATE UNIQUE INDEX fresh_b ON fresh (b)",
    "DROP TRIGGER made",
    "ALTER TABLE fresh ADD COLUMN c",
    "DROP INDEX fresh_a",
    "PRAGMA user_version = 3",
)


def texts_of(batch: FrameBatch) -> list[str]:
    flat = [one for body in decode_batch(batch.data)[2::3] for one in changes_of(body)]
    return [flat[at + 3][0] for at in range(0, len(flat), 4) if flat[at] == Op.SCHEMA]


def defined(batch: FrameBatch) -> int:
    return sum(list(changes_of(body)[0::4]).count(Op.DEFINE) for body in decode_batch(batch.data)[2::3])


def inserted(batch: FrameBatch) -> int:
    return sum(list(changes_of(body)[0::4]).count(Op.INSERT) for body in decode_batch(batch.data)[2::3])


@pytest.mark.parametrize("is_one", [False, True], ids=["each by itself", "all in one transaction"])
@pytest.mark.parametrize("mask", list(product((False, True), repeat=3)))
def test_what_goes_is_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: tuple[bool, ...], is_one: bool
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    pair = Pair.create(tmp_path)
    for element, is_placed in zip(PLACED, mask, strict=True):
        partitions.create(pair.primary, element.lower())
        if is_placed:
            partitions.place_element(pair.primary, element, element.lower())
    elements = pair.primary.partitions_now().elements
    assert elements == {one: NUMBERS[one] for one, is_placed in zip(PLACED, mask, strict=True) if is_placed}
    before = pair.last_seqno()
    with closing(pair.connect()) as connection:
        connection.execute("BEGIN")
        for text in TEXTS:
            connection.execute("INSERT INTO account (owner) VALUES ('a')")
            connection.execute(text)
            if not is_one:
                connection.execute("COMMIT")
                connection.execute("BEGIN")
        connection.execute("COMMIT")
    with closing(ChainReader(Chain(pair.primary.journal_directory), before + 1)) as reader:
        definitions = reader.catalogue_at(before + 1).definitions
        batch = reader.read(1 << 20, pair.last_seqno())
    assert isinstance(batch, FrameBatch)
    assert texts_of(batch) == list(TEXTS)
    for wanted in (one for count in range(5) for one in combinations((1, 2, 3, 4), count)):
        goes = PartitionSelection(wanted, definitions).take(batch)
        assert texts_of(goes) == [
            text for text in TEXTS if place_of(elements, element_of_text(text)) in (0, *wanted)
        ], wanted  # fmt: skip
        assert defined(goes) == defined(batch) == 2  # of whatever is there
        assert inserted(goes) == (len(TEXTS) if 1 in wanted else 0)
        assert [body[1] for body in decode_batch(goes.data)[2::3]] == list(range(before + 1, pair.last_seqno() + 1))
