"""Taking a region's WAL over into its database, as far as that waits for nobody.

Guarantees: what no reader needs any more is in the database file, synced, when it returns; writers go on meanwhile. An
old copy beside a newer WAL is to be refused before.
Leaves to others: that refusal (door/recovery/stale_wal.py), and when it is time.
"""

from __future__ import annotations

import os
from contextlib import suppress

import apsw

from replicate.region.sqlite.open import open_region, translate
from replicate.system.files import sync_directory, sync_file
from replicate.system.os_errors import io_error


def checkpoint(path: str | os.PathLike[str], *, region: bytes) -> None:
    """Checkpoint the region of that UUID in the file `path`; what somebody else checkpoints already is left to that.
    Raises what opening a region raises, and what an error of SQLite's is translated to."""
    connection = open_region(path, bare=True, region=region)
    try:
        with suppress(apsw.BusyError, apsw.LockedError):
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    except apsw.Error as error:
        raise translate(error, where=os.fspath(path)) from error
    finally:
        connection.close()


def sync_wal(path: str | os.PathLike[str]) -> None:
    """Bring to the disk what is committed in a region: its WAL. What was checkpointed before, SQLite has synced itself.

    The database file is never opened here: closing it would drop the POSIX locks that SQLite holds in this process.
    """
    wal = f"{os.fspath(path)}-wal"
    try:
        sync_file(wal)
    except FileNotFoundError:
        return  # checkpointed, synced and removed by the last one that had the region open
    except OSError as error:
        raise io_error(error, "syncing a region's WAL failed", wal) from error
    sync_directory(os.path.dirname(os.fspath(path)))
