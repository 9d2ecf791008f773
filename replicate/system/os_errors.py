"""What the errno of a failed system call says, and of whom: this process, a full disk, or the disk.

    call                                        EMFILE ENFILE   ENOMEM      ENOSPC EDQUOT EFBIG   any other
    open, of whatever                           process         process     full                  disk
    write of a frame, taken back (zeros)        -               process     full                  disk
    write of a frame that was not taken back    -               disk        disk                  disk
    write of zeros ahead, or of a new segment   -               process     full                  disk
    rename into the chain                       -               disk        full                  disk
    any fsync                                   disk            disk        disk (of a new        disk
                                                                            segment: full)

process: this call failed alone (ExhaustedError). Nothing has changed, so the transaction fails by name, nobody else
hears of it, and the same may be tried again. full: the same, until there is space (DiskFullError). disk: what stands
there is not known, and asking again does not tell (after a failed fsync every retry "succeeds" and the data are gone):
the first one is fatal to every writer of the journal (FATAL in the control words) until recovery has run.
So that a lack of descriptors is only ever met while nothing has changed, whatever must be synced after a rename (the
directory) is opened before it.

Guarantees: one table for journal, locks and instance files. Leaves to others: which call it was; the caller says by
what it asks.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NoReturn

from replicate.errors import DiskFullError, ExhaustedError, JournalIOError, PermissionRefusedError

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space, quota or size limit: what an operator mends by making room."""
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
EXHAUSTED: Final = NO_DESCRIPTORS | {errno.ENOMEM}
"""What a process, or the machine, has no more of; nothing is wrong with any disk."""
SPARED: Final = FULL | EXHAUSTED
"""What is no verdict on the journal, where nothing has changed."""
SPARED_ERRORS: Final = (DiskFullError, ExhaustedError)
"""The same as errors: nothing has changed."""

_DO: Final = {
    errno.EMFILE: "Close files or connections of this process, or raise its limit (ulimit -n); then try again",
    errno.ENFILE: "Raise the machine's limit (sysctl fs.file-max), or end processes; then try again",
    errno.ENOMEM: "Free memory; then try again",
}

_MEND: Final = {
    errno.EROFS: "Mount its file system read-write; if the kernel has made it read-only, its log says why",
    errno.EACCES: "Run as the owner of the instance",
    errno.EPERM: "Run as the owner of the instance",
    errno.EIO: "Look into the kernel's log: the disk may be failing",
}


def mend(error: OSError) -> str:
    """What an operator does about `error`, where its number alone tells; else nothing."""
    return _MEND.get(error.errno or 0, "")


def exhausted(error: OSError, what: str, where: str) -> ExhaustedError:
    """The named error of an `error` whose errno is in EXHAUSTED."""
    number = error.errno or errno.ENOMEM
    return ExhaustedError(f"{what}: {os.strerror(number)}", where=where, do=_DO[number], errno=number)


def lacking_descriptors() -> OSError | None:
    """Why this process cannot open a few files more; None when it can. For a caller that was refused by a library that
    does not tell why: SQLite wants three at most."""
    made: list[int] = []
    try:
        while len(made) < 4:
            made.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            return error
    finally:
        for one in made:
            os.close(one)
    return None


def io_error(error: OSError, what: str, where: str) -> JournalIOError | PermissionRefusedError:
    """The named error of an operating system error."""
    if error.errno in NO_DESCRIPTORS:  # no call gives it but one that should have made a descriptor
        return exhausted(error, what, where)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{what}: no space left", where=where, do="Free space, then try again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionRefusedError(f"{what}: {error.strerror}", where=where, do=mend(error))
    return JournalIOError(f"{what}: {error.strerror}", where=where, do=mend(error))


def refuse_os_error(error: OSError, doing: str, path: str) -> NoReturn:
    """Raise ExhaustedError, DiskFullError (no space, quota, size limit) or JournalIOError for `error`, naming the file.
    For a call that has changed nothing when it fails; else `refuse_changed`."""
    if error.errno in EXHAUSTED:
        raise exhausted(error, doing, path) from error
    refuse_changed(error, doing, path)


def refuse_changed(error: OSError, doing: str, path: str) -> NoReturn:
    """The same for a call that may have changed something: that it lacked memory excuses nothing then."""
    if error.errno in FULL:
        raise DiskFullError(
            f"{doing}: {error.strerror}", where=path, do="Make space on this file system", errno=error.errno
        ) from error
    raise JournalIOError(f"{doing}: {error.strerror}", where=path, do=mend(error), errno=error.errno) from error
