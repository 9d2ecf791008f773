"""Packets between instances of a test: summaries that were never a file, exports and imports in one line."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from hypothesis import strategies as st

from replicate.instance.instance import Instance
from replicate.limits import PARTITION_STREAM
from replicate.model.vector import Position, SynchronizationVector
from replicate.transfer.packet.export import PACKET_BYTES_MIN, Exported, ExportRun, signer_of
from replicate.transfer.packet.format import OriginName, PacketSummary
from update_process.replay.packets import Imported, import_packets

NETWORK, SENDER = bytes(range(16)), bytes(range(16, 32))
ORIGIN = 77
_clock = itertools.count(time.time_ns())


def now_ns() -> int:
    """A clock that never stands still: what was said later is newer."""
    return next(_clock)


def position(seqno: int, origin: int = ORIGIN) -> Position:
    """A place in a journal that one origin has written."""
    if not seqno:
        return Position()
    return Position(seqno, SynchronizationVector({(origin, PARTITION_STREAM): seqno}), {origin: (seqno, seqno * 7)})


def summary(
    base: int, end: int, *, inside: int = 0, end_inside: int = 0, number: int = 1, before: int = 0,
    sender: bytes = SENDER, targets: tuple[str, ...] = ("west",), own: int | None = None, wall_ns: int = 5,
) -> PacketSummary:  # fmt: skip
    """What a packet would say of itself."""
    return PacketSummary(
        bytes(16), NETWORK, sender, "east", targets, number, before, position(base), inside, position(end), end_inside,
        position(end if own is None else own), (OriginName(ORIGIN, "east", 1),), wall_ns, "1.0", bytes(32),
    )  # fmt: skip


SUMMARIES = st.builds(
    summary,
    st.integers(0, 9),
    st.integers(10, 2**40),
    inside=st.integers(0, 99),
    end_inside=st.integers(0, 99),
    number=st.integers(2, 9),
    before=st.integers(0, 1),
    targets=st.lists(st.sampled_from(["west", "a.b-c_1", "off"]), min_size=1, max_size=3).map(tuple),
)


def export(
    instance: Instance, directory: Path, *targets: str, max_bytes: int = PACKET_BYTES_MIN, receipt: bool = False
) -> list[Exported]:
    """What these lack, as packets in the directory (made if missing)."""
    directory.mkdir(exist_ok=True)
    with ExportRun(instance, sign=signer_of(instance), release="test", now_ns=now_ns) as run:
        if receipt:
            return [run.receipt(targets, lambda name: directory / name)]
        return list(run.increments(targets, lambda name: directory / name, max_bytes=max_bytes))


def take(instance: Instance, *paths: Path, remove: bool = False, dry_run: bool = False) -> Imported:
    """Import them; the first error of those that it ends with is raised."""
    done = import_packets(instance, paths, now_s=time.time(), remove=remove, dry_run=dry_run)
    for error in done.errors:
        raise error
    return done
