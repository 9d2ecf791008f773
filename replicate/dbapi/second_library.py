"""Keeping a second SQLite library, the standard library's sqlite3, from a region that this process has open.

Why: POSIX locks belong to the process. When the other library closes its descriptor of the file, our locks are gone,
another process writes between our pages, and a committed row is lost (measured).

Guarantees: while a region is open here, `sqlite3.connect` to its file is refused in this process before it opens
anything; a region that the standard library has open already is not opened (best effort). A connection that another
thread made does not say what file it has: it is suspected only when more descriptors of the file are open here than
APSW's connections have. In doubt the region is refused.
Leaves to others: opening regions.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import sys
import threading
import time
from collections import Counter, deque
from typing import Any, Final
from urllib.parse import unquote as percent_decoded

import apsw

from replicate.dbapi.errors import from_replicate
from replicate.errors import NotSupportedError

_FileKey = tuple[int, int]

_lock = threading.Lock()
_open: Counter[_FileKey] = Counter()
_left: deque[_FileKey] = deque()
"""What `leave` has been told and `_open` does not know yet."""
_installed = False
_LOOKS: Final = 20
_BETWEEN_LOOKS_S: Final = 0.02
"""How often, and after what pause, descriptors and connections are counted before one more descriptor is believed: a
connection of APSW's that is busy in another thread at that moment cannot be asked either."""
_DO: Final = "Use replicate.connect() for this database everywhere in this process"


def _key(path: str) -> _FileKey | None:
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return None
    return facts.st_dev, facts.st_ino


def _path_of(database: Any) -> str | None:
    """The file that `sqlite3.connect(database)` would open; None if it is none."""
    try:
        name = os.fsdecode(database)
    except TypeError:
        return None
    if name.startswith("file:"):
        name = name[5:].split("#", 1)[0].split("?", 1)[0]
        if name.startswith("//"):
            name = "/" + name[2:].split("/", 1)[-1]
        name = percent_decoded(name)
    return name if name and name != ":memory:" else None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "sqlite3.connect" or not _open:
        return
    path = _path_of(arguments[0]) if arguments else None
    if path is None:
        return
    key = _key(path)
    if key is not None and _open[key] > 0:
        raise from_replicate(  # a program that calls sqlite3.connect looks for sqlite3's errors
            NotSupportedError(
                "the standard library's sqlite3 must not open a region that this process has open: "
                "closing it would drop our locks",
                where=path,
                do=_DO,
            )
        )


def enter(path: str) -> _FileKey | None:
    """Note that a region's file is being opened here; give the result to `leave`.

    Raises NotSupportedError if a connection of the standard library has it open; nothing is noted then.
    """
    try:
        return _enter(path)
    finally:
        _count_left()


def _enter(path: str) -> _FileKey | None:
    global _installed
    key = _key(path)
    with _lock:
        if not _installed:
            sys.addaudithook(_audit)
            _installed = True
        if key is None:
            return None
        if _open[key] <= 0 and _is_open_here(key) and _standard_library_has(key):
            raise NotSupportedError(
                "this process has the file open with the standard library's sqlite3, a second SQLite library",
                where=path,
                do="Close that connection first. " + _DO,
            )
        _open[key] += 1
        return key


def leave(key: _FileKey | None) -> None:
    """A connection that `enter` noted is closed. Never waits for the lock: this may be the end of garbage, which this
    very thread has found while it held it."""
    if key is not None:
        _left.append(key)
        _count_left()


def _count_left() -> None:
    while _left and _lock.acquire(blocking=False):
        try:
            key = _left.popleft()
            _open[key] -= 1
            if _open[key] <= 0:
                del _open[key]
        except IndexError:
            pass  # another thread was quicker
        finally:
            _lock.release()


def _is_open_here(key: _FileKey) -> bool:
    descriptors = _descriptors(key)
    return descriptors is None or descriptors > 0  # not to be seen: ask further


def _descriptors(key: _FileKey) -> int | None:
    """How many descriptors of the file this process has; None where that is not to be seen."""
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return None
    count = 0
    for number in numbers:
        try:
            facts = os.fstat(int(number))
        except (OSError, ValueError):
            continue
        count += (facts.st_dev, facts.st_ino) == key
    return count


def _own_connections(key: _FileKey) -> int:
    """How often a connection of APSW has the file, as far as those that are not busy say."""
    count = 0
    for connection in apsw.connections():
        try:
            files = [connection.db_filename(name) for name in connection.db_names()]
        except apsw.Error:
            continue  # busy in another thread, or closed by now
        count += sum(bool(file) and _key(file) == key for file in files)
    return count


def _others_have(key: _FileKey) -> bool:
    """Whether more descriptors of the file are open than APSW accounts for, at each of some looks."""
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_LOOKS_S)
        before = _own_connections(key)
        descriptors = _descriptors(key)
        if descriptors is not None and descriptors <= max(before, _own_connections(key)):
            return False
    return True


def _connections_of_the_standard_library() -> list[Any]:
    # Not by `gc.get_objects`: while its list of all objects is there, another thread that is making a tuple of what an
    # iterator gives gets a SystemError, as somebody else has that tuple, too (measured: several a second).
    kinds: set[type] = {sqlite3.Connection}
    left = [sqlite3.Connection]
    while left:
        below = [kind for kind in type.__subclasses__(left.pop()) if kind not in kinds]
        kinds.update(below)
        left += below
    return [thing for thing in gc.get_referrers(*kinds) if issubclass(type(thing), sqlite3.Connection)]


def _standard_library_has(key: _FileKey) -> bool:
    silent = False
    for thing in _connections_of_the_standard_library():
        try:
            files = [row[2] for row in thing.execute("PRAGMA database_list")]
        except sqlite3.ProgrammingError as error:
            silent = silent or "thread" in str(error)  # of another thread, alive or not: not to be asked
            continue
        except sqlite3.Error:
            continue
        if any(file and _key(file) == key for file in files):
            return True
    return silent and _others_have(key)
