"""Parquet files of an archive: written where rows are decoded, or by Java where only that knows the file system; they
hold the same, and what was begun and not finished is nobody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from replicate.errors import DamagedError, DiskFullError, JournalIOError
from replicate.journal.chain import Chain
from tests.harness.backlog import Backlog
from update_process.replay.archive import archive, parquet
from update_process.replay.archive.archive import Archive
from update_process.replay.archive.arrow_rows import arrow_schema
from update_process.replay.archive.files import open_files
from update_process.replay.archive.manifest import read_ranges
from update_process.replay.archive.parquet import forget, seen, write_hidden

SCHEMA = arrow_schema("transactions")


def batch(*numbers: int) -> pa.RecordBatch:
    rows = [dict.fromkeys(SCHEMA.names) | {"seqno": number} for number in numbers]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def test_a_file_is_there_when_it_is_made_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1)
    folder = tmp_path / "new" / "range"
    files = open_files(tmp_path.as_uri())
    name, count = write_hidden(folder, "transactions", 7, iter([batch(7, 8), batch(9)]))
    assert (count, files.names("new/range")) == (3, [])
    seen(folder, name)
    seen(folder, name)  # gone meanwhile: its rows will be missed
    (path,) = folder.iterdir()
    assert path.name.startswith("part-00000000000000000007-")
    assert path.name.endswith(".parquet")
    assert pq.read_table(path).column("seqno").to_pylist() == [7, 8, 9]
    assert pq.read_metadata(path).num_row_groups == 3
    name, count = write_hidden(folder, "changes", 1, iter([]))
    assert count == 0
    assert pq.read_schema(folder / name).equals(arrow_schema("changes"))
    forget(folder)
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (OSError(28, "No space left on device"), DiskFullError),
        (OSError(5, "Input/output error"), JournalIOError),
        (DamagedError("a byte"), DamagedError),
    ],
)
def test_what_ends_on_the_way_leaves_no_file(tmp_path: Path, raised: Exception, kind: type[Exception]) -> None:
    def batches() -> Any:
        yield batch(1)
        raise raised

    with pytest.raises(kind):
        write_hidden(tmp_path / "range", "transactions", 1, batches())
    assert not list((tmp_path / "range").iterdir())


@pytest.mark.slow
def test_java_writes_the_same_and_archives_of_before_are_read(
    backlog: Backlog, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java wrote all archives until files were written where rows are decoded. One archive may hold ranges of both."""
    with monkeypatch.context() as patch:
        patch.setattr(archive, "local_path", lambda _: None)
        other = Archive(spark, (tmp_path / "java").as_uri(), range_segments=2)
        assert other.add(Chain(backlog.pair.primary.journal_directory)).ranges
    ours, theirs = (
        {one.name: one for one in found} for found in (read_ranges(open_files(backlog.archive)), other.verify())
    )
    common = ours.keys() & theirs.keys()  # of the last one more has been sealed meanwhile
    assert common == set(list(ours)[:-1])
    for name in common:
        assert replace(ours[name], files={}) == replace(theirs[name], files={})
        assert ours[name].changes > 1500
