"""A checkpoint that waits for nobody: neither for a reader nor for a writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.region.sqlite.checkpoint import checkpoint
from tests.harness.pair import Pair


def test_it_takes_what_no_reader_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path)
    entry = pair.primary.regions[0]
    writer, reader = pair.connect(), pair.connect()
    try:

        def write(text: str) -> None:
            writer.execute("INSERT INTO account(owner, note) VALUES ('o', ?)", (text * 3000,))

        write("x")
        writer.commit()
        writer.execute("BEGIN IMMEDIATE")
        write("y")
        checkpoint(entry.path, region=entry.uuid)  # neither waits for the writer nor fails
        found = entry.path.read_bytes()
        assert (b"x" * 1000 in found, b"y" * 1000 in found) == (True, False)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM account").fetchone() == (1,)
        writer.commit()
        checkpoint(entry.path, region=entry.uuid)  # nor for the reader
        assert b"y" * 1000 not in entry.path.read_bytes()
        reader.rollback()
        checkpoint(entry.path, region=entry.uuid)
        assert b"y" * 1000 in entry.path.read_bytes()
    finally:
        reader.close()
        writer.close()
