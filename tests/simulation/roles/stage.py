"""What of the product is taught to run in a world of roles, beyond ../stage.py: what changes a role, or takes one back.

Real here too: promote, demote, switchover on both sides, fencing, encounters, rollback, lost files, and how daemons are
kept down meanwhile. A model: what a region's bookkeeping becomes with another role (region/sqlite/turn_role.py), the
locks of daemons, and the socket over which they take orders (machine.py). Lost files do not travel here.
Guarantees: as ../stage.py. Leaves to others: what happens in a world.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from replicate.journal.backwards import changes_backwards, pieces_backwards
from replicate.region.protocol import ScrRow
from tests.simulation.host import WALL_NS
from tests.simulation.regions import Pending, naming
from tests.simulation.roles.machine import DaemonLock, RolePath, RoleSocket, SimulatedDaemonFiles, give, opened

OPENS_FILES: Final = ("replicate.lost.file",)
"""Modules that open what they have a descriptor of."""
PRIMARY_THERE_S: Final = 5.0
PIECE_BYTES: Final = 400
"""Of what is taken back at once."""


class _NoLock:
    """There are no threads in one process: who opens a door is never met by another one."""

    def acquire(self, *_: Any, **__: Any) -> bool:
        return True

    def release(self) -> None:
        pass


def _begin_as_secondary(path: Path, region: bytes, rows: list[ScrRow]) -> None:
    _turned(path, Pending(taken_back_to=rows, state={"applied_from": 1}))


def _begin_as_primary(path: Path, region: bytes, seqno: int) -> None:
    _turned(path, Pending(ring_end=0, slot=(seqno, None)))


def _turned(path: Path, pending: Pending) -> None:
    process = DaemonLock.world.kernel.process
    process.check()
    there = process.host.region_at(path)
    with naming(str(path)):
        there.commit(pending)
        there.sync()


def _seqno_of(path: Any, *, region: bytes) -> int:
    return int(DaemonLock.world.kernel.process.host.region_at(path).seqno)


def sizes(world: Any) -> Mapping[str, Mapping[str, Any]]:
    """What stands in the place of what, by module."""
    clock = SimpleNamespace(monotonic=lambda: world.kernel.now + 1000.0, sleep=world.sleep_in_thread)
    files = {"DaemonFiles": SimulatedDaemonFiles}
    moment = SimpleNamespace(datetime=SimpleNamespace(now=lambda _zone: datetime.datetime.fromtimestamp(
        WALL_NS / 1e9, datetime.UTC)), UTC=datetime.UTC)  # fmt: skip
    return {
        "replicate.roles.daemons_down": {**files, "time": clock, "daemon_names": lambda _path: ()},
        "replicate.roles.promote_demote": files,
        "source_server.handover": {**files, "start_again": lambda *_: "start it"},
        "receiver_server.handover": {**files, "start_again": lambda *_: "start it", "give": give},
        "source_server.process": {"CommandSocket": RoleSocket, "PRIMARY_THERE_S": PRIMARY_THERE_S},
        "replicate.daemon.statistics_lines": {"CommandSocket": RoleSocket},
        "replicate.roles.change_of_role": {
            "begin_as_primary": _begin_as_primary, "begin_as_secondary": _begin_as_secondary,
            "forget_patrolled": lambda _path: None,
        },
        "replicate.roles.undo_transactions": {
            "pieces_backwards": partial(pieces_backwards, piece_bytes=PIECE_BYTES),
            "changes_backwards": partial(changes_backwards, piece_bytes=PIECE_BYTES, piece_changes=3),
        },
        "replicate.lost.peers_lack": {"last_seqno_of": _seqno_of},
        "replicate.lost.file": {"datetime": moment},
        "receiver_server.lost_files": {"to_send": lambda _instance: ()},
        "replicate.door.recovery.opening": {"_lock": _NoLock()},
    }  # fmt: skip


@contextlib.contextmanager
def opening_files(world: Any) -> Iterator[None]:
    """Some modules' builtin `open` is the simulated one, for a block."""
    DaemonLock.world = RolePath.world = RoleSocket.world = world
    modules = [sys.modules[name] for name in OPENS_FILES]
    for module in modules:
        vars(module)["open"] = opened
    try:
        yield
    finally:
        for module in modules:
            del vars(module)["open"]
