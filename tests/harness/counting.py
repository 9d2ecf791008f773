"""Counts how often something of the product was done, so that a test can wait for "three more of them".

Guarantees: what is counted still happens, and its answer is the same.
Leaves to others: what is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class Counter:
    """`done` is how often the calls came back; `since_now` tells whether that many more have."""

    def __init__(self) -> None:
        self.done = 0

    def since_now(self, more: int) -> Callable[[], bool]:
        """A condition for wait_until: `more` further calls have come back."""
        wanted = self.done + more
        return lambda: self.done >= wanted


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Counter:
    """Count the calls of `owner.name` (a method of a class, or a function of a module) until the test ends."""
    counter = Counter()
    real = getattr(owner, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        try:
            return real(*arguments, **named)
        finally:
            counter.done += 1

    monkeypatch.setattr(owner, name, counted)
    return counter
