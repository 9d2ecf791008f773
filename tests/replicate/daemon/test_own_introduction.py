"""daemon/own_introduction.py: what the instance file says now; what is wanted of rows is packed and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.daemon.own_introduction import FILTER_CHARACTERS_MAX, introduction, packed_rows, rows_told
from replicate.limits import BATCH_BYTES_MAX
from tests.harness.instances import make_primary, make_secondary

pytestmark = pytest.mark.usefixtures("shared_memory")


def test_rows_are_told_and_read_back() -> None:
    rows = {("main", "b"): "x > 1", ("main", "a"): "", ("other", "a"): "y IS NULL"}
    told = packed_rows(rows)
    assert (len(told), told[:3]) == (9, ("main", "a", ""))
    assert rows_told(told) == rows
    assert (packed_rows({}), rows_told(())) == ((), {})


def test_it_says_who_the_instance_is_now(tmp_path: Path) -> None:
    primary = make_primary(tmp_path / "alpha")
    said = introduction(primary, 0.5, is_source=True)
    content = primary.content
    assert (said.network, said.instance, said.name, said.role) == (
        content.network, content.uuid, "alpha", "primary",
    )  # fmt: skip
    assert (said.heartbeat_period_ms, said.batch_bytes_max, said.rows) == (500, BATCH_BYTES_MAX, ())
    before = said.incarnation
    primary.raise_incarnation()
    assert introduction(primary, 0.5).incarnation == before + 1
    assert introduction(make_secondary(tmp_path / "beta", primary), 0.5).role == "secondary"


@pytest.mark.parametrize(("period_s", "period_ms"), [(0.0, 1), (0.0001, 1), (0.0015, 2), (60, 60_000)])
def test_a_sign_of_life_has_a_period_of_at_least_a_millisecond(tmp_path: Path, period_s: float, period_ms: int) -> None:
    assert introduction(make_primary(tmp_path / "alpha"), period_s).heartbeat_period_ms == period_ms


def test_a_hello_stays_small_whatever_the_filters_are_called(tmp_path: Path) -> None:
    said = introduction(make_primary(tmp_path / "alpha"), 1.0, "x" * 100_000)
    assert said.filter == "x" * FILTER_CHARACTERS_MAX
