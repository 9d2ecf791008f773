"""An archive at a URI that is no directory of this machine for us, only for Spark: Hadoop's own view of files, under a
scheme and name of its own. From `archive` to a replay, a rebuild and a clean-up, as one would have them on HDFS.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from replicate.audit.verify import verify_journal
from replicate.compare.compare import compare
from replicate.errors import DamagedError, NotFoundError, UsageError
from replicate.journal.chain import Chain
from tests.harness.backlog import Backlog
from tests.harness.instances import last_seqno
from update_process.replay.archive.archive import Archive
from update_process.replay.command import replay
from update_process.replay.rebuild import rebuild

pytestmark = pytest.mark.slow

URI = "viewfs://site/archive"


@pytest.fixture(scope="module")
def there(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files really are. Hadoop keeps what it has opened once: one name for all tests here."""
    directory = tmp_path_factory.mktemp("hadoop")
    spark._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.site.link./archive", directory.as_uri())
    return directory


def test_archive_replay_and_rebuild_by_uri(backlog: Backlog, spark: Any, there: Path) -> None:
    primary = backlog.pair.primary
    archive = Archive(spark, URI, range_segments=2)
    done = archive.add(Chain(primary.journal_directory))
    assert (done.ranges > 1, archive.add(Chain(primary.journal_directory)).ranges) == (True, 0)
    assert archive.verify()[-1].last_seqno == done.last_seqno
    assert all(one.place.startswith(f"{one.name}-") for one in archive.ranges())
    assert archive.rows("transactions", archive.ranges()).count() == done.last_seqno

    sessions: Any = lambda: nullcontext(spark)  # noqa: E731
    secondary, rebuilt = backlog.secondary(), backlog.empty_secondary()
    with pytest.raises(UsageError, match="only Spark can read this URI"):
        replay(secondary, [URI])
    found = replay(secondary, [URI, primary.path], spark=sessions, verify=True)
    assert [one.where for one in found.sources] == [URI, str(primary.journal_directory)]
    assert compare(primary, secondary, timeout_s=5).equal
    assert not verify_journal(secondary).findings
    assert rebuild(rebuilt, backlog.base, [URI], last_seqno=done.last_seqno, spark=sessions).seqno == done.last_seqno

    # What is damaged or gone there is named, and nothing is applied.
    other = backlog.secondary()
    packed = min(there.glob("segments/*/*.zst"))
    whole = packed.read_bytes()
    packed.with_name(f".{packed.name}.crc").unlink(missing_ok=True)  # Hadoop's own, which would find it first
    packed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedError, match="a segment in the archive is damaged") as caught:
        replay(other, [URI], spark=sessions)
    assert caught.value.where.startswith(f"{URI}/segments/")
    packed.unlink()
    with pytest.raises(NotFoundError, match="a file of the archive is not there"):
        replay(other, [URI], spark=sessions)
    assert last_seqno(other) == backlog.base_seqno
