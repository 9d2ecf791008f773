"""What a connection shares with its cursors, BLOBs and callbacks: SQLite's handle, the transaction, its rightful users.

Guarantees: a connection is used by the process that opened it, and by one thread unless `check_thread` is off; one
that is closed, or was never opened, is refused in sqlite3's words.
Leaves to others: opening and closing (dbapi/connection.py), and everything that is done with it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, Protocol

import apsw

from replicate.dbapi.errors import ProgrammingError, surface, surfaced
from replicate.dbapi.region_access import Opened
from replicate.dbapi.transaction import ConnectionTransaction
from replicate.errors import ForkedError

_forks = 0
"""How often this process's ancestors forked since the module was loaded: a connection of another count is not ours."""

_NEVER: Final = -1
"""The number of forks before which no connection was opened: that of one whose `__init__` was not called."""

_living: Final[weakref.WeakSet[ConnectionState]] = weakref.WeakSet()


def _count_fork() -> None:
    global _forks
    _forks += 1
    for state in list(_living):
        state.owner = None


os.register_at_fork(after_in_child=_count_fork)


class AnyConnection(Protocol):
    """A connection as its cursors and BLOBs know it: PEP 249's `cursor.connection`."""

    _state: ConnectionState

    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
    def cursor(self) -> Any: ...


class ConnectionState:
    """The state of one connection.

    `opened`: None while it is not open. `owner`: the one thread that may use it, in this process, while it is open:
    that thread needs no `check`. None: ask `check`, which knows. `trace`: the application's trace callback.
    `describing`: a statement is prepared once more, for its columns; only the application's progress handler is kept
    away. `apsw`, `transaction`: there once it was open.
    """

    apsw: apsw.Connection
    transaction: ConnectionTransaction

    def __init__(self) -> None:
        self._begin(forks=_NEVER, thread=0, check_thread=True, detect_types=0)

    def start(self, *, check_thread: bool, detect_types: int) -> None:
        """This thread of this process is about to open the connection. Whatever was set before is forgotten."""
        # The object stays the same: a cursor of before a second `__init__` asks it, and can still be closed.
        self._begin(forks=_forks, thread=get_ident(), check_thread=check_thread, detect_types=detect_types)

    def _begin(self, *, forks: int, thread: int, check_thread: bool, detect_types: int) -> None:
        self.opened: Opened | None = None
        self.owner: int | None = None
        self.forks, self.thread = forks, thread
        self.check_thread, self.detect_types = check_thread, detect_types
        self.isolation_level: str | None = None
        self.row_factory: Any = None
        self.text_factory: Any = str
        self.trace: Callable[[str], Any] | None = None
        self.describing = False
        self.sql_bytes_max = 0

    def open(self, opened: Opened) -> None:
        """From here on the connection is open; `apsw` and `transaction` are there."""
        self.opened = opened
        _living.add(self)
        if self.check_thread:
            self.owner = self.thread

    def close(self) -> None:
        """Roll back what is open and close, unless it is closed. Raises what SQLite and the door say; then it is closed
        all the same."""
        self.owner = None
        opened, self.opened = self.opened, None
        if opened is not None:
            try:
                surfaced(self.transaction.close)
            finally:  # after an interrupt, too: nobody else knows of it any more
                opened.close()

    def check(self) -> None:
        """ProgrammingError unless this connection is open, and may be used by this thread and process."""
        if self.forks != _forks or (self.check_thread and self.thread != get_ident()):
            self.check_place()
        if self.opened is None:
            raise ProgrammingError("Cannot operate on a closed database.")

    def check_open(self) -> None:
        """ProgrammingError unless this connection is open."""
        if self.forks == _NEVER:
            self.check_place()
        if self.opened is None:
            raise ProgrammingError("Cannot operate on a closed database.")

    def check_initialized(self) -> None:
        """ProgrammingError unless its `__init__` was called."""
        if self.forks == _NEVER:
            self.check_place()

    def check_place(self) -> None:
        """ProgrammingError unless this thread and process may use it, open or not."""
        if self.forks == _NEVER:
            raise ProgrammingError("Base Connection.__init__ not called.")
        if not self.is_ours:
            raise surface(
                ForkedError("this connection was opened before a fork", do="Connect again in the child process")
            )
        if self.check_thread and self.thread != get_ident():
            raise ProgrammingError(
                "SQLite objects created in a thread can only be used in that same thread. "
                f"The object was created in thread id {self.thread} and this is thread id {get_ident()}."
            )

    @property
    def is_ours(self) -> bool:
        """Whether this very process opened it, and none that it was forked from."""
        return self.forks == _forks
