"""Packets by Spark: the same rows and the same journal as by this process."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from replicate.audit.verify import verify_journal
from tests.harness.packets import export
from tests.harness.pair import Pair
from tests.harness.replaying import assert_equal
from tests.update_process.replay.test_packets import large, several
from update_process.replay.packets import import_packets

pytestmark = pytest.mark.slow


def test_an_import_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, "CREATE TABLE p (id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    pair.seed()
    paths = [*several(pair, 3, first=10), *large(pair)]
    done = import_packets(pair.secondary, paths[::-1], now_s=time.time(), spark=lambda: nullcontext(spark))
    assert done.errors == []
    assert len(done.applied) == len(paths)
    assert_equal(pair)
    assert not verify_journal(pair.secondary).findings
    assert export(pair.primary, tmp_path / "again", "west") == []
