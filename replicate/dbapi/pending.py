"""Changes that no hook has told of yet, and BLOBs open for writing: parts of a connection's transactions.

Guarantees: while we ask SQLite for what is pending, the application's authorizer and progress handler are kept away; a
BLOB is written to within the transaction in which it was opened, or not at all.
Refuses to know: how transactions begin and end (dbapi/transaction.py, of which this is a part).
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from replicate.database.capture import Capture
from replicate.database.capture_several import SeveralCaptures
from replicate.errors import NotSupportedError


class Pending:
    """The part of a connection's transactions that looks after what is pending.

    `begun`: how often the region was taken. `blobs_open`: BLOBs open for writing.
    """

    connection: apsw.Connection
    capture: Capture | SeveralCaptures
    region: str
    inside: bool
    begun: int
    blobs_open: int

    def _become_writer(self, text: str = "") -> bool:
        raise AssertionError("the transaction's own")

    def _commit_own(self) -> None:
        raise AssertionError("the transaction's own")

    def _settle(self) -> None:
        """Have everything that is pending captured. Raises what SQLite says."""
        inside, self.inside = self.inside, True
        try:
            self.capture.settle()
        finally:
            self.inside = inside

    def write_blob(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Take the region for a BLOB that is to be written in place. Gives what to call before each write, and when the
        BLOB has been closed: that commits, if this began the transaction and it still stands."""
        own = self.connection.in_transaction is False
        if not self.capture.active:
            self._become_writer()
        elif self.capture.pressing:  # or the rows of all BLOBs that are written one after the other would be kept
            self._settle()
        begun, self.blobs_open = self.begun, self.blobs_open + 1

        def stands() -> bool:
            return self.capture.active and self.begun == begun

        def check() -> None:
            if not stands():
                raise NotSupportedError(
                    "the transaction in which this BLOB was opened for writing has ended",
                    where=self.region,
                    do="Open it again",
                )

        def end() -> None:
            self.blobs_open -= 1  # SQLite counts it until then, also in a later transaction
            if own and stands():
                self._commit_own()

        return check, end
