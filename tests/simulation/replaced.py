"""Attributes that are others for a block: how the product is taught, watched and harmed.

Guarantees: what stood there before stands there again, whatever happens; a name that is not there is a KeyError.
Leaves to others: what stands there instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

Change = tuple[Any, str, Any]
"""(module, class or dictionary; name; what stands there instead)."""


@contextlib.contextmanager
def replaced(*changes: Change) -> Iterator[None]:
    """All of these, one after the other."""
    kept: list[Change] = []
    try:
        for owner, name, value in changes:
            kept.append((owner, name, _put(owner, name, value)))
        yield
    finally:
        for owner, name, value in reversed(kept):
            _put(owner, name, value)


def _put(owner: Any, name: str, value: Any) -> Any:
    """What was there before."""
    if isinstance(owner, dict):
        before, owner[name] = owner[name], value
        return before
    before = vars(owner)[name]
    setattr(owner, name, value)
    return before
