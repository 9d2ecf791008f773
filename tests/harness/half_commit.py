"""A process that commits one transaction over several regions, and dies or fails inside SQLite's COMMIT: between files.

Run: python -m tests.harness.half_commit PRIMARY HOME REGION WRITE ACTION [SIZE]
     python -m tests.harness.half_commit SECONDARY apply REGION WRITE ACTION

It opens the region HOME, attaches all others, commits a first transaction with a row in each, and then one of SIZE rows
in each (2: a frame; 3: and makes a table; 400: a spool). From the moment when that one is in the journal, the WRITE-th
write (1: the first) to the WAL of REGION is what ACTION says: `kill` (SIGKILL before it), `torn` (half of it is
written, then SIGKILL), `once` (it fails: the disk is full), `always` (it and all after it fail), `close` (as
`always`, but in the end a further transaction is tried with the disk mended). A secondary applies what is in its
receive pool instead. Prints a JSON line for each commit: its number, or the error's class.

Guarantees: what happens is the same at each run. Leaves to others: what should be there afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import apsw

from replicate.dbapi import Connection, connect
from replicate.door import door as door_module
from replicate.door.secondary import open_apply_session
from replicate.instance.instance import Instance
from replicate.pool.receive_pool import ReceivePool
from replicate.settings.table import UpdateConfig
from update_process.applier import Applier

APPENDED = ("append.after_write", "adopt.after_rename")


class WalDisk:
    """What the next writes to one WAL come to."""

    wal = ""
    armed = False
    writes_left = 0
    action = ""


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int]) -> None:
        self._name = os.path.realpath(name.filename() if isinstance(name, apsw.URIFilename) else name) if name else ""
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if WalDisk.armed and self._name == WalDisk.wal:
            WalDisk.writes_left -= 1
            if WalDisk.writes_left == 0 or (WalDisk.writes_left < 0 and WalDisk.action in ("always", "close")):
                if WalDisk.action == "torn":
                    super().xWrite(data[: len(data) // 2], offset)
                if WalDisk.action in ("kill", "torn"):
                    os.kill(os.getpid(), signal.SIGKILL)
                raise apsw.FullError("planted")
        super().xWrite(data, offset)


class _Disk(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("half", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(name, flags)


def _arm(instance: Instance, region: str, write: str, action: str) -> None:
    WalDisk.wal = f"{os.path.realpath(instance.region(region).path)}-wal"
    WalDisk.action, WalDisk.writes_left = action, int(write)
    hit = door_module.hit

    def arming(name: str) -> None:
        if name in APPENDED and WalDisk.writes_left > 0:
            WalDisk.armed = True
        hit(name)

    door_module.hit = arming


def _apply(instance: Instance) -> None:
    session = open_apply_session(instance)
    pool = ReceivePool.attach(instance.content.uuid)
    applier = Applier(session, pool, UpdateConfig(), conflict_directory=instance.conflict_directory)
    try:
        applier.work(60.0)
        print(json.dumps(applier.applied_seqno), flush=True)
    except Exception as error:
        print(json.dumps(type(error).__name__), flush=True)


def _commit(connection: Connection, names: list[str], count: int) -> None:
    value = "x" * (4000 if count > 10 else 4)
    if count == 3:
        connection.execute("BEGIN")
    for schema in names:
        if count == 3:
            connection.execute(f"CREATE TABLE {schema}.made_{connection.last_seqno} (a UNIQUE)")
            connection.execute(f"INSERT INTO {schema}.made_{connection.last_seqno} VALUES ('x')")
        connection.executemany(f"INSERT INTO {schema}.t (v) VALUES (?)", ((value,) for _ in range(count)))
    try:
        connection.commit()
        said: Any = connection.last_seqno
    except Exception as error:
        said = type(error).__name__
        assert not connection.in_transaction
    print(json.dumps(said), flush=True)


def main() -> None:
    """See above."""
    directory, home, region, write, action, *size = sys.argv[1:]
    _disk = _Disk()
    instance = Instance.open(directory)
    regions = instance.regions
    if home == "apply":
        _arm(instance, region, write, action)
        _apply(instance)
        return
    connection = connect(directory, home)
    names = ["main"]
    for entry in regions:
        if entry.name != home:
            names.append(f"r_{entry.name}")
            connection.execute("ATTACH ? AS ?", (str(entry.path), names[-1]))
    _commit(connection, names, 1)
    _arm(instance, region, write, action)
    _commit(connection, names, int(size[0]) if size else 2)
    WalDisk.armed, WalDisk.writes_left = False, 0
    if action == "close":
        _commit(connection, names, 1)
    connection.close()


if __name__ == "__main__":
    main()
