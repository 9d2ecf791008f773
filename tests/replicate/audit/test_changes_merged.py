"""What suppliers tell each other, and what merged transactions came to, as an audit shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from tests.harness.suppliers import Suppliers, run, shared


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = shared(tmp_path)
    run(made, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    made.level()
    run(made, "a", "UPDATE ta SET v = 'of a'")
    run(made, "b", "UPDATE ta SET v = 'of b'")
    made.level()
    return made


def said(made: Suppliers, *words: str) -> str:
    done = CliRunner().invoke(root, ["-i", str(made.by["a"].path), *words], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_a_merged_transaction_shows_what_it_came_to_here(two: Suppliers) -> None:
    told = said(two, "audit", "show", "--from", str(two.last_seqno("a")))
    assert "UPDATE   main.ta [1] v: 'of a' → 'of b'" in told
    assert "SEEN     " in told
    assert "RESOLVED what stands before it is what changes made at once came to here" in told
    assert "RESOLVED" in said(two, "journal", "show")


def test_it_is_taken_back_as_it_was_done_here(two: Suppliers) -> None:
    number = str(two.last_seqno("a"))
    script = said(two, "audit", "undo", "--from", number)
    connection = two.connect("a")
    connection.executescript(script)
    connection.close()
    assert two.rows("a")["ta"] == [(1, "of a", 0)]
    two.level()
    two.assert_converged()


def test_what_names_writers_is_of_no_table(two: Suppliers) -> None:
    lines = said(two, "audit", "count").splitlines()
    assert [line.split()[0] for line in lines if "region" in line.split()] == ["region"]
