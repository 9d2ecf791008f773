"""What a Source Server imports to start: not what only few of its streams need."""

from __future__ import annotations

import subprocess
import sys

FOR_FEW = (
    "replicate.filters.program",
    "replicate.filters.conversation",
    "replicate.filters.rows",
    "replicate.filters.wishes",
    "replicate.lost.travel",
    "replicate.audit.show",
)
"""Of filters, of some rows or columns, of lost files."""


def test_no_start_waits_for_what_few_streams_need() -> None:
    asked = f"import sys, source_server.process; print(*(name for name in {FOR_FEW!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
