"""`apply_lost` as a process of its own calls it (tests/harness/sites.py: kill_at)."""

from __future__ import annotations

from pathlib import Path

from replicate.instance.instance import Instance
from replicate.lost.apply import apply_lost


def apply(instance: Instance, path: str) -> None:
    apply_lost(instance, Path(path), timeout_s=30)
