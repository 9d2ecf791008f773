"""The kind of region that there is: what it opens is what the protocol names."""

from __future__ import annotations

from pathlib import Path

from replicate.region.kind import KIND
from replicate.region.sqlite.kind import SqliteKind
from tests.harness.instances import make_primary


def test_it_is_sqlite_and_each_purpose_sees_the_same_region(tmp_path: Path) -> None:
    assert isinstance(KIND, SqliteKind)
    instance = make_primary(tmp_path / "p")
    entry = instance.region("main")
    opened = [
        KIND.reader(entry.path, region=entry.uuid),
        KIND.writer(entry.path, region=entry.uuid, writable=True, opening_s=1.0),
        KIND.mended(entry.path, region=entry.uuid),
        KIND.applied(entry.path, region=entry.uuid),
    ]
    for one in opened:
        one.check_identity(network=instance.content.network, instance=instance.content.uuid)
        assert one.find_gap(primary=True, missed=lambda _: 1) is None
    assert len({one.seqno() for one in opened}) == 1
    for one in opened:
        one.close()
