"""A connection that nobody closed: its end as garbage, at whatever moment."""

from __future__ import annotations

import gc
import sqlite3
import threading
from pathlib import Path

import pytest

from replicate import connect
from replicate.dbapi import second_library
from replicate.door.recovery import opening
from tests.harness.pair import Pair


@pytest.mark.parametrize("lock", [opening._lock, second_library._lock])
def test_garbage_found_while_a_door_is_being_opened(tmp_path: Path, lock: threading.Lock) -> None:
    """The collector may run while this thread holds the lock that closing takes; it waited for itself for ever."""
    pair = Pair.create(tmp_path)
    file = pair.primary.region("main").path
    done = threading.Event()

    def collect() -> None:
        left = [connect(pair.primary.path, check_same_thread=False)]
        left[0].execute("INSERT INTO account (owner) VALUES ('never committed')")
        left.append(left)  # type: ignore[arg-type]  # a ring, so that only the collector finds it
        with lock:
            del left
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(60)
    with connect(pair.primary.path) as other:  # neither the region nor the door is held
        other.execute("INSERT INTO account (owner) VALUES ('committed')")
    other.close()
    assert not [where for _, where in opening._doors if where == str(pair.primary.path)]
    with sqlite3.connect(file) as plain:
        assert plain.execute("SELECT owner FROM account").fetchall() == [("committed",)]
    plain.close()
