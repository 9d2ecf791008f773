"""How far the reading of a whole database is, in bytes: counted by SQLite itself, at no cost.

Guarantees: nothing is read for it; what is told never passes the whole.
Leaves to others: why it is read, and who is told.
"""

from __future__ import annotations

import apsw


class Reading:
    """What `connection` reads from now on. `passes`: how often the file is read in all. For one thread.

    Pages that are free, or belong to indexes that are not read, count to the whole: at the end there is less to do than
    it seemed. A page that has left SQLite's cache and is read again counts again.
    """

    def __init__(self, connection: apsw.Connection, *, passes: int = 1) -> None:
        self._connection = connection
        self._page_bytes = int(connection.pragma("page_size"))
        self._whole = passes * int(connection.pragma("page_count"))
        self._before = self._pages()  # last: what tells the size may read a page

    def _pages(self) -> int:
        return int(self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)[0])

    @property
    def whole_bytes(self) -> int:
        """All there is to be read."""
        return self._whole * self._page_bytes

    @property
    def done_bytes(self) -> int:
        """What has been read."""
        return min(self._pages() - self._before, self._whole) * self._page_bytes
