"""The savepoints of an open transaction: which place in the captured changes belongs to each name.

Guarantees: the innermost savepoint of a name counts, as in SQLite.
Leaves to others: running the statements, and cutting what was captured.
"""

from __future__ import annotations

from replicate.region.sqlite.capture.marks import Mark


class Savepoints:
    """The savepoints that are open, the outermost first. A place is None if no region
    was held then: nothing had been captured. `began`: the outermost one began the transaction, so its RELEASE commits.
    """

    __slots__ = ("began", "names", "places")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.places: list[Mark | None] = []
        self.began = False

    def add(self, name: str, place: Mark | None, *, begins: bool) -> None:
        """SAVEPOINT. `begins`: no transaction was open."""
        self.began = self.began or begins
        self.names.append(name)
        self.places.append(place)

    def commits(self, name: str) -> bool:
        """Whether RELEASE of that savepoint commits the transaction."""
        return self.began and self._find(name) == 0

    def release(self, name: str) -> None:
        """RELEASE: that savepoint is gone, and all within it."""
        at = self._find(name)
        if at is not None:
            self._cut(at)

    def roll_back_to(self, name: str) -> tuple[Mark | None] | None:
        """ROLLBACK TO: all within that savepoint are gone. Gives its place in a tuple; None if there is none."""
        at = self._find(name)
        if at is None:
            return None
        self._cut(at + 1)
        return (self.places[at],)

    def clear(self) -> None:
        """The transaction has ended."""
        self._cut(0)
        self.began = False

    def _cut(self, at: int) -> None:
        del self.names[at:], self.places[at:]

    def _find(self, name: str) -> int | None:
        for at in range(len(self.names) - 1, -1, -1):
            if self.names[at] == name:
                return at
        return None
