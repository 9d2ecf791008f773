"""Waiting for a transaction, also over what retires the pool meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from replicate.door.recovery.opening import ROLLBACK_MARKER
from replicate.door.wait import wait_for_seqno
from replicate.errors import TryAgainError, UsageError
from replicate.instance.instance import Instance
from replicate.roles.rollback import rollback
from tests.harness.sites import Sites
from tests.replicate.roles.test_verdict import part


def test_the_last_one_is_told(tmp_path: Path) -> None:
    sites = Sites.level(tmp_path)
    last = sites.last_seqno()
    assert wait_for_seqno(sites.primary, last, timeout_s=0.0) == last
    assert wait_for_seqno(sites.primary, 0, timeout_s=0.0) == last
    with pytest.raises(TryAgainError, match=f"the last one is {last}"):
        wait_for_seqno(sites.primary, last + 1, timeout_s=0.0)
    with pytest.raises(UsageError):
        wait_for_seqno(sites.primary, -1, timeout_s=0.0)


def test_it_outlasts_a_rollback(tmp_path: Path) -> None:
    """It kept the retired pool, and never saw what came after."""
    sites = Sites.level(tmp_path)
    common = part(sites, 1)
    wanted = sites.last_seqno() + 1
    assert wanted > sites.last_seqno(sites.secondary)
    found: list[int] = []
    waiter = Instance.open(sites.secondary.path)
    thread = threading.Thread(target=lambda: found.append(wait_for_seqno(waiter, wanted, timeout_s=60)))
    thread.start()
    rollback(sites.secondary, common)
    sites.secondary = Instance.open(sites.secondary.path)
    sites.write(1)
    sites.catch_up()
    thread.join(60)
    assert found == [wanted]


def test_it_waits_for_the_end_of_a_rollback(tmp_path: Path) -> None:
    sites = Sites.level(tmp_path)
    marker = sites.secondary.path / ROLLBACK_MARKER
    marker.write_text("{}")
    with pytest.raises(TryAgainError, match="a rollback"):
        wait_for_seqno(sites.secondary, 1, timeout_s=0.1)
    timer = threading.Timer(0.3, marker.unlink)
    timer.start()
    assert wait_for_seqno(sites.secondary, 1, timeout_s=60) == sites.last_seqno()
    timer.join()
