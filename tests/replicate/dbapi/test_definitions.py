"""Schema changes of an application when something comes between."""

from __future__ import annotations

from typing import Any

import pytest

from replicate.errors import NotSupportedError
from tests.harness.fake_door import FakeDoor


@pytest.mark.parametrize("place", ["close_sequences", "mark", "statement"])
def test_an_interrupt_leaves_neither_the_change_nor_our_tables_open(
    door: FakeDoor, connection: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Before the first savepoint it left the connection as while we work for ourselves, when all is allowed."""
    connection.execute("BEGIN IMMEDIATE")
    regions = connection._state.transaction.regions

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(regions.capture, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            connection.execute("CREATE TABLE z (a)")
    assert connection.in_transaction
    with pytest.raises(NotSupportedError):
        connection.execute("DELETE FROM _replicate_ring")
    connection.execute("CREATE TABLE z (a)")
    connection.commit()
    assert door.operations() == [["SCHEMA", "DEFINE"]]
