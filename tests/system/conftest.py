"""What most system tests begin with: a street that runs.

Guarantees: the texts SETTINGS and SCHEMA of a test's module, where it has them, are the settings of both instances and
the tables of the primary; nothing is left running.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import street as harness
from tests.harness.street import Street


@pytest.fixture
def street(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Street]:
    yield from running_street(tmp_path, request)


@pytest.fixture(scope="module")
def shared_street(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Street]:
    """One for all tests of the module, which leave it running and level."""
    yield from running_street(tmp_path_factory.mktemp("street"), request)


def running_street(directory: Path, request: pytest.FixtureRequest) -> Iterator[Street]:
    settings = getattr(request.module, "SETTINGS", "")
    made = Street(directory, settings=settings, schema=getattr(request.module, "SCHEMA", harness.SCHEMA)).build()
    try:
        yield made.start()
    finally:
        made.close()
