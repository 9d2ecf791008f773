"""What tests of the PEP 249 interface stand on: a door of one process, plain SQLite, a primary and a secondary under
one program, and regions that connections attach.

Guarantees: the text SCRIPT of a module is in all of its `sides`; what was opened is closed.
Leaves to others: what a test attacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.differential import Plain, Sides, street
from tests.harness.fake_door import FakeDoor, make_region
from tests.harness.several import Several

TABLES = "CREATE TABLE t(id INTEGER PRIMARY KEY, a UNIQUE, b); CREATE TABLE n(x)"


@pytest.fixture
def door(tmp_path: Path) -> FakeDoor:
    """A door of one process, to a region of TABLES."""
    return make_region(tmp_path / "region.db", TABLES)


@pytest.fixture
def connection(door: FakeDoor) -> Iterator[Any]:
    """A connection through that door."""
    made = door.connect()
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[Plain]:
    made = Plain()
    yield made
    made.close()


@pytest.fixture
def sides(plain: Plain, request: pytest.FixtureRequest) -> Iterator[Sides]:
    with street(plain, request.module.SCRIPT) as made:
        yield made


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Several:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Several.make(tmp_path)


@pytest.fixture
def attached(several: Several) -> Iterator[Any]:
    """With all regions attached."""
    made = several.attached()
    yield made
    made.close()
