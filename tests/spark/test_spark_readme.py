"""The chapter on archive and replay is true: its Python and its queries run, and answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replicate.journal.chain import Chain
from tests.harness.manual import blocks, chapter
from tests.harness.pair import Pair
from update_process.replay.archive.archive import Archive
from update_process.replay.archive.blocks import unpack_image

pytestmark = pytest.mark.slow

CHAPTER = chapter("archive-and-replay")


def test_the_examples_run_and_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, "CREATE TABLE purchase (id INTEGER PRIMARY KEY, item); CREATE TABLE other (a);")
    with pair.connect() as connection:
        for statement in (
            "INSERT INTO purchase VALUES (7, 'tea'), (8, 'milk')",
            "UPDATE purchase SET item = 'coffee' WHERE id = 7",
            "DELETE FROM purchase WHERE id = 7",
        ):
            connection.execute(statement)
            connection.commit()
        connection.executemany("INSERT INTO other VALUES (?)", [(b"x" * 1000,) for _ in range(1500)])
        connection.commit()
    connection.close()
    directory = tmp_path / "archive"
    Archive(spark, directory.as_uri()).add(Chain(pair.primary.journal_directory))

    opening, more = blocks(CHAPTER, "python")
    names: dict[str, Any] = {}
    exec(opening.replace("file:///srv/archive", directory.as_uri()), names)
    by_hour, of_a_row, by_whom = (spark.sql(query).collect() for query in blocks(CHAPTER, "sql"))

    counts = {(row.table_name, row.op): row.changes for row in by_hour if row.op in ("insert", "update", "delete")}
    assert counts == {
        ("purchase", "insert"): 2,
        ("purchase", "update"): 1,
        ("purchase", "delete"): 1,
    }
    items = [
        [None if image is None else unpack_image(bytes.fromhex(image))[1] for image in (row.before, row.after)]
        for row in of_a_row
    ]
    assert items == [[None, "tea"], ["tea", "coffee"], ["coffee", None]]
    assert {(row.instance, row.incarnation) for row in by_whom} == {(pair.primary.content.uuid.hex(), 1)}

    # What is not archived yet takes part.
    with pair.connect() as connection:
        connection.execute("INSERT INTO purchase VALUES (9, 'late')")
        connection.commit()
    connection.close()
    exec(more.replace("primary/journal", str(pair.primary.journal_directory)), names)
    (row,) = spark.sql(blocks(CHAPTER, "sql")[2]).where("table_name = 'purchase'").collect()
    assert (row.changes, row.transactions) == (5, 4)
