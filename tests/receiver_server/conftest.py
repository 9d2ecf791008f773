"""What tests of the Receiver Server begin with: a pair, certificates, and a watch on the links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.door.recovery.opening import close_door, open_door
from tests.harness.certificates import Authority
from tests.harness.openings import watch_links
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Two instances, seeded, and the primary's door open."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    door = open_door(made.primary)
    yield made
    close_door(door)


@pytest.fixture
def authority(tmp_path: Path, pair: Pair) -> Authority:
    """A CA, and its certificates in both instances."""
    made = Authority(tmp_path)
    made.install(pair.primary)
    made.install(pair.secondary)
    return made


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The address of every peer whose bytes could reach a link."""
    return watch_links(monkeypatch)
