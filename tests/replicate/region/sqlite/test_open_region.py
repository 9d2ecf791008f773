"""A region's file that is open: it is the region that it was opened as, or it is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replicate.errors import RegionReplacedError
from replicate.region.sqlite.open_region import open_to_read
from tests.harness.instances import insert, make_primary, session_of


def test_it_says_how_far_the_region_is_and_whose_it_is(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "p")
    entry, content = instance.region("main"), instance.content
    with closing(open_to_read(entry.path, region=entry.uuid)) as opened:
        before = opened.seqno()
        with session_of(instance) as session:
            insert(session, 1)
        assert opened.seqno() == before + 1
        assert opened.checkpoint() == []
        assert opened.position(before + 1).last_seqno == before + 1
        opened.check_identity(network=content.network, instance=content.uuid)
        with pytest.raises(RegionReplacedError):
            opened.check_identity(network=content.network, instance=b"N" * 16)
    with closing(open_to_read(entry.path, region=b"X" * 16)) as other, pytest.raises(RegionReplacedError):
        other.check_identity(network=content.network, instance=content.uuid)
