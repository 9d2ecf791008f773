"""Regions for tests: databases made from a script, installed, and opened as application or applier would.

Guarantees: every connection made through a factory is closed at the end of the test.
Leaves to others: what a test wants of them.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from replicate.region.sqlite import open

NETWORK = b"N" * 16
INSTANCE = b"I" * 16
REGION = b"R" * 16


def make_database(path: Path, script: str = "") -> Path:
    """A plain SQLite database, closed again."""
    connection = apsw.Connection(str(path))
    connection.execute(script)
    connection.close()
    return path


def make_region(path: Path, script: str = "", *, region: bytes = REGION) -> None:
    """A region made from a script, closed again."""
    make_database(path, script)
    connection = open.open_region(path, plain=True)
    try:
        open.install(connection, network=NETWORK, instance=INSTANCE, region=region, name="main")
    finally:
        connection.close()
