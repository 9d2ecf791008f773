"""The history of a row against a model that has followed every row through its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.audit.query import Matches
from replicate.audit.row import row_history
from replicate.audit.selection import Selection, exactly, image_names, row_named
from replicate.model.transaction import Op
from tests.harness.random_journal import RandomJournal

ROWS = frozenset({Op.INSERT, Op.UPDATE, Op.DELETE})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_each_row_has_the_history_that_the_model_has(seed: int, tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", seed, 100)
    moved = 0
    stories = sorted({**made.dead, **made.alive}.items(), key=lambda item: -len(item[1]))
    for (table, key), story in stories[:20]:
        selection = Selection(tables=frozenset({("main", "main", table)}), ops=ROWS)
        found = Matches(made.chain, 1, made.toy.last_seqno, selection)
        history = list(row_history(found, exactly(key)))
        assert [one.seqno for one in history] == story, (table, key)
        definition = made.definitions[table]
        columns = tuple(image_names(definition)[at].upper() for at in definition.key)
        words = [f"{name}={value}" for name, value in zip(columns, key, strict=True)]
        assert list(row_history(found, *row_named(words, definition))) == history
        assert history[-1].op == "insert"
        assert all(one.op == "update" for one in history[1:-1])
        moved += len({one.key for one in history}) > 1
    assert moved


def test_a_row_that_is_older_than_the_journal_has_no_birth_in_it(tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", 1, 100)
    (table, key), story = max(made.alive.items(), key=lambda item: len(item[1]))
    assert len(story) > 1
    selection = Selection(tables=frozenset({("main", "main", table)}), ops=ROWS)
    found = Matches(made.chain, story[-1] + 1, made.toy.last_seqno, selection)
    history = list(row_history(found, exactly(key)))
    assert [one.seqno for one in history] == [seqno for seqno in story if seqno > story[-1]]
