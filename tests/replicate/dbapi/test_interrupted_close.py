"""An interrupt (^C) while a connection is closed: it is closed all the same, and its door with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import replicate
from replicate.door.durability import Durability
from replicate.door.lock import CommitLock
from replicate.door.primary import RegionSession
from replicate.region.sqlite.capture.capture import Capture
from tests.harness.descriptors import open_descriptors
from tests.harness.instances import check, make_primary

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.mark.parametrize(
    ("kind", "method"),
    [(Capture, "close"), (RegionSession, "_abandon"), (Durability, "close"), (CommitLock, "close")],
)
def test_everything_else_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[object], method: str
) -> None:
    instance = make_primary(tmp_path / "p")
    replicate.connect(instance.path).close()  # what stays open for good
    before = open_descriptors()
    really: Any = getattr(kind, method)

    def interrupted(self: object) -> None:
        really(self)
        raise KeyboardInterrupt

    connection = replicate.connect(instance.path)
    connection.execute("INSERT INTO t VALUES (1, 'x')")
    connection.commit()
    connection.execute("INSERT INTO t VALUES (2, 'x')")
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.close()
    connection.close()
    assert open_descriptors() == before
    assert check(instance).rows["main"].keys() == {1}
