"""Large transactions through the whole street: memory that does not grow with them, and readers that see all or
nothing of them. The same with ten million rows is tests/benchmarks/bench_large.py.
"""

from __future__ import annotations

import pytest

from tests.harness import large_street
from tests.harness.large_street import pass_through
from tests.harness.street import Street

SCHEMA = large_street.SCHEMA
SETTINGS = """
    [journal]
    durability = "interval"
    pool_bytes = 2097152
    [receiver]
    pool_bytes = 8388608
"""
GROWTH_MIB_MAX = 16.0
"""Between a transaction that fits a frame and a large one. The changes alone are larger than that, and Python's objects
for touched rows several times as large."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kinds", "rows", "width"), [(("insert",), 200_000, 100), (("virtual", "virtual update"), 60_000, 1)]
)
def test_memory_does_not_grow_with_a_transaction(street: Street, kinds: tuple[str, ...], rows: int, width: int) -> None:
    small = pass_through(street, kinds[0], 500, 1, timeout_s=60, width=width).peaks_mib
    street.write(f"DELETE FROM {'shown' if 'virtual' in kinds else 'item'}")
    for place, kind in enumerate(kinds):
        passed = pass_through(street, kind, rows, place + 2, timeout_s=120, width=width)
        assert passed.looks > 10
        grown = {name: peak - small[name] for name, peak in passed.peaks_mib.items()}
        assert max(grown.values()) < GROWTH_MIB_MAX, (kind, small, passed.peaks_mib)
        assert min(small.values()) > 10
    street.prove_equal()
